"""Wakeups arrive in order, never block, and are harmless where no process waits."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from jupyter_gpu_quota.store.wakeup import WakeupSocket, notify
from tests.patience import PATIENCE_S

LONG = "a-folder-with-a-name-that-is-long-enough-to-pass-the-kernels-limit-for-socket-addresses"


@pytest.fixture(params=["short", LONG], ids=["a short path", "a path longer than a socket address"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / request.param
    folder.mkdir()
    return folder / "wakeup.sock"


def test_a_wakeup_ends_the_wait(path: Path) -> None:
    with WakeupSocket(path) as wakeups:
        threading.Timer(0.05, notify, [path, b"now"]).start()
        assert wakeups.wait(PATIENCE_S)
        assert not wakeups.wait(0)


def test_many_wakeups_are_read_at_once_in_order(path: Path) -> None:
    with WakeupSocket(path) as wakeups:
        for word in (b"1", b"2", b"3"):
            assert notify(path, word)
        assert wakeups.read() == [b"1", b"2", b"3"]


def test_a_waiting_coroutine_receives_the_payload(path: Path) -> None:
    async def listen() -> list[bytes]:
        with WakeupSocket(path) as wakeups:
            asyncio.get_running_loop().call_later(0.02, notify, path, b"hello")
            return await asyncio.wait_for(wakeups.received(), PATIENCE_S)

    assert asyncio.run(listen()) == [b"hello"]


def test_a_wakeup_without_a_waiting_process_is_harmless(path: Path) -> None:
    assert not notify(path)
    WakeupSocket(path).close()
    assert not notify(path)
    assert not notify(path.parent / "no" / "folder" / "wakeup.sock")


def test_a_flood_of_wakeups_never_blocks_the_sender(path: Path) -> None:
    with WakeupSocket(path) as wakeups:
        delivered = [notify(path) for _ in range(5000)]
        assert delivered[0] and not delivered[-1]
        assert wakeups.wait(0)


def test_a_successor_takes_the_path_over(path: Path) -> None:
    with WakeupSocket(path) as old, WakeupSocket(path) as new:
        notify(path, b"for the new one")
        assert new.read() == [b"for the new one"]
        assert old.read() == []


def test_only_our_account_may_send_wakeups(path: Path) -> None:
    with WakeupSocket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
