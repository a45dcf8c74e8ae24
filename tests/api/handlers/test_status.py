"""``GET ready`` names the control loops that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

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
