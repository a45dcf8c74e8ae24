"""One service at a time: the processes in the pid file are stopped before a new service listens.

The supervisor imports this module, which avoids ``dataclasses``: that module loads two MiB of the compiler's modules.
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
"""A supervisor that is running stops its children within 4 s of SIGTERM."""

GONE_WITHIN_S = 1.0
"""After SIGKILL only the kernel can hold a process."""


class Process(NamedTuple):
    """Identifies one process, also after its id is used again: the id, and its start in clock ticks since boot."""

    pid: int
    started: int

    @property
    def lives(self) -> bool:
        return started_ticks(self.pid) == self.started


class Service(NamedTuple):
    """A supervisor and its child processes, by name."""

    supervisor: Process
    children: Mapping[str, Process]


def process_of(pid: int) -> Process:
    """The process that has this id now."""
    return Process(pid, started_ticks(pid) or 0)


def started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is no such process."""
    fields = _stat(pid)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def marks_of(pid: int) -> tuple[str, ...] | None:
    """Counters that grow while a process is active: page faults and CPU time. None while it waits for a disk."""
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
    """Stop the previous service's processes if they still run, and write the pid file of this one."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    before = recorded(state_dir)
    if before is not None and before.supervisor.pid != os.getpid():
        _end((before.supervisor, *before.children.values()))
        if (late := recorded(state_dir)) is not None:
            _end(late.children.values())  # children that it started meanwhile
    record(state_dir, {})


def record(state_dir: Path, children: Mapping[str, Process]) -> bool:
    """Write the pid file: this process and its children. Returns False where it cannot be written."""
    place, supervisor = state_dir / RECORD, process_of(os.getpid())
    temporary = place.with_name(f"{place.name}.{supervisor.pid}")
    text = json.dumps(_told(supervisor) | {"children": {name: _told(child) for name, child in children.items()}})
    try:
        temporary.write_text(text)
        temporary.chmod(0o600)
        temporary.replace(place)
    except OSError as error:
        log.debug("%s cannot be written: %s", place, error)
        return False
    return True


def give_up(state_dir: Path) -> None:
    """Remove the pid file, if it is still this process's."""
    found = recorded(state_dir)
    if found is not None and found.supervisor.pid == os.getpid():
        (state_dir / RECORD).unlink(missing_ok=True)


def recorded(state_dir: Path) -> Service | None:
    """The service in the pid file; None where there is none, or it cannot be read."""
    try:
        found = json.loads((state_dir / RECORD).read_text())
        children = {str(name): _read(child) for name, child in found.get("children", {}).items()}
        return Service(_read(found), children)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def lives(state_dir: Path, name: str) -> bool:
    """Whether the child process of this name is in the pid file, and runs."""
    found = recorded(state_dir)
    return found is not None and name in found.children and found.children[name].lives


def _read(found: Mapping[str, object]) -> Process:
    return Process(int(str(found["pid"])), int(str(found["started"])))


def _told(process: Process) -> dict[str, object]:
    return {"pid": process.pid, "started": process.started}


def _end(processes: Iterable[Process]) -> None:
    """Stop these processes together: SIGTERM and SIGCONT, then SIGKILL for those that still run.

    A process descriptor names one process for ever, so no other process can be hit.
    """
    with contextlib.ExitStack() as open_descriptors:
        running = {}
        for process in processes:
            if (descriptor := _descriptor(process)) is not None:
                open_descriptors.callback(os.close, descriptor)
                running[descriptor] = process
        if running:
            log.info(
                "stopping the previous service, processes %s", ", ".join(str(each.pid) for each in running.values())
            )
        _send(running, signal.SIGTERM)
        _send(running, signal.SIGCONT)
        _wait(running, END_WITHIN_S)
        _send(running, signal.SIGKILL)
        _wait(running, GONE_WITHIN_S)
        for process in running.values():
            log.error("process %d of the previous service does not end", process.pid)


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
