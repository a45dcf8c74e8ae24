"""One web door at a time: the one that is recorded on disk is ended before the next one binds."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
from pathlib import Path

log = logging.getLogger(__name__)

RECORD = "service.json"
END_WITHIN_S = 8.0


def started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def take_over(state_dir: Path) -> None:
    """End the recorded predecessor, if that very process still runs, and record ourselves."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    record = state_dir / RECORD
    before = _read(record)
    if before is not None and before[0] != os.getpid():
        _end(*before)
    _write(record, os.getpid(), started_ticks(os.getpid()) or 0)


def give_up(state_dir: Path) -> None:
    """Take our record away, if it is still ours."""
    record = state_dir / RECORD
    found = _read(record)
    if found is not None and found[0] == os.getpid():
        record.unlink(missing_ok=True)


def _read(record: Path) -> tuple[int, int] | None:
    """(pid, start ticks); a record that cannot be read names nobody."""
    try:
        found = json.loads(record.read_text())
        return int(found["pid"]), int(found["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(record: Path, pid: int, started: int) -> None:
    temporary = record.with_name(f"{record.name}.{pid}")
    temporary.write_text(json.dumps({"pid": pid, "started": started}))
    temporary.replace(record)


def _end(pid: int, started: int) -> None:
    """SIGTERM, then SIGKILL after a bound. The descriptor names one process for good, so no stranger is ever hit."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    with contextlib.closing(os.fdopen(process, "rb", closefd=True)):
        if started_ticks(pid) != started:
            return
        log.info("ending the predecessor, process %d", pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], END_WITHIN_S)[0]:
                return
        log.error("the predecessor, process %d, does not end", pid)
