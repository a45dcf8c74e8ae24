"""Bells: heard when rung, silent otherwise, harmless when nobody listens."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from jupyter_gpu_quota.store.wakeup import Bell, ring
from tests.patience import PATIENCE_S

LONG = "a-folder-with-a-name-that-is-long-enough-to-pass-the-kernels-limit-for-socket-addresses"


@pytest.fixture(params=["short", LONG], ids=["a short path", "a path longer than a socket address"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / request.param
    folder.mkdir()
    return folder / "bell.sock"


def test_a_ring_ends_the_wait(path: Path) -> None:
    with Bell.bind(path) as bell:
        threading.Timer(0.05, ring, [path, b"now"]).start()
        assert bell.wait(PATIENCE_S)
        assert not bell.wait(0)


def test_many_rings_are_taken_at_once_in_order(path: Path) -> None:
    with Bell.bind(path) as bell:
        for word in (b"1", b"2", b"3"):
            assert ring(path, word)
        assert bell.drain() == [b"1", b"2", b"3"]


def test_a_waiting_coroutine_hears_the_payload(path: Path) -> None:
    async def listen() -> list[bytes]:
        with Bell.bind(path) as bell:
            asyncio.get_running_loop().call_later(0.02, ring, path, b"hello")
            return await asyncio.wait_for(bell.heard(), PATIENCE_S)

    assert asyncio.run(listen()) == [b"hello"]


def test_ringing_where_nobody_listens_is_harmless(path: Path) -> None:
    assert not ring(path)
    Bell.bind(path).close()
    assert not ring(path)
    assert not ring(path.parent / "no" / "folder" / "bell.sock")


def test_a_flooded_bell_never_blocks_the_ringer(path: Path) -> None:
    with Bell.bind(path) as bell:
        delivered = [ring(path) for _ in range(5000)]
        assert delivered[0] and not delivered[-1]
        assert bell.wait(0)


def test_a_successor_takes_the_path_over(path: Path) -> None:
    with Bell.bind(path) as old, Bell.bind(path) as new:
        ring(path, b"for the new one")
        assert new.drain() == [b"for the new one"]
        assert old.drain() == []


def test_only_our_account_may_ring(path: Path) -> None:
    with Bell.bind(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
