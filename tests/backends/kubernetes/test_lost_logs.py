"""When the log of an ended rank is given up, and which others wait for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import LogTimedOut, RequestFailed, Unavailable
from jupyter_gpu_quota.backends.kubernetes.jobs import end_logs
from jupyter_gpu_quota.backends.kubernetes.jobs.end_logs import LOG_PATIENCE_S, SILENT_AT_ONCE, EndLogs
from tests.patience import until_in_loop

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


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(end_logs, "time", made)
    return made


class Objects:
    """A cluster that answers a request for a log by this text or error, and one for a pod by this error."""

    def __init__(self, log: RequestFailed | bytes, pod: RequestFailed | None) -> None:
        self.log, self.pod = log, pod

    async def read_log(self, pod: dict[str, Any], limit: int) -> bytes:
        if isinstance(self.log, RequestFailed):
            raise self.log
        return self.log

    async def read_pod(self, job: str, attempt: int, rank: int) -> dict[str, Any] | None:
        if self.pod is not None:
            raise self.pod
        return ENDED


@pytest.mark.parametrize(
    ("log", "pod", "is_lost"),
    [
        pytest.param(LogTimedOut(0, "slow"), None, True, id="a kubelet hangs and the API server answers"),
        pytest.param(LogTimedOut(0, "slow"), Unavailable(0, "away"), False, id="the API server hangs"),
        pytest.param(Unavailable(0, "away"), None, False, id="the API server was away"),
        pytest.param(Unavailable(500, "broken"), None, True, id="a kubelet answers with an error"),
        pytest.param(Unavailable(429, "busy"), None, False, id="the API server has too much to do"),
        pytest.param(Unavailable(503, "starting"), None, False, id="the API server is just starting"),
    ],
)
async def test_a_log_is_given_up_after_a_while_and_only_where_its_kubelet_is_the_cause(
    clock: Clock, log: RequestFailed, pod: RequestFailed | None, is_lost: bool
) -> None:
    """The rank ended days ago: only the failed reads of this process count."""
    logs = EndLogs(Objects(log, pod), 100)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(RequestFailed):
            await logs.read(ENDED)
        clock.now_s += LOG_PATIENCE_S - 1
    clock.now_s += 1
    if is_lost:
        assert (await logs.read(ENDED)).decode() == f"[jupyter-gpu-quota] the log was lost: {log}\n"
    else:
        with pytest.raises(Unavailable):
            await logs.read(ENDED)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(Unavailable(429, "busy"), id="the API server had too much to do meanwhile"),
        pytest.param(b"log", id="the log was read meanwhile, and not kept"),
        pytest.param(None, id="another process led meanwhile"),
    ],
)
async def test_the_patience_for_a_log_begins_anew(clock: Clock, between: RequestFailed | bytes | None) -> None:
    kubelet = Objects(LogTimedOut(0, "slow"), None)
    logs = EndLogs(kubelet, 100)  # type: ignore[arg-type]
    with pytest.raises(LogTimedOut):
        await logs.read(ENDED)
    if between is None:
        logs.begin_term()
    else:
        kubelet.log = between
        with suppress(RequestFailed):
            await logs.read(ENDED)
    clock.now_s += LOG_PATIENCE_S
    kubelet.log = LogTimedOut(0, "slow")
    with pytest.raises(LogTimedOut):
        await logs.read(ENDED)


async def test_the_patience_for_a_log_begins_anew_when_the_api_server_answers_again(clock: Clock) -> None:
    cluster = Objects(LogTimedOut(0, "slow"), Unavailable(0, "away"))
    logs = EndLogs(cluster, 100)  # type: ignore[arg-type]
    for expected in ("slow", "away"):
        with pytest.raises(Unavailable, match=expected):
            await logs.read(ENDED)
        clock.now_s += LOG_PATIENCE_S
    cluster.pod = None
    with pytest.raises(LogTimedOut):
        await logs.read(ENDED)


class Kubelets:
    """Nodes of which some do not answer until ``over``; then their requests time out."""

    def __init__(self, *silent: str) -> None:
        self.silent, self.asked = set(silent), list[str]()
        self.over = asyncio.Event()

    async def read_log(self, pod: dict[str, Any], limit: int) -> bytes:
        node = pod["spec"]["nodeName"]
        self.asked.append(node)
        if node in self.silent:
            await self.over.wait()
            raise LogTimedOut(0, "slow")
        return b"log"

    async def read_pod(self, job: str, attempt: int, rank: int) -> dict[str, Any] | None:
        return ENDED


def ended_on(node: str) -> dict[str, Any]:
    return ENDED | {"spec": {"nodeName": node}}


async def test_the_logs_of_a_silent_node_are_given_up_by_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_logs, "LOG_PATIENCE_S", 0)
    kubelets = Kubelets("hung")
    logs = EndLogs(kubelets, 100)  # type: ignore[arg-type]
    reads = [asyncio.create_task(logs.read(ended_on("hung"))) for _ in range(50)]
    await until_in_loop(lambda: kubelets.asked)
    assert await logs.read(ended_on("well")) == b"log"
    assert kubelets.asked == ["hung", "well"]
    kubelets.over.set()
    assert {found.decode() for found in await asyncio.gather(*reads)} == {
        "[jupyter-gpu-quota] the log was lost: slow\n"
    }
    assert kubelets.asked == ["hung", "well"]


async def test_nodes_that_stay_silent_get_few_requests_at_once() -> None:
    nodes = [f"n{number}" for number in range(20)]
    kubelets = Kubelets(*nodes)
    logs = EndLogs(kubelets, 100)  # type: ignore[arg-type]
    kubelets.over.set()
    assert all(isinstance(found, LogTimedOut) for found in await _read_all(logs, nodes))
    kubelets.over.clear()
    kubelets.asked.clear()
    reads = asyncio.create_task(_read_all(logs, nodes))
    await until_in_loop(lambda: len(kubelets.asked) == SILENT_AT_ONCE)
    assert await logs.read(ended_on("well")) == b"log"
    assert len(kubelets.asked) == SILENT_AT_ONCE + 1
    kubelets.silent.clear()
    kubelets.over.set()
    await reads


async def _read_all(logs: EndLogs, nodes: list[str]) -> list[bytes | BaseException]:
    return await asyncio.gather(*(logs.read(ended_on(node)) for node in nodes), return_exceptions=True)


async def test_a_log_above_its_limit_keeps_its_end_and_says_so() -> None:
    for limit, expected in (
        (3, b"log"),
        (2, b"[jupyter-gpu-quota] the beginning of this log was dropped: its limit is 2 bytes\nog"),
    ):
        assert await EndLogs(Kubelets(), limit).read(ended_on("well")) == expected  # type: ignore[arg-type]
