"""``GET ready`` names the control loops that fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.api.handlers import status
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
    full = SimpleNamespace(f_blocks=1_000, f_bavail=1, f_frsize=4_096)
    with service_world(tmp_path) as world:
        now = now_ms()
        world.clock = lambda: now
        world.step()
        lease = world.store.lease()
        assert lease is not None
        if not led:
            world.store.release_lease(lease)
        assert "full" not in world.get("ready").json["message"]
        monkeypatch.setattr(status, "os", SimpleNamespace(statvfs=lambda folder: full))
        message = world.get("ready").json["message"]
        assert message.startswith(f"{begin} volume of the state folder is full, and no scheduler can take over"), (
            message
        )
