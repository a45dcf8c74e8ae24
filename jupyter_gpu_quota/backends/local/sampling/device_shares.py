"""Whose the processes on a device are, and what each holder used of it.

A process is a workload's whose process it descends from; or whose name its variables, or those of a parent, carry, if
it runs under that workload's account, since anybody sets variables; or whose cgroup it is in, where nobody else is. All
other use is foreign, unless it cannot be told whose it is.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....core.samples import Place, ProcessUse
from ..host.processes import is_same_process
from ..host.servers import Server, account_of
from .process_lineage import cgroup_of, user_of
from .reading import DeviceReading, GpuProcess

UNNAMED_MIB = 256
"""Memory on a device that NVML names no process for; any process that computes holds more."""

MOST_PARENTS = 16
"""More parents than a notebook's program has below its server."""

FORGED = "{} names a notebook of ours in its variables, but does not run under the account of that notebook's server"

MPS = "its processes share the device by MPS, which tells no figures of theirs"


@dataclass(frozen=True, slots=True)
class Owned:
    """Processes of one device by workload; those of nobody of ours; and those of which it cannot be told.

    ``forged`` are those of the foreign ones that name a workload whose they are not.
    """

    by_workload: Mapping[str, list[GpuProcess]]
    foreign: list[GpuProcess]
    untold: list[GpuProcess]
    forged: list[GpuProcess]


