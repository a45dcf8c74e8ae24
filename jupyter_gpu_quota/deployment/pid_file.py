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
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

RECORD = "service.json"
END_WITHIN_S = 4.5
"""A keeper that obeys has ended its children within 4 s."""

GONE_WITHIN_S = 1.0
"""After SIGKILL only the kernel can hold a process."""


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
    fields = _stat(pid)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def marks_of(pid: int) -> tuple[str, ...] | None:
    """What grows while a process does anything: its page faults and its CPU time. None while it waits for a disk."""
    fields = _stat(pid)
    return None if fields[0] == "D" else (fields[7], fields[9], fields[11], fields[12])


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; those of one that has ended where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ["X", *["0"] * 50]
    return stat.rpartition(")")[2].split()


def take_over(state_dir: Path) -> None:
    """End the recorded predecessor and what it kept, if those very processes still run, and record ourselves."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    before = recorded(state_dir)
    if before is not None and before.keeper.pid != os.getpid():
        _end((before.keeper, *before.children.values()))
        if (late := recorded(state_dir)) is not None:
            _end(late.children.values())  # what it started while it was being ended
    record(state_dir, {})


def record(state_dir: Path, children: Mapping[str, Process]) -> bool:
    """Write down this process and the ones it keeps; False where the disk takes nothing, which is no reason to end."""
    place, keeper = state_dir / RECORD, process_of(os.getpid())
    temporary = place.with_name(f"{place.name}.{keeper.pid}")
    text = json.dumps(_told(keeper) | {"children": {name: _told(child) for name, child in children.items()}})
    try:
        temporary.write_text(text)
        temporary.chmod(0o600)
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


def _end(processes: Iterable[Process]) -> None:
    """All at once: SIGTERM, which a stopped process takes when it goes on, then SIGKILL for those that still run.

    A descriptor names one process for good, so no stranger is ever hit.
    """
    with contextlib.ExitStack() as open_descriptors:
        running = {}
        for process in processes:
            if (descriptor := _descriptor(process)) is not None:
                open_descriptors.callback(os.close, descriptor)
                running[descriptor] = process
        if running:
            log.info("ending the predecessor, processes %s", ", ".join(str(each.pid) for each in running.values()))
        _send(running, signal.SIGTERM)
        _send(running, signal.SIGCONT)
        _wait(running, END_WITHIN_S)
        _send(running, signal.SIGKILL)
        _wait(running, GONE_WITHIN_S)
        for process in running.values():
            log.error("the predecessor, process %d, does not end", process.pid)


def _descriptor(process: Process) -> int | None:
    """An open descriptor of this very process; None where it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, OverflowError):  # no number of a process
        return None
    if process.lives:
        return descriptor
    os.close(descriptor)
    return None


def _send(running: Iterable[int], number: int) -> None:
    for descriptor in running:
        with contextlib.suppress(OSError):  # it has ended, or became another account's
            signal.pidfd_send_signal(descriptor, number)


def _wait(running: dict[int, Process], within_s: float) -> None:
    """Wait for their ends for so long, and leave in ``running`` those that go on; poll takes any descriptor."""
    ended, deadline = select.poll(), time.monotonic() + within_s
    for descriptor in running:
        ended.register(descriptor, select.POLLIN)
    while running and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in ended.poll(left_s * 1000):
            ended.unregister(descriptor)
            del running[descriptor]
