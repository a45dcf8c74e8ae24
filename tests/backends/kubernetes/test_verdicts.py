"""A verdict on a pod that waits is final when it has been the same for its time."""

from __future__ import annotations

from math import inf

import pytest

from jupyter_gpu_quota.backends.kubernetes.jobs.pod_states import UNSCHEDULABLE, MayChange, Verdict
from jupyter_gpu_quota.backends.kubernetes.jobs.verdicts import Verdicts

NOBODY = Verdict(UNSCHEDULABLE, "Insufficient cpu", MayChange.CLUSTER)
NO_VOLUME = Verdict("VolumeClaimNotFound", 'persistentvolumeclaim "x" not found', MayChange.CACHE)
NO_SECRET = Verdict("CreateContainerConfigError", 'secret "s" not found', MayChange.CACHE)
NO_IMAGE = Verdict("ImagePullBackOff", "back-off", MayChange.CLUSTER)
PULL = Verdict("ErrImagePull", "not found", MayChange.CLUSTER)
NOT_PREPARED = Verdict("NotPrepared", "no pod sandbox exists", MayChange.NODE)
PULLS = Verdict("ContainerCreating", "", MayChange.PULL)
NO_NAME = Verdict("InvalidImageName", "couldn't parse image", MayChange.NOTHING)


def final_at(*given: tuple[float, Verdict | None]) -> list[float]:
    """The instants at which verdicts are final; None: there is none then."""
    verdicts = Verdicts(
        {MayChange.NOTHING: 0, MayChange.CACHE: 60, MayChange.CLUSTER: 300, MayChange.NODE: 300, MayChange.PULL: inf}
    )
    found = []
    for at, verdict in given:
        if verdict is None:
            verdicts.drop(("J", 1), 0)
        elif verdicts.is_final(verdict, verdicts.take(("J", 1), 0, verdict, at)):
            found.append(at)
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([(0, NO_NAME)], [0], id="time does not change the name of an image"),
        pytest.param([(0, NO_VOLUME), (59, NO_VOLUME), (60, NO_VOLUME)], [60], id="a claim may be too new to be seen"),
        pytest.param([(0, NO_SECRET), (59, NO_SECRET), (60, NO_SECRET)], [60], id="and so may a Secret"),
        pytest.param([(0, NOBODY), (299, NOBODY), (300, NOBODY)], [300], id="a node that is full"),
        pytest.param([(0, NOBODY), (299, NO_VOLUME), (301, NO_VOLUME)], [], id="another verdict begins anew"),
        pytest.param([(0, NOBODY), (299, NO_IMAGE), (301, NO_IMAGE)], [], id="of the kubelet, too"),
        pytest.param([(0, PULL), (200, NO_IMAGE), (300, PULL)], [300], id="pull and back-off are one verdict"),
        pytest.param([(0, NOBODY), (290, NOT_PREPARED), (589, NOT_PREPARED)], [], id="a pod has a node at last"),
        pytest.param([(0, NOT_PREPARED), (300, NOT_PREPARED)], [300], id="a volume that is not mounted"),
        pytest.param([(0, PULLS), (90_000, PULLS)], [], id="an image may be pulled for a day"),
        pytest.param([(0, NO_VOLUME), (30, None), (65, NO_VOLUME)], [], id="one that was gone begins anew"),
    ],
)
def test_when_a_verdict_is_final(given: list[tuple[float, Verdict | None]], expected: list[float]) -> None:
    assert final_at(*given) == expected


def test_ranks_and_attempts_are_judged_by_themselves() -> None:
    verdicts = Verdicts({})
    assert verdicts.take(("J", 1), 0, NO_VOLUME, 0) == 0
    assert verdicts.take(("J", 1), 1, NO_VOLUME, 60) == 0
    assert verdicts.take(("J", 2), 0, NO_VOLUME, 60) == 0
    assert verdicts.take(("J", 1), 0, NO_VOLUME, 60) == 60
    verdicts.forget(("J", 1))
    assert verdicts.take(("J", 1), 0, NO_VOLUME, 61) == 0
