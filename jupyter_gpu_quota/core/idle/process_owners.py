"""The kernel or program that each process on a notebook's GPU belongs to, by process ids and start times.

A server reports the process ids of its kernels and programs in its own pid namespace; readings have every process on a
device and its parents with their ids in that namespace. A process id with a start time identifies one process.
Source: docs/idle.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..samples import Place, ProcessUse

STARTING_TICKS = 6_000
"""One minute: a process younger than this at the report may belong to a kernel that the server did not list yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The first process of each kernel and program, by its name in the report, in one namespace.

    ``ticks``: the machine's clock when the server listed them, in the unit of a process's start; None: it is not
    reported, and so no process has a known owner. ``has_unknown_root``: the process of some kernel is not known.
    """

    namespace: str = ""
    ticks: int | None = None
    by_process: Mapping[tuple[int, int], str] = field(default_factory=dict)
    has_unknown_root: bool = False

    def owner(self, process: ProcessUse) -> str | None:
        """The kernel or program that a process is or descends from; the nearest one where there are several."""
        names = (self._named(place) for place in process.places)
        return next((name for name in names if name is not None), None)

    def _named(self, place: Place) -> str | None:
        namespace, pid, started = place
        elsewhere = namespace and self.namespace and namespace != self.namespace
        return None if elsewhere else self.by_process.get((pid, started))

    def is_root(self, process: ProcessUse) -> bool:
        """Whether a process is the first one of a kernel or program, not one below it."""
        return bool(process.places) and self._named(process.places[0]) is not None

    def predates_report(self, process: ProcessUse) -> bool:
        """Whether a process started long enough before the report for its kernel to be in it."""
        return self.ticks is not None and bool(process.places) and process.places[0][2] < self.ticks - STARTING_TICKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOwners:
    """The owners of the processes on a notebook's devices. ``holders`` are kernels and programs, by name.

    ``strays`` descend from none of them any more. ``users`` are those that used a device, with when they did at the
    latest by the reading, None where the reading has no instant.
    """

    holders: frozenset[str]
    strays: tuple[ProcessUse, ...]
    users: Mapping[str, int | None]


def process_owners(roots: Roots, processes: Iterable[ProcessUse]) -> ProcessOwners | None:
    """The owner of each process; None where one of them may belong to a kernel that the report does not name."""
    holders, strays, users = set[str](), list[ProcessUse](), dict[str, int | None]()
    for process in processes:
        name = roots.owner(process)
        if name is None and (roots.has_unknown_root or not roots.predates_report(process)):
            return None
        if name is None:
            strays.append(process)
        else:
            holders.add(name)
        if process.percent:
            user = name or stray_name(process)
            users[user] = _later(users[user], process.used_at) if user in users else process.used_at
    return ProcessOwners(holders=frozenset(holders), strays=tuple(strays), users=users)


def suspendable(roots: Roots, processes: Iterable[ProcessUse], kernels: Iterable[str]) -> dict[str, int]:
    """Which of these kernels can be suspended, with the MiB that each has on the device.

    Only one whose own process, and no other below it, is on one device, with memory that is known.
    """
    held = [(roots.owner(process), process) for process in processes]
    return {
        kernel: process.memory_mib
        for kernel in kernels
        for process in [process for name, process in held if name == kernel][:1]
        if process.memory_mib and sum(name == kernel for name, _ in held) == 1 and roots.is_root(process)
    }


def stray_name(process: ProcessUse) -> str:
    """The name of a process that belongs to no kernel and no program, with its id in its own container."""
    return f"process {process.places[0][1] if process.places else process.handle}"


def _later(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
