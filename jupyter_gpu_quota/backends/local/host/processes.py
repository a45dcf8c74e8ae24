"""Processes as /proc shows them: their parents, their variables, the mark of a job, and how to end all of them.

The service supervisor and the job supervisors read few fields of many processes and start often: a library such as
psutil costs them more memory and time than these lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

_RLIMIT_LOCKS = 10
"""This limit has had no effect since kernel 2.4, and every process inherits its value from its parent."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class ProcessStat(NamedTuple):
    """One process. ``started`` is in clock ticks since boot, ``cpu_ticks`` its user and system time without children.

    ``faults`` counts its page faults.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int
    cpu_ticks: int
    faults: int = 0

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def process(pid: int) -> ProcessStat | None:
    """The process of this id, from /proc/<pid>/stat; None if there is none."""
    if (text := read_proc(pid, "stat")) is None:
        return None
    # The command name stands in brackets and may contain blanks and brackets itself.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]),
        int(fields[11]) + int(fields[12]), int(fields[7]) + int(fields[9]),
    )  # fmt: skip


def processes() -> dict[int, ProcessStat]:
    """Every process that is visible now."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {each.pid: each for each in found if each is not None}


Children = Mapping[int, list[ProcessStat]]


def children(world: Mapping[int, ProcessStat]) -> Children:
    """Processes by the id of their parent."""
    found: dict[int, list[ProcessStat]] = {}
    for each in world.values():
        found.setdefault(each.parent, []).append(each)
    return found


def descendants(root: int, by_parent: Children | None = None) -> set[int]:
    """Living processes below ``root``, itself not counted."""
    by_parent = children(processes()) if by_parent is None else by_parent
    found: dict[int, ProcessStat] = {}
    waiting = list(by_parent.get(root, ()))
    while waiting:
        each = waiting.pop()
        if each.pid not in found:
            found[each.pid] = each
            waiting.extend(by_parent.get(each.pid, ()))
    return {pid for pid, each in found.items() if each.is_alive}


def boot_id() -> str:
    """The id of the machine's present boot: process ids and start ticks are valid within one boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_same_process(pid: int | None, started: int | None) -> bool:
    """Whether the process of this id started at these ticks, and is alive."""
    found = None if pid is None else process(pid)
    return found is not None and found.is_alive and found.started == started


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    found = process(pid)
    return found is not None and found.state == "T"


def new_mark() -> int:
    """A number that marks one tree of processes."""
    return int.from_bytes(os.urandom(7), "big")


def can_take(mark: int) -> bool:
    """Whether every process below this one can take this mark: it may only be lowered below that of another service."""
    hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
    return hard == resource.RLIM_INFINITY or mark <= hard


def take_mark(mark: int) -> None:
    """Mark this process and all that it will fork, in any session and with any environment."""
    with contextlib.suppress(ValueError, OSError):  # inside the tree of another service it cannot be raised again
        resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def find_marked(marks: Iterable[str], session: int | None = None, mark: int | None = None) -> set[int]:
    """Living processes with this mark, with this session, or with all of ``marks`` (``NAME=value``) as variables."""
    wanted = {each.encode() for each in marks}
    return {
        pid
        for pid, each in processes().items()
        if each.is_alive
        and pid != os.getpid()
        and (each.session == session or (mark is not None and mark_of(pid) == mark) or wanted <= _variables(pid))
    }


def members_of_session(session: int, *, started: int, uid: int) -> set[int]:
    """Living processes of a session of this account; none that started before its leader did."""
    return {
        pid
        for pid, each in processes().items()
        if each.is_alive and each.session == session and each.started >= started and user_of(pid) == uid
    }


def mark_of(pid: int) -> int | None:
    """The mark that a process took or inherited; None if there is none, or no such process."""
    for line in (read_proc(pid, "limits") or b"").splitlines():
        if line.startswith(b"Max file locks"):
            hard = line.split()[4]
            return int(hard) if hard.isdigit() else None
    return None


def _variables(pid: int) -> set[bytes]:
    return set((read_proc(pid, "environ") or b"").split(b"\0"))


def variables_of(pid: int) -> dict[str, str] | None:
    """The variables that a process was started with; None where they cannot be read."""
    if (text := read_proc(pid, "environ")) is None:
        return None
    pairs = (each.partition(b"=") for each in text.split(b"\0") if b"=" in each)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def user_of(pid: int) -> int | None:
    """The id of the user that a process runs as; None where it cannot be read."""
    numbers = status_numbers(pid, b"Uid:")
    return numbers[1] if numbers else None


def status_numbers(pid: int, field: bytes) -> list[int]:
    """The numbers of one line of /proc/<pid>/status, such as ``Uid:``; empty where it cannot be read."""
    for line in (read_proc(pid, "status") or b"").splitlines():
        if line.startswith(field):
            return list(map(int, line.split()[1:]))
    return []


def read_proc(pid: int, name: str) -> bytes | None:
    """A file of /proc/<pid>; None if there is no such process, or this one may not read the file."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return None


# --- effects ----------------------------------------------------------------------------------------------------------
def die_with_parent(parent: int, number: int) -> bool:
    """Have the kernel send this process a signal when its parent dies; False if the parent is dead already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel does not let a process adopt orphans")


def send(pid: int, number: int) -> bool:
    """Send a signal; False if the process is gone, or this one may not signal it."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_all(find: Callable[[], set[int]]) -> set[int]:
    """SIGKILL every process that ``find`` lists, and those that they fork meanwhile. Returns all of them.

    All are stopped first, until no new one appears: a process that is stopped cannot fork.
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
