"""What is said of a rank that has not begun or was lost, and what to do about it."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.job_ends import CommandNotStarted
from jupyter_gpu_quota.messages.exit_status import advice, newest_trouble, trouble_sentence
from jupyter_gpu_quota.messages.reasons import sentence
from jupyter_gpu_quota.store.records.rows import RankRecord

TAINT = (
    "Unschedulable: 0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't satisfy plugin(s) "
    "[NodeAffinity]. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)


def rank(number: int = 0, attempt: int = 1, ended_at: int | None = None, trouble: str | None = TAINT) -> RankRecord:
    """A rank that waits, or that was lost, by this trouble."""
    why = {"trouble" if ended_at is None else "why_lost": trouble}
    return RankRecord(job="j", attempt=attempt, rank=number, node="gpu01", ended_at=ended_at, **why)


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        pytest.param(
            'ImagePullBackOff: Back-off pulling image "x"', "Correct the image of its environment, or give", id="image"
        ),
        pytest.param("InvalidImageName: couldn't parse", "Correct the image of its environment.", id="its name"),
        pytest.param("NotCreated: exceeded quota: none", "The cluster does not permit its pod now", id="a full quota"),
        pytest.param(
            'VolumeClaimNotFound: 0/2 nodes are available: persistentvolumeclaim "x" not found.',
            "Create the claim, or correct its name in the quota file",
            id="claim of a volume",
        ),
        pytest.param("NotPrepared: no pod sandbox exists", "kubectl describe shows the events", id="a broken mount"),
        pytest.param(TAINT, "Tolerate the taint (tolerations in c.GPUQuota.kubernetes_pod)", id="taint"),
        pytest.param(
            "Unschedulable: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node "
            "affinity/selector.",
            "Other pods use the node: end them",
            id="a full node",
        ),
        pytest.param("Unschedulable: cannot allocate all claims", "Others have claimed the device", id="devices"),
        pytest.param(
            "Unschedulable: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "c.GPUQuota.kubernetes_pod excludes the node (affinity, nodeSelector)",
            id="affinity of the site",
        ),
        pytest.param("there is no account 'bob'", "", id="nothing is known"),
    ],
)
def test_what_to_do_about_a_trouble(trouble: str, expected: str) -> None:
    found = advice(trouble)
    assert found.startswith(expected) and bool(found) is bool(expected)


@pytest.mark.parametrize(
    ("given", "ranks", "expected"),
    [
        pytest.param(rank(), 1, "The command has not begun on node gpu01: Unschedulable: 0/3", id="it waits"),
        pytest.param(rank(3), 8, "Rank 3 has not begun on node gpu01: Unschedulable: 0/3", id="a rank of a gang waits"),
        pytest.param(rank(ended_at=5), 1, "Attempt 1 was lost on node gpu01: Unschedulable: 0/3", id="it was lost"),
        pytest.param(
            rank(3, 2, 5), 8, "Rank 3 of attempt 2 was lost on node gpu01: Unschedulable: 0/3", id="a rank was lost"
        ),
    ],
)
def test_the_sentence_of_a_trouble(given: RankRecord, ranks: int, expected: str) -> None:
    found = trouble_sentence(given, ranks)
    assert found.startswith(expected)
    assert "not helpful for scheduling. Tolerate the taint" in found and found.endswith(
        "(jupyter gpu-quota nodes cordon)."
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([rank(0), rank(1)], (1, 0), id="the first rank"),
        pytest.param([rank(0, 1, 5), rank(1, 2)], (2, 1), id="the newest attempt"),
        pytest.param([rank(0, 1, 5), rank(0, 2, trouble=None)], (1, 0), id="the attempt before, while one starts"),
        pytest.param([rank(0, 1, 5), rank(0, 2, 5, None), rank(0, 3, None, None)], None, id="no older one"),
    ],
)
def test_the_trouble_that_is_shown(ranks: list[RankRecord], expected: tuple[int, int] | None) -> None:
    found = newest_trouble(ranks, max(each.attempt for each in ranks))
    assert (None if found is None else (found.attempt, found.rank)) == expected


def test_a_job_that_was_not_started_says_what_to_do() -> None:
    reason = CommandNotStarted(trouble='ImagePullBackOff: Back-off pulling image "x"', node="gpu01")
    assert sentence(reason, ended=True) == (
        'The command on node gpu01 was not started: ImagePullBackOff: Back-off pulling image "x". Correct the image of '
        "its environment, or give the pods of jobs a pull secret (imagePullSecrets in c.GPUQuota.kubernetes_pod)."
    )
