"""Whether the API server refuses a leader that was replaced, by its answers to a request with an older number."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import RequestFailed, failure
from jupyter_gpu_quota.backends.kubernetes.client.fencing import ClusterFence, FenceMissing

PROBE = 'configmaps "gpu-quota-fence-probe" is forbidden: '


class Server:
    """An API server that answers each creation by this error; None: it accepts it."""

    def __init__(self, error: RequestFailed | None) -> None:
        self._error = error

    async def create(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        return body


async def check(error: RequestFailed | None) -> None:
    await ClusterFence(Server(error), "jobs").check_in_force(7)  # type: ignore[arg-type]


async def test_the_refusal_of_the_policy_shows_that_it_is_in_force() -> None:
    policy = "ValidatingAdmissionPolicy 'f' with binding 'f' denied request: leader 6 was replaced: the newest is 7"
    await check(failure(403, PROBE + policy))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        pytest.param(None, "accepts requests of leader 6", id="nothing is refused"),
        pytest.param(
            failure(403, PROBE + 'User "gq" cannot create resource "configmaps"'), "not by the policy",
            id="a missing permission",
        ),
        pytest.param(
            failure(403, PROBE + "not yet ready to handle request"), "not by the policy",
            id="a server that has just started",
        ),
        pytest.param(
            failure(403, PROBE + "ValidatingAdmissionPolicy 'other' denied request: no owner"), "not by the policy",
            id="another policy",
        ),
    ],
)  # fmt: skip
async def test_another_answer_does_not(error: RequestFailed | None, why: str) -> None:
    with pytest.raises(FenceMissing, match=why):
        await check(error)
