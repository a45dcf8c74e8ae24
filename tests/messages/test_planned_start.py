"""The sentence about the start of a waiting job: its instant, and the condition that holds."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.core.reasons import (
    AboveFairShare,
    BackfillReserved,
    NoFreeGpu,
    PausesUsedUp,
    Reason,
    WaitsForDrain,
)
from jupyter_gpu_quota.messages.planned_start import start_sentence

AT = 1_800_000_000_001
"""A millisecond after 2027-01-15 08:00 UTC."""

POSITION: dict[str, Any] = {
    "project": "a", "asked_milli": 1000, "used_milli": 0, "guarantee_milli": 2000, "fair_milli": 2000
}  # fmt: skip


# R34
@pytest.mark.parametrize(
    ("reason", "condition"),
    [
        pytest.param(
            BackfillReserved(**POSITION, within_s=60, delaying=0),
            "Planned start: {} at the latest, based on the time limits of running work.",
            id="a bound, rounded to the next minute",
        ),
        pytest.param(
            AboveFairShare(**POSITION, within_s=60, delaying=2),
            "Planned start: {}, based on the time limits of running work; other work may delay it.",
            id="a reservation that others may enter first",
        ),
        pytest.param(
            NoFreeGpu(**POSITION),
            "Estimated start: {}, based on the time limits of running work, if no other work starts before it.",
            id="no reservation",
        ),
        pytest.param(
            WaitsForDrain(asked_milli=1000),
            "Planned start: {}, when the work that stops for it has ended or its grace is over.",
            id="devices that are being freed for it",
        ),
        pytest.param(
            PausesUsedUp(**POSITION, max_pauses=4, per_s=86_400),
            "Estimated start: {}, when its oldest pause is no longer counted.",
            id="a job that was paused too often",
        ),
    ],
)
def test_only_what_no_other_work_can_delay_is_at_the_latest(reason: Reason, condition: str) -> None:
    assert start_sentence(AT, reason) == condition.format("2027-01-15 08:01 UTC")
