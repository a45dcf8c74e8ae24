"""Attempts that were lost before their commands ran, and the pause before the next one starts.

The machine may have the same failure for hours, such as a full disk, and no such attempt uses a retry. An attempt that
waits holds its devices, so the losses in a row are limited.
"""

from __future__ import annotations

import contextlib
import errno

from .attempt_records import paths_of_ranks
from .record_files import read_record

FIRST_PAUSE_S = 15
"""Each pause is twice the one before."""

MOST_LOST = 4
"""So many attempts in a row are lost; the same failure of the next one is a failure of the job."""

MAX_READ = 20
"""So many earlier attempts are read."""

TEMPORARY = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ENFILE, errno.EMFILE}
    | {errno.EROFS}
)
"""The errors of a machine that may pass: a full or failing disk, too little memory, too many processes or files."""


def is_temporary(error: BaseException | None) -> bool:
    """Whether an error, or the cause of it, is one of TEMPORARY."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in TEMPORARY:
            return True
        error = error.__cause__
    return False


def may_be_lost(state_dir: str, job: str, attempt: int, code: str = "") -> bool:
    """Whether a failure that may pass is a loss: it was not the same in several attempts before this one."""
    return len(lost_starts(state_dir, job, attempt, code)) < MOST_LOST


def may_start(state_dir: str, job: str, attempt: int, now: int, code: str = "") -> bool:
    """Whether the pause after the attempts that were lost just before this one is over; ``now`` in ms since 1970."""
    lost_at = lost_starts(state_dir, job, attempt, code)
    if not lost_at:
        return True
    pause_s = FIRST_PAUSE_S << (len(lost_at) - 1)
    return not 0 <= now - lost_at[0] < 1000 * pause_s


def lost_starts(state_dir: str, job: str, attempt: int, code: str = "") -> list[int]:
    """When the attempts just before this one were lost before their commands ran, the newest first; four at most.

    An attempt that ended while it waited, such as by a preemption, does not count. ``code`` begins the reasons of such
    losses where the records have others, too.
    """
    found = list[int]()
    for earlier in range(attempt - 1, max(0, attempt - 1 - MAX_READ), -1):
        ends, has_run = _ends_of(state_dir, job, earlier, code)
        if ends:
            found.append(max(ends))
        if len(found) == MOST_LOST or (has_run and not ends):
            break
    return found


def _ends_of(state_dir: str, job: str, attempt: int, code: str) -> tuple[list[int], bool]:
    """When ranks of an attempt were lost before their commands ran, and whether any rank had a process."""
    ends, has_run = list[int](), False
    with contextlib.suppress(OSError):  # what the disk does not return is not known to have run
        for paths in paths_of_ranks(state_dir, job, attempt):
            status = read_record(paths.status) or {}
            has_run |= "pid" in status
            is_lost = "why_lost" in status and str(status["why_lost"]).startswith(code)
            if is_lost and isinstance(status.get("ended_at"), int):
                ends.append(status["ended_at"])
    return ends, has_run
