"""One service at a time: the processes that are recorded on disk are ended before the next one binds.

The keeper lives on this module, so it goes without ``dataclasses``, which loads two MiB of the compiler's modules.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

RECORD = "service.json"
END_WITHIN_S = 8.0


class Process(NamedTuple):
    """One process for good: its id, and when it started in clock ticks since boot."""

    pid: int
    started: int

    @property
    def lives(self) -> bool:
        return started_ticks(self.pid) == self.started


class Service(NamedTuple):
    """A keeper, and the processes it keeps, by name."""

    keeper: Process
    children: Mapping[str, Process]


def process_of(pid: int) -> Process:
    """The process that has this id now."""
    return Process(pid, started_ticks(pid) or 0)


def started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def take_over(state_dir: Path) -> None:
    """End the recorded predecessor and what it kept, if those very processes still run, and record ourselves."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    before = recorded(state_dir)
    if before is not None and before.keeper.pid != os.getpid():
        _end(before.keeper)
        for child in (recorded(state_dir) or before).children.values():
            _end(child)  # a killed keeper's children end by themselves, but for one that is frozen
    record(state_dir, {})


def record(state_dir: Path, children: Mapping[str, Process]) -> bool:
    """Write down this process and the ones it keeps; False where the disk takes nothing, which is no reason to end."""
    place, keeper = state_dir / RECORD, process_of(os.getpid())
    temporary = place.with_name(f"{place.name}.{keeper.pid}")
    text = json.dumps(_told(keeper) | {"children": {name: _told(child) for name, child in children.items()}})
    try:
        temporary.write_text(text)
        temporary.replace(place)
    except OSError as error:
        log.debug("%s cannot be written: %s", place, error)
        return False
    return True


def give_up(state_dir: Path) -> None:
    """Take our record away, if it is still ours."""
    found = recorded(state_dir)
    if found is not None and found.keeper.pid == os.getpid():
        (state_dir / RECORD).unlink(missing_ok=True)


def recorded(state_dir: Path) -> Service | None:
    """Who is on record; a record that cannot be read names nobody."""
    try:
        found = json.loads((state_dir / RECORD).read_text())
        children = {str(name): _read(child) for name, child in found.get("children", {}).items()}
        return Service(_read(found), children)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def lives(state_dir: Path, name: str) -> bool:
    """Whether the kept process of this name is on record, and runs."""
    found = recorded(state_dir)
    return found is not None and name in found.children and found.children[name].lives


def _read(found: Mapping[str, object]) -> Process:
    return Process(int(str(found["pid"])), int(str(found["started"])))


def _told(process: Process) -> dict[str, object]:
    return {"pid": process.pid, "started": process.started}


def _ends(descriptor: int) -> bool:
    """Whether a process ends in time; by poll, which takes descriptors of any number."""
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return bool(ended.poll(END_WITHIN_S * 1000))


def _end(process: Process) -> None:
    """SIGTERM, then SIGKILL after a bound. The descriptor names one process for good, so no stranger is ever hit."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, OverflowError):  # no number of a process
        return
    with contextlib.closing(os.fdopen(descriptor, "rb", closefd=True)):
        if not process.lives:
            return
        log.info("ending the predecessor, process %d", process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            if _ends(descriptor):
                return
        log.error("the predecessor, process %d, does not end", process.pid)
