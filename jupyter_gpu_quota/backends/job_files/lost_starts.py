"""Attempts that were lost before their commands ran, and the pause before the next one starts.

The machine may have the same failure for hours, such as a full disk, and no such attempt uses a retry.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from .paths import job_directory
from .record_files import read_record

FIRST_PAUSE_S, MAX_PAUSE_S = 15, 300
"""Each pause is twice the one before, up to the second."""

MAX_COUNTED = 6


def may_start(state_dir: str, job: str, attempt: int, now: int) -> bool:
    """Whether the pause after the attempts that were lost just before this one is over; ``now`` in ms since 1970."""
    lost_at = lost_starts(state_dir, job, attempt)
    if not lost_at:
        return True
    pause_s = min(FIRST_PAUSE_S << (len(lost_at) - 1), MAX_PAUSE_S)
    return not 0 <= now - lost_at[0] < 1000 * pause_s


def lost_starts(state_dir: str, job: str, attempt: int) -> list[int]:
    """When the attempts just before this one were lost before their commands ran, the newest first; six at most."""
    found = list[int]()
    for earlier in range(attempt - 1, max(0, attempt - 1 - MAX_COUNTED), -1):
        if not (ends := _lost_ranks(state_dir, job, earlier)):
            break
        found.append(max(ends))
    return found


def _lost_ranks(state_dir: str, job: str, attempt: int) -> list[int]:
    """When ranks of an attempt were lost before their commands ran; none where the disk does not return that."""
    found = list[int]()
    with contextlib.suppress(OSError):
        for path in Path(job_directory(state_dir, job), "attempts", str(attempt)).glob("rank-*/status.json"):
            status = read_record(str(path)) or {}
            if "why_lost" in status and isinstance(status.get("ended_at"), int):
                found.append(status["ended_at"])
    return found
