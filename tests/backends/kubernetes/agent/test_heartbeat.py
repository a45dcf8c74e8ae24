"""The sign of life of a node's agent."""

from __future__ import annotations

import os
from pathlib import Path

from jupyter_gpu_quota.backends.kubernetes.agent.heartbeat import Heartbeat


def age(path: Path) -> float | None:
    """Set the time of the file back; returns the time that it had."""
    before = path.stat().st_mtime if path.exists() else None
    if before is not None:
        os.utime(path, (1000, 1000))
    return before


def test_the_file_is_touched_only_when_every_part_has_turned(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    heartbeat = Heartbeat(str(file))
    samples, orders = heartbeat.part(), heartbeat.part()
    for _ in range(3):
        samples()
    assert age(file) is None, "orders hang"
    orders()
    assert age(file) is not None
    for _ in range(3):
        orders()
    assert age(file) == 1000, "samples hang"
    samples()
    assert age(file) != 1000


def test_without_a_file_parts_turn(tmp_path: Path) -> None:
    Heartbeat(None).part()()
