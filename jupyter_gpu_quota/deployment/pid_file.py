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

from ..backends.local.host.processes import is_same_process, process

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
        return is_same_process(self.pid, self.started)


class Service(NamedTuple):
    """A supervisor and its child processes, by name."""

    supervisor: Process
    children: Mapping[str, Process]


def process_of(pid: int) -> Process:
    """The process that has this id now."""
    found = process(pid)
    return Process(pid, found.started if found is not None and found.alive else 0)


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
    text = json.dumps(supervisor._asdict() | {"children": {name: child._asdict() for name, child in children.items()}})
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


def _end(processes: Iterable[Process]) -> None:
    """Stop these processes together: SIGTERM and SIGCONT, then SIGKILL for those that still run.

    A process descriptor names one process for ever, so no other process can be hit.
    """
    with contextlib.ExitStack() as open_descriptors:
        running = dict[int, Process]()
        for each in processes:
            with contextlib.suppress(OSError, OverflowError):  # there is no process of this id
                descriptor = os.pidfd_open(each.pid)
                open_descriptors.callback(os.close, descriptor)
                if each.lives:
                    running[descriptor] = each
        if running:
            pids = ", ".join(str(each.pid) for each in running.values())
            log.info("stopping the previous service, processes %s", pids)
        for numbers, within_s in (((signal.SIGTERM, signal.SIGCONT), END_WITHIN_S), ((signal.SIGKILL,), GONE_WITHIN_S)):
            for number in numbers:
                for descriptor in running:
                    with contextlib.suppress(OSError):  # it has ended, or changed its account
                        signal.pidfd_send_signal(descriptor, number)
            _wait(running, within_s)
        for each in running.values():
            log.error("process %d of the previous service does not end", each.pid)


def _wait(running: dict[int, Process], within_s: float) -> None:
    """Wait so long for their ends; those that still run stay in ``running``."""
    ended, deadline = select.poll(), time.monotonic() + within_s
    for descriptor in running:
        ended.register(descriptor, select.POLLIN)
    while running and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in ended.poll(left_s * 1000):
            ended.unregister(descriptor)
            del running[descriptor]
