"""When the log of an ended rank is given up."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import LogTimedOut, RequestFailed, Unavailable
from jupyter_gpu_quota.backends.kubernetes.jobs.attempt_facts import AttemptFacts
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import JobVolume

ENDED = {
    "metadata": {
        "name": "gq-j-1-0", "creationTimestamp": "2026-11-24T10:00:00Z",
        "labels": {
            "gpu-quota.jupyter.org/job": "J", "gpu-quota.jupyter.org/attempt": "1", "gpu-quota.jupyter.org/rank": "0",
        },
    },
    "spec": {"nodeName": "n"},
    "status": {"phase": "Succeeded"},
}  # fmt: skip


class Objects:
    """A cluster that answers a request for a log, and one for a pod, with these errors."""

    def __init__(self, log: RequestFailed, pod: RequestFailed | None) -> None:
        self._log, self._pod = log, pod

    async def read_log(self, pod: dict[str, Any], limit: int) -> bytes:
        raise self._log

    async def read_pod(self, job: str, attempt: int, rank: int) -> dict[str, Any] | None:
        if self._pod is not None:
            raise self._pod
        return ENDED


@pytest.mark.parametrize(
    ("log", "pod", "is_lost"),
    [
        pytest.param(LogTimedOut(0, "slow"), None, True, id="a kubelet hangs and the API server answers"),
        pytest.param(LogTimedOut(0, "slow"), Unavailable(0, "away"), False, id="the API server hangs"),
        pytest.param(Unavailable(0, "away"), None, False, id="the API server was away"),
        pytest.param(Unavailable(500, "broken"), None, True, id="a kubelet answers with an error"),
    ],
)
async def test_a_log_is_given_up_only_where_its_kubelet_is_the_cause(
    log: RequestFailed, pod: RequestFailed | None, is_lost: bool
) -> None:
    facts = AttemptFacts(Objects(log, pod), JobVolume("/nowhere"), lambda pod: None, lambda node: "")  # type: ignore[arg-type]
    if is_lost:
        assert (await facts._log_of(ENDED)).decode() == f"[jupyter-gpu-quota] the log was lost: {log}\n"
    else:
        with pytest.raises(Unavailable):
            await facts._log_of(ENDED)
