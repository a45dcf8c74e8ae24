"""Attempts that were lost before their commands ran, and the pause before the next one starts.

The machine may have the same failure for hours, such as a full disk, and no such attempt uses a retry. An attempt that
waits holds its devices, so the losses in a row are limited.
"""

from __future__ import annotations

import contextlib

from .attempt_records import paths_of_ranks
from .record_files import read_record

FIRST_PAUSE_S = 15
"""Each pause is twice the one before."""

MOST_LOST = 4
"""So many attempts in a row are lost; the same failure of the next one is a failure of the job."""

MAX_READ = 20
"""So many earlier attempts are read."""


def may_start(state_dir: str, job: str, attempt: int, now: int) -> bool:
    """Whether the pause after the attempts that were lost just before this one is over; ``now`` in ms since 1970."""
    lost_at = lost_starts(state_dir, job, attempt)
    if not lost_at:
        return True
    pause_s = FIRST_PAUSE_S << (len(lost_at) - 1)
    return not 0 <= now - lost_at[0] < 1000 * pause_s


def lost_starts(state_dir: str, job: str, attempt: int) -> list[int]:
    """When the attempts just before this one were lost before their commands ran, the newest first; four at most.

    An attempt that ended while it waited, such as by a preemption, does not count.
    """
    found = list[int]()
    for earlier in range(attempt - 1, max(0, attempt - 1 - MAX_READ), -1):
        ends, has_run = _ends_of(state_dir, job, earlier)
        if ends:
            found.append(max(ends))
        if len(found) == MOST_LOST or (has_run and not ends):
            break
    return found


def _ends_of(state_dir: str, job: str, attempt: int) -> tuple[list[int], bool]:
    """When ranks of an attempt were lost before their commands ran, and whether any rank had a process."""
    ends, has_run = list[int](), False
    with contextlib.suppress(OSError):  # what the disk does not return is not known to have run
        for paths in paths_of_ranks(state_dir, job, attempt):
            status = read_record(paths.status) or {}
            has_run |= "pid" in status
            if "why_lost" in status and isinstance(status.get("ended_at"), int):
                ends.append(status["ended_at"])
    return ends, has_run
