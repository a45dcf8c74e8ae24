"""Logs of ranks that run: a kubelet has no offsets, begins a log anew when it rotates it, and may not send it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.backends.kubernetes import outputs
from jupyter_gpu_quota.backends.kubernetes.client.api_server import (
    LogTimedOut,
    NotFound,
    Refused,
    RequestFailed,
    Unavailable,
)
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.kubernetes.outputs import ClusterOutputs
from jupyter_gpu_quota.backends.protocol import LogPart, LogUnavailable, OutputRefused
from tests.backends.worlds import is_root


class Kubelet:
    """The log of one pod, or why it cannot be read."""

    def __init__(self) -> None:
        self.text = b""
        self.error: RequestFailed | None = None

    async def read_log(self, path: str, limit: int, **query: str) -> bytes:
        if self.error is not None:
            raise self.error
        return self.text[:limit]


class Logs:
    """The logs of a job of one rank, as an API process reads them."""

    def __init__(self, folder: Path) -> None:
        self.kubelet, self.thread, self._folder = Kubelet(), LoopThread(), folder
        self.outputs = ClusterOutputs(self.kubelet, self.thread, "jobs", str(folder))  # type: ignore[arg-type]

    def at(self, offset: int, limit: int = 100) -> LogPart:
        return self.outputs.log("J", 1, 0, offset, limit)

    def keep(self, text: bytes) -> None:
        log = RotatingLog(rank_paths(str(self._folder), "J", 1, 0).log, 1 << 20)
        log.write(text)
        log.close()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    made = Logs(tmp_path)
    yield made
    made.thread.close()


def test_a_rotated_log_is_read_from_its_new_beginning(logs: Logs) -> None:
    logs.kubelet.text = b"old lines\n"
    assert logs.at(0) == LogPart(0, b"old lines\n", 10)
    assert logs.at(10) == LogPart(10, b"", 10)
    logs.kubelet.text = b"new\n"
    assert logs.at(10, 2) == LogPart(0, b"ne", 2)
    assert logs.at(2) == LogPart(2, b"w\n", 4)
    assert logs.at(-3) == LogPart(1, b"ew\n", 4)


def test_a_follower_gets_the_kept_end_of_a_log_that_was_rotated(logs: Logs) -> None:
    logs.keep(b"new\n")
    assert logs.at(10) == LogPart(0, b"new\n", 4)
    assert logs.at(4) == LogPart(4, b"", 4)


def test_a_log_beyond_what_is_read_of_a_running_rank_is_not_rotated(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_LOG_BYTES", 4)
    logs.kubelet.text = b"0123456789"
    assert logs.at(6) == LogPart(6, b"", 6)


@pytest.mark.parametrize("status", [400, 404], ids=["its container has not begun", "its pod is gone"])
def test_a_rank_without_a_log_has_an_empty_one(logs: Logs, status: int) -> None:
    logs.kubelet.error = NotFound(status, "no such pod")
    assert logs.at(0) == LogPart(0, b"", 0) and logs.at(10) == LogPart(10, b"", 10)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Refused(403, "pods/log is forbidden"), id="without the permission"),
        pytest.param(LogTimedOut(0, "its kubelet did not send it"), id="a kubelet that hangs"),
        pytest.param(Unavailable(503, "no answer"), id="an API server that is away"),
    ],
)
def test_a_log_that_cannot_be_read_is_not_an_empty_one(logs: Logs, error: RequestFailed) -> None:
    logs.kubelet.error = error
    with pytest.raises(LogUnavailable, match=str(error)):
        logs.at(0)


@pytest.mark.skipif(not is_root(), reason="only root can give a file to another account")
def test_outputs_of_a_container_of_another_account_are_listed_and_read_without_links(
    logs: Logs, tmp_path: Path
) -> None:
    folder = Path(rank_paths(str(tmp_path), "J", 0, 0).outputs)
    (folder / "a").mkdir(parents=True)
    for path in (folder / "a" / "model", tmp_path / "database"):
        path.write_text("weights")
    (folder / "link").symlink_to(tmp_path / "database")
    os.mkfifo(folder / "pipe")
    for path in (folder / "a", folder / "a" / "model", folder / "link", folder / "pipe"):
        os.chown(path, 12_345, 12_345, follow_symlinks=False)
    assert [(each.path, each.size_bytes) for each in logs.outputs.outputs("J").files] == [("a/model", 7)]
    with logs.outputs.open_output("J", "a/model") as file:
        assert file.read() == b"weights"
    for name in ("link", "pipe"):
        with pytest.raises(OutputRefused):
            logs.outputs.open_output("J", name)
