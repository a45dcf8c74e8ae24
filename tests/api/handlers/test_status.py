"""``GET ready`` names the control loops that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.api.state import state_volume
from jupyter_gpu_quota.store.records.activity import LOOP_STATUS_EVERY_MS, KeepNotes, Note
from tests.api.world import now_ms, service_world


@pytest.mark.parametrize(
    ("failing_since", "age_ms", "failing"),
    [
        pytest.param(1, 0, ["idleness"], id="a loop that fails"),
        pytest.param(None, 0, [], id="a loop that works"),
        pytest.param(1, 4 * LOOP_STATUS_EVERY_MS, [], id="a loop of an earlier release"),
    ],
)
def test_loops_that_fail_are_named(failing_since: int | None, age_ms: int, failing: list[str], tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        at = now_ms() - age_ms
        note = Note(kind="loop", subject="idleness", at=at, document={"failing_since": failing_since})
        world.store.record([KeepNotes(notes=(note,))], now=at)
        reply = world.get("ready")
        assert reply.json["failing"] == failing
        assert ("the idleness loop fails" in reply.json["message"]) is bool(failing)


@pytest.mark.parametrize(
    ("led", "begin"), [(True, "Ready, but the"), (False, "Not ready: no scheduler holds the lease; the")]
)
def test_a_full_volume_of_the_state_folder_is_named(
    led: bool, begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_world(tmp_path) as world:
        now = now_ms()
        world.clock = lambda: now
        world.step()
        lease = world.store.lease()
        assert lease is not None
        if not led:
            world.store.release_lease(lease)
        assert "full" not in world.get("ready").json["message"]
        monkeypatch.setattr(state_volume, "has_no_room", lambda folder: True)
        message = world.get("ready").json["message"]
        assert message.startswith(f"{begin} volume of c.GPUQuota.state_dir is full: free space on it"), message


def test_requests_that_arrive_together_get_the_same_reading_of_a_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_volume, "has_no_room", lambda folder: True)

    async def both() -> list[bool]:
        volume = state_volume.StateVolume()
        return await asyncio.gather(*(volume.is_full(Path("/state")) for _ in range(2)))

    assert asyncio.run(both()) == [True, True]


@pytest.mark.parametrize(
    ("account", "found", "expected"),
    [
        (1_000, {"f_bavail": 255, "f_bfree": 9_999}, True),
        (1_000, {"f_bavail": 256, "f_bfree": 9_999}, False),
        (0, {"f_bavail": 0, "f_bfree": 256}, False),
        (0, {"f_bavail": 0, "f_bfree": 255}, True),
        (1_000, {"f_favail": 0, "f_ffree": 9_999}, True),
        (0, {"f_favail": 0, "f_ffree": 1}, False),
        (1_000, {"f_files": 0, "f_favail": 0, "f_ffree": 0}, False),
        (1_000, {"f_blocks": 0, "f_bavail": 0, "f_bfree": 0}, False),
    ],
    ids=[
        "below 1 MiB for users", "1 MiB", "reserved blocks are root's", "none for root",
        "no files for users", "files for root", "files are not counted", "blocks are not counted",
    ],
)  # fmt: skip
def test_a_volume_is_full_for_the_account_of_the_service(
    account: int, found: dict[str, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"f_blocks": 10_000, "f_bavail": 9_999, "f_bfree": 9_999, "f_frsize": 4_096}
    known |= {"f_files": 10_000, "f_favail": 9_999, "f_ffree": 9_999, **found}
    fake = SimpleNamespace(statvfs=lambda folder: SimpleNamespace(**known), geteuid=lambda: account)
    monkeypatch.setattr(state_volume, "os", fake)
    assert state_volume.has_no_room(Path("/state")) is expected
