"""The main loop of the controllers process: scheduling and retention in turn, whatever the clock does."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import pytest

from jupyter_gpu_quota.controllers import main
from jupyter_gpu_quota.controllers.loop import MAX_WAIT_MS

HOUR_MS = 3_600_000


class Process:
    """The parts of the process that the main loop calls; time passes while it waits."""

    def __init__(self, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns, self.now, self.monotonic = turns, 10 * HOUR_MS, 1000.0
        self.waits, self.retained_at = list[float](), list[float]()
        monkeypatch.setattr(main, "now_ms", lambda: self.now)
        monkeypatch.setattr(main.time, "monotonic", lambda: self.monotonic)

    def is_requested(self) -> bool:
        self.turns -= 1
        return self.turns < 0

    def schedule(self) -> int:
        """One turn, in which the clock is set back."""
        at, self.now = self.now + 1_000, self.now - HOUR_MS
        return at

    def retain(self) -> int:
        self.retained_at.append(self.monotonic)
        return self.now + 30_000

    def wait(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        self.now += int(timeout_s * 1000)
        self.monotonic += timeout_s


def test_a_clock_that_is_set_back_delays_neither_scheduling_nor_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    process, parts = Process(4, monkeypatch), Mock()
    parts.others = ()
    parts.scheduling.run, parts.retention.run = process.schedule, process.retain
    main.run(cast(Any, parts), cast(Any, process), cast(Any, process), Mock())
    assert max(process.waits) * 1000 == MAX_WAIT_MS and len(process.waits) == 4
    assert [at - 1000 for at in process.retained_at] == [0, 30, 60, 90]
