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

from ..backends.job_files.folders import make_passable
from ..backends.local.host.processes import is_same_process, process

log = logging.getLogger(__name__)

PID_FILE = "service.json"
STOPS_WITHIN_S = 4.5
"""A running supervisor stops its children within 4 s of SIGTERM."""

KILLED_WITHIN_S = 1.0
"""After SIGKILL only the kernel can delay the end of a process."""


class Process(NamedTuple):
    """Identifies one process, also after its id is used again: the id, and its start in clock ticks since boot."""

    pid: int
    started: int

    @property
    def is_running(self) -> bool:
        return is_same_process(self.pid, self.started)


class Service(NamedTuple):
    """A supervisor and its child processes, by name."""

    supervisor: Process
    children: Mapping[str, Process]


def process_of(pid: int) -> Process:
    """The process that has this id now."""
    found = process(pid)
    return Process(pid, found.started if found is not None and found.is_alive else 0)


def take_over(state_dir: Path) -> None:
    """Stop the previous service's processes if they still run, and write the pid file of this one."""
    make_passable(state_dir)
    before = read_pid_file(state_dir)
    if before is not None and before.supervisor.pid != os.getpid():
        _stop_processes((before.supervisor, *before.children.values()))
        if (after := read_pid_file(state_dir)) is not None:
            _stop_processes(after.children.values())  # children that it started meanwhile
    write_pid_file(state_dir, {})


def write_pid_file(state_dir: Path, children: Mapping[str, Process]) -> bool:
    """Write the pid file: this process and its children. Returns False where it cannot be written."""
    place, supervisor = state_dir / PID_FILE, process_of(os.getpid())
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


def remove_pid_file(state_dir: Path) -> None:
    """Remove the pid file, if it is still this process's."""
    found = read_pid_file(state_dir)
    if found is not None and found.supervisor.pid == os.getpid():
        (state_dir / PID_FILE).unlink(missing_ok=True)


def read_pid_file(state_dir: Path) -> Service | None:
    """The service in the pid file; None where there is none, or it cannot be read."""
    try:
        found = json.loads((state_dir / PID_FILE).read_text())
        children = {str(name): _process_from(child) for name, child in found.get("children", {}).items()}
        return Service(_process_from(found), children)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def child_is_running(state_dir: Path, name: str) -> bool:
    """Whether the pid file has a child process of this name, and it runs."""
    found = read_pid_file(state_dir)
    return found is not None and name in found.children and found.children[name].is_running


def _process_from(found: Mapping[str, object]) -> Process:
    return Process(int(str(found["pid"])), int(str(found["started"])))


def _stop_processes(processes: Iterable[Process]) -> None:
    """Stop these processes together: SIGTERM and SIGCONT, then SIGKILL for those that still run.

    A process descriptor always refers to the same process, so no other process gets the signal.
    """
    with contextlib.ExitStack() as open_descriptors:
        running = dict[int, Process]()
        for each in processes:
            with contextlib.suppress(OSError, OverflowError):  # there is no process of this id
                descriptor = os.pidfd_open(each.pid)
                open_descriptors.callback(os.close, descriptor)
                if each.is_running:
                    running[descriptor] = each
        if running:
            pids = ", ".join(str(each.pid) for each in running.values())
            log.info("stopping the previous service, processes %s", pids)
        stop, kill = (signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)
        for signals, within_s in ((stop, STOPS_WITHIN_S), (kill, KILLED_WITHIN_S)):
            for number in signals:
                for descriptor in running:
                    with contextlib.suppress(OSError):  # it has ended, or changed its account
                        signal.pidfd_send_signal(descriptor, number)
            _wait_for_exits(running, within_s)
        for each in running.values():
            log.error("process %d of the previous service does not end", each.pid)


def _wait_for_exits(running: dict[int, Process], within_s: float) -> None:
    """Wait until the processes ended, ``within_s`` at most; those that still run stay in ``running``."""
    ended, deadline = select.poll(), time.monotonic() + within_s
    for descriptor in running:
        ended.register(descriptor, select.POLLIN)
    while running and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in ended.poll(left_s * 1000):
            ended.unregister(descriptor)
            del running[descriptor]
