"""Processes as /proc shows them: who descends from whom, who carries a job's mark, and how to end all of them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

_RLIMIT_LOCKS = 10
"""No kernel since 2.4 limits anything by it, and what it is set to is inherited by everything that is forked."""


class ProcessStat(NamedTuple):
    """One process. ``started`` is in clock ticks since boot, ``cpu_ticks`` user and system time of itself."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int
    cpu_ticks: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def process(pid: int) -> ProcessStat | None:
    """What /proc/<pid>/stat says; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command name stands in brackets and may hold blanks and brackets itself.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]),
        int(fields[11]) + int(fields[12]),
    )  # fmt: skip


def processes() -> dict[int, ProcessStat]:
    """Every process that can be seen now."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {each.pid: each for each in found if each is not None}


Children = Mapping[int, list[ProcessStat]]


def children(world: Mapping[int, ProcessStat]) -> Children:
    """Processes by the id of their parent."""
    found: dict[int, list[ProcessStat]] = {}
    for each in world.values():
        found.setdefault(each.parent, []).append(each)
    return found


def descendants(root: int, born: Children | None = None) -> set[int]:
    """Living processes below ``root``, itself not counted."""
    by_parent = children(processes()) if born is None else born
    found: dict[int, ProcessStat] = {}
    waiting = list(by_parent.get(root, ()))
    while waiting:
        each = waiting.pop()
        if each.pid not in found:
            found[each.pid] = each
            waiting.extend(by_parent.get(each.pid, ()))
    return {pid for pid, each in found.items() if each.alive}


def boot_id() -> str:
    """Which boot of the machine this is: process ids and start ticks mean nothing beyond it."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_same_process(pid: int | None, started: int | None) -> bool:
    """Whether the process of this id is still the one that started at these ticks, and lives."""
    found = None if pid is None else process(pid)
    return found is not None and found.alive and found.started == started


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    found = process(pid)
    return found is not None and found.state == "T"


def new_mark() -> int:
    """A number that no other tree is marked with."""
    return int.from_bytes(os.urandom(7), "big")


def take_mark(mark: int) -> None:
    """Mark this process and all that it will fork, whatever sessions and environments those give themselves."""
    with contextlib.suppress(ValueError, OSError):  # inside the tree of another service it cannot be raised again
        resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def marked(marks: Iterable[str], session: int | None = None, mark: int | None = None) -> set[int]:
    """Living processes that took a mark, or carry all of ``marks`` (``NAME=value``) as variables, or have a session."""
    wanted = [each.encode() for each in marks]
    return {
        pid
        for pid, each in processes().items()
        if each.alive
        and pid != os.getpid()
        and (each.session == session or (mark is not None and mark_of(pid) == mark) or _carries(pid, wanted))
    }


def mark_of(pid: int) -> int | None:
    """The mark that a process took or inherited; None if there is none, or no such process."""
    for line in _read(f"/proc/{pid}/limits").splitlines():
        if line.startswith(b"Max file locks"):
            hard = line.split()[4]
            return int(hard) if hard.isdigit() else None
    return None


def _carries(pid: int, marks: list[bytes]) -> bool:
    variables = _read(f"/proc/{pid}/environ").split(b"\0")
    return all(mark in variables for mark in marks)


def _read(path: str) -> bytes:
    """What a file of /proc says; nothing if the process is gone or not ours to look at."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def send(pid: int, number: int) -> bool:
    """Send a signal; False if the process is gone or not ours to signal."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_all(find: Callable[[], set[int]]) -> set[int]:
    """SIGKILL everything that ``find`` lists, so that nothing forks away meanwhile. Returns what was listed last.

    All are stopped first, round by round until no new one appears: a process that is stopped cannot fork.
    """
    stopped: set[int] = set()
    for _ in range(50):
        fresh = find() - stopped
        if not fresh:
            break
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        send(pid, signal.SIGKILL)
    return stopped