class Owners:
    """Whose the processes of one reading are.

    Takes live processes by job, as the executor lists them, and every workload that owns a part of some device.
    ``servers`` are those of notebooks, as the hub recorded them. ``strict``: a notebook of which none was recorded is
    believed by no variable; otherwise everybody is believed who names it.
    """

    def __init__(
        self,
        pids: Mapping[str, frozenset[int]],
        workloads: Iterable[str],
        processes: Iterable[GpuProcess],
        alive: Callable[[int, int], bool] = is_same_process,
        servers: Mapping[str, Server] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._by_pid = {pid: workload for workload, found in pids.items() for pid in found}
        self._servers, self._strict = servers or {}, strict
        self._by_server = {(server.pid, server.started): name for name, server in self._servers.items()}
        self._workloads, self._alive = frozenset(workloads), alive
        self._pids, self._users = pids, dict[str, set[int]]()
        self._found: dict[tuple[object, ...], str | None] = {}
        self._by_cgroup = self._cgroups(processes)

    def _cgroups(self, processes: Iterable[GpuProcess]) -> dict[str, str]:
        """Cgroups in which only one workload is, and not this service."""
        found = defaultdict[str, set[str]](set)
        for each in processes:
            if (owner := self._by_descent(each)) is not None and each.cgroup:
                found[each.cgroup].add(owner)
        ours = cgroup_of(os.getpid())
        return {path: next(iter(who)) for path, who in found.items() if len(who) == 1 and path not in (ours, "/")}

    def _by_descent(self, process: GpuProcess) -> str | None:
        key = (process.lineage, process.claim)
        if key not in self._found:
            self._found[key] = self._looked_up(process)
        return self._found[key]

    def _looked_up(self, process: GpuProcess) -> str | None:
        for pid, started in process.lineage:
            owner = self._by_pid.get(pid)
            if owner is not None and self._alive(pid, started):  # else the number is another process's by now
                return owner
            if (pid, started) in self._by_server:
                return self._by_server[pid, started]
        return process.claim if process.claim in self._workloads and self._may_be_of(process, process.claim) else None

    def _may_be_of(self, process: GpuProcess, workload: str) -> bool:
        """Whether a process that left its tree can be of it: a variable may be set by anybody, a user may not."""
        server = self._servers.get(workload)
        if server is not None:
            own = account_of(process.pid)
            return own == server.account and self._alive(*process.lineage[0])  # else it was another process's account
        return self._may_be_of_job(process, workload) if workload in self._pids else not self._strict

    def _may_be_of_job(self, process: GpuProcess, job: str) -> bool:
        if job not in self._users:
            self._users[job] = {user for pid in self._pids.get(job, ()) if (user := user_of(pid)) is not None}
        users = self._users[job]
        own = user_of(process.pid) if users else None
        return own is None or own in users

    def of(self, processes: Iterable[GpuProcess]) -> Owned:
        """The processes of one device; foreign ones that have ended meanwhile are left out."""
        owned = Owned(defaultdict(list), [], [], [])
        for each in processes:
            owner = self._by_descent(each) or self._by_cgroup.get(each.cgroup or "")
            if owner is not None:
                owned.by_workload[owner].append(each)
            elif each.hidden:
                owned.untold.append(each)
            elif self._alive(*each.lineage[0]):
                owned.foreign.append(each)
                if each.claim in self._workloads:
                    owned.forged.append(each)
        return owned


@dataclass(slots=True)
class Shares:
    """What each holder of a device used of it, and what nobody of ours did; None is unknown, and ``why`` says why.

    Foreign use that is known may have its reason too: that somebody would have it taken for a neighbour's.
    ``processes`` has those holders all of whose processes are known.
    """

    percent: dict[str, int | None] = field(default_factory=dict)
    memory_mib: dict[str, int | None] = field(default_factory=dict)
    processes: dict[str, tuple[ProcessUse, ...]] = field(default_factory=dict)
    foreign_mib: int | None = None
    why: dict[str, str] = field(default_factory=dict)


def shares_of(
    device: DeviceReading, holders: Sequence[str], owners: Owners, away: Collection[str] = frozenset()
) -> Shares:
    """Divide the use of a device among its holders. Nobody is at rest while something speaks against it.

    ``away`` are those of the holders that lent their part: one of which no process is there uses nothing.
    """
    found = Shares()
    if device.processes is None:
        why = device.why.get("processes", "its processes are not told")
        found.percent = found.memory_mib = dict.fromkeys(holders)
        found.why = dict.fromkeys((*holders, "foreign"), why) if holders else {"foreign": why}
        return found
    owned = owners.of(device.processes)
    found.foreign_mib = _sum([each.memory_mib for each in owned.foreign])
    if found.foreign_mib is None:
        found.why["foreign"] = f"memory of {_named(owned.foreign)}: {device.why.get('process_memory', 'not told')}"
    elif owned.forged:
        found.why["foreign"] = FORGED.format(_named(owned.forged))
    hidden = _hidden(device, owned)
    present = [holder for holder in holders if holder not in away or owned.by_workload.get(holder)]
    for holder in holders:
        own = owned.by_workload.get(holder, [])
        alone = present == [holder] and not owned.foreign and not hidden
        use = _use(device, own, alone=alone, hidden=hidden) if holder in present else hidden or 0
        memory = _sum([each.memory_mib for each in own])
        found.percent[holder] = use if isinstance(use, int) else None
        found.memory_mib[holder] = None if memory == 0 and hidden else memory
        if not hidden:
            found.processes[holder] = tuple(map(_process_use, own))
        if isinstance(use, str):
            found.why[holder] = use
        elif found.memory_mib[holder] is None:
            found.why[holder] = f"its memory: {hidden or device.why.get('process_memory', 'not told')}"
    return found


def _process_use(process: GpuProcess) -> ProcessUse:
    used_at = None if process.used_us is None else -(-process.used_us // 1000)
    return ProcessUse(
        pid=process.pid, memory_mib=process.memory_mib, percent=process.percent, used_at=used_at,
        places=(process.places or _here(process))[:MOST_PARENTS],
    )  # fmt: skip


def _here(process: GpuProcess) -> tuple[Place, ...]:
    return tuple((process.namespace, pid, started) for pid, started in process.lineage)


def _use(device: DeviceReading, own: Sequence[GpuProcess], *, alone: bool, hidden: str | None) -> int | str:
    """The percentage that a holder used, or why it is unknown."""
    if device.mps:
        return MPS
    if device.parent is not None and not own:
        return hidden or 0  # an instance on which nothing of the holder's is: that much its list of processes says
    if "activity" in device.why:
        if alone and device.percent is not None:
            return device.percent
        return f"{device.why['activity']}; the device's own figure is that of all its holders together"
    known = _sum([each.percent for each in own])
    if known is None:
        return "the figures of its processes cannot be"
    if known == 0 and (doubt := hidden or _unexplained(device)):
        return doubt
    return min(100, known)


def _hidden(device: DeviceReading, owned: Owned) -> str | None:
    """Why somebody may be on the device who is not seen; None where the list of processes is the whole truth."""
    if owned.untold:
        return f"whose {_named(owned.untold)} is cannot be told: its variables cannot be read, or it is elsewhere"
    if device.held_mib is None:
        return f"memory: {device.why.get('process_memory') or device.why.get('memory_used_mib', 'not told')}"
    if device.held_mib > UNNAMED_MIB:
        return f"{device.held_mib} MiB of its memory are held by processes that NVML does not name"
    return None


def _unexplained(device: DeviceReading) -> str | None:
    """Why no process can be taken for resting although none was seen to work: the device itself was busy."""
    if device.percent is None:
        return f"the device's utilisation: {device.why.get('percent', 'not told')}"
    busy = device.percent > 0 and not any(each.percent for each in device.processes or ())
    return f"the device was busy ({device.percent} %), but NVML names no process that was" if busy else None


def _named(processes: Sequence[GpuProcess]) -> str:
    inner = {each.pid: f" ({each.inner_pid} in its container)" if each.inner_pid else "" for each in processes}
    return "process " + ", ".join(f"{pid}{told}" for pid, told in sorted(inner.items())[:3])


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
