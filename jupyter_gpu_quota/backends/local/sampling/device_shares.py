"""The workload of each process on a device, and the use of each workload.

A process belongs to a workload if it descends from one of the workload's processes; or if its variables, or those of a
parent, name the workload and it runs under the workload's account, since any process can set variables; or if it is in
a cgroup with processes of that workload only. All other use is foreign, or unknown where the evidence cannot be read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ....core.samples import ProcessUse
from ..host.processes import is_same_process, user_of
from ..host.servers import Server, account_of
from .process_lineage import cgroup_of
from .reading import DeviceReading, GpuProcess

UNNAMED_MIB = 256
"""Memory on a device that NVML attributes to no process; any process that computes uses more."""

MAX_PARENTS = 16
"""More parents than a notebook's program has below its server."""

FORGED = "the variables of {} name a notebook, but it does not run under the account of that notebook's server"

MPS = "its processes share the device by MPS, which reports no figures of each"


@dataclass(frozen=True, slots=True)
class ProcessOwners:
    """Processes of one device by workload, those of no workload, and those whose workload is unknown.

    ``forged`` are foreign processes whose variables name a workload that they do not belong to.
    """

    by_workload: Mapping[str, list[GpuProcess]]
    foreign: list[GpuProcess]
    unknown: list[GpuProcess]
    forged: list[GpuProcess]


class Owners:
    """The workloads of the processes of one reading.

    Takes live processes by job, as the executor lists them, and every workload with a part of some device. ``servers``
    are those of notebooks, as the hub recorded them. ``strict``: variables are not trusted for a notebook without a
    recorded server; otherwise they are.
    """

    def __init__(
        self,
        pids: Mapping[str, frozenset[int]],
        workloads: Iterable[str],
        processes: Iterable[GpuProcess],
        is_alive: Callable[[int, int], bool] = is_same_process,
        servers: Mapping[str, Server] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._by_pid = {pid: workload for workload, found in pids.items() for pid in found}
        self._servers, self._strict = servers or {}, strict
        self._by_server = {(server.pid, server.started): name for name, server in self._servers.items()}
        self._workloads, self._is_alive = frozenset(workloads), is_alive
        self._pids, self._users = pids, dict[str, set[int]]()
        self._found: dict[tuple[object, ...], str | None] = {}
        self._by_cgroup = self._cgroups(processes)

    def _cgroups(self, processes: Iterable[GpuProcess]) -> dict[str, str]:
        """Cgroups with processes of one workload only, without this service."""
        found = defaultdict[str, set[str]](set)
        for each in processes:
            if (owner := self._by_descent(each)) is not None and each.cgroup:
                found[each.cgroup].add(owner)
        ours = cgroup_of(os.getpid())
        return {path: min(owners) for path, owners in found.items() if len(owners) == 1 and path not in (ours, "/")}

    def _by_descent(self, process: GpuProcess) -> str | None:
        key = (process.lineage, process.claim)
        if key not in self._found:
            self._found[key] = self._owner(process)
        return self._found[key]

    def _owner(self, process: GpuProcess) -> str | None:
        for pid, started in process.lineage:
            owner = self._by_pid.get(pid)
            if owner is not None and self._is_alive(pid, started):  # else another process has the number now
                return owner
            if (pid, started) in self._by_server:
                return self._by_server[pid, started]
        return process.claim if process.claim in self._workloads and self._may_be_of(process, process.claim) else None

    def _may_be_of(self, process: GpuProcess, workload: str) -> bool:
        """Whether a process outside a workload's tree can belong to it: a process can set variables, not its user."""
        server = self._servers.get(workload)
        if server is not None:
            own_account = account_of(process.pid)
            return own_account == server.account and self._is_alive(*process.lineage[0])  # else its id was used again
        if workload not in self._pids:
            return not self._strict
        if workload not in self._users:
            self._users[workload] = {user for pid in self._pids[workload] if (user := user_of(pid)) is not None}
        users = self._users[workload]
        own = user_of(process.pid) if users else None
        return own is None or own in users

    def of(self, processes: Iterable[GpuProcess]) -> ProcessOwners:
        """The processes of one device, without foreign ones that have ended since."""
        owned = ProcessOwners(defaultdict(list), [], [], [])
        for each in processes:
            owner = self._by_descent(each) or self._by_cgroup.get(each.cgroup or "")
            if owner is not None:
                owned.by_workload[owner].append(each)
            elif each.graphics_only and not (each.hidden and each.percent):
                continue  # such as a display server
            elif each.hidden:
                owned.unknown.append(each)
            elif self._is_alive(*each.lineage[0]):
                owned.foreign.append(each)
                if each.claim in self._workloads:
                    owned.forged.append(each)
        return owned


@dataclass(slots=True)
class Shares:
    """The use of a device by each workload, and the foreign use; None is unknown, and ``why`` has the reason.

    ``foreign_least_mib`` and ``foreign_most_mib`` are its bounds. ``forged``: foreign processes have forged variables.
    ``processes`` has the workloads all of whose processes are known.
    """

    percent: dict[str, int | None] = field(default_factory=dict)
    memory_mib: dict[str, int | None] = field(default_factory=dict)
    processes: dict[str, tuple[ProcessUse, ...]] = field(default_factory=dict)
    foreign_mib: int | None = None
    foreign_least_mib: int = 0
    foreign_most_mib: int | None = None
    forged: str = ""
    why: dict[str, str] = field(default_factory=dict)


def shares_of(
    device: DeviceReading, workloads: Sequence[str], owners: Owners, lent: Collection[str] = frozenset()
) -> Shares:
    """Attribute the use of a device to its workloads. A workload is idle only where no evidence contradicts it.

    ``lent`` are the workloads that lent their part: one without a process on the device uses nothing.
    """
    found = Shares()
    if device.processes is None:
        why = device.why.get("processes", "its processes are unknown")
        found.percent = found.memory_mib = dict.fromkeys(workloads)
        found.why = dict.fromkeys((*workloads, "foreign"), why)
        return found
    owned = owners.of(device.processes)
    if not workloads:
        owned = replace(owned, foreign=[*owned.foreign, *owned.unknown], unknown=[])
    hidden = _why_incomplete(device, owned)
    _add_foreign_use(found, device, owned, hidden)
    present = [name for name in workloads if name not in lent or owned.by_workload.get(name)]
    for name in workloads:
        own = owned.by_workload.get(name, [])
        alone = present == [name] and not owned.foreign and not hidden
        use = _use(device, own, alone=alone, hidden=hidden) if name in present else hidden or 0
        memory = _sum([each.memory_mib for each in own])
        found.percent[name] = use if isinstance(use, int) else None
        found.memory_mib[name] = None if memory == 0 and hidden else memory
        if not hidden:
            found.processes[name] = tuple(map(_process_use, own))
        if isinstance(use, str):
            found.why[name] = use
        elif found.memory_mib[name] is None:
            found.why[name] = f"its memory: {hidden or device.why.get('process_memory', 'unknown')}"
    return found


def _add_foreign_use(found: Shares, device: DeviceReading, owned: ProcessOwners, hidden: str | None) -> None:
    """Add the memory of foreign processes, and its bounds: all memory that is not a workload's may be foreign."""
    foreign = _sum([each.memory_mib for each in owned.foreign])
    own = sum(each.memory_mib or 0 for part in owned.by_workload.values() for each in part)
    found.foreign_least_mib = sum(each.memory_mib or 0 for each in owned.foreign)
    if not hidden:
        found.foreign_mib = found.foreign_most_mib = foreign
    elif device.memory_used_mib is not None:
        found.foreign_most_mib = max(0, device.memory_used_mib - own)
    names, why = _process_names(owned.foreign), device.why.get("process_memory", "unknown")
    found.forged = FORGED.format(names) if owned.forged else ""
    unread = f"memory of {names}: {why}" if foreign is None else hidden
    if reason := unread or found.forged:
        found.why["foreign"] = reason


def _process_use(process: GpuProcess) -> ProcessUse:
    places = process.places or tuple((process.namespace, pid, started) for pid, started in process.lineage)
    return ProcessUse(
        handle=str(process.pid), memory_mib=process.memory_mib, percent=process.percent,
        used_at=None if process.used_us is None else -(-process.used_us // 1000), places=places[:MAX_PARENTS],
    )  # fmt: skip


def _use(device: DeviceReading, own: Sequence[GpuProcess], *, alone: bool, hidden: str | None) -> int | str:
    """The percentage that a workload used since the previous reading, or why it is unknown.

    The figure of its processes proves any use. That of the device is of a short time: it proves use, never that there
    was none. See docs/idle.md, "Sources".
    """
    if device.mps:
        return MPS
    if device.parent is not None:
        return _use_of_instance(device, own, alone=alone, hidden=hidden)
    known = _sum([each.percent for each in own])
    if known:
        return min(100, known)
    if "activity" in device.why and alone and device.percent:
        return device.percent
    if hidden:
        return hidden
    if known is None or device.activity_failed:  # a process that has ended since may have used it
        return f"{device.why['activity']}; the device's own figure does not show that it was unused"
    if device.unlisted:
        return f"{_numbers(device.unlisted)} used the device and is not listed any more"
    if device.percent is None:
        return f"the device's utilisation: {device.why.get('percent', 'unknown')}"
    if device.percent == 0 or any(each.percent for each in device.processes or ()):
        return 0
    return f"the device was busy ({device.percent} %), but NVML lists no process that was"


def _use_of_instance(device: DeviceReading, own: Sequence[GpuProcess], *, alone: bool, hidden: str | None) -> int | str:
    """The percentage of a MIG instance that a workload used, by the instance's metrics or its list of processes."""
    if device.percent == 0:
        return 0
    if device.percent is not None and alone:
        return device.percent
    if hidden:
        return hidden
    if not own and (device.processes or not device.percent):
        return 0
    if device.percent is None:
        return f"{device.why.get('activity', 'unknown')}; its own metrics: {device.why.get('percent', 'unknown')}"
    return f"the instance was used ({device.percent} %), it is unknown by which of its processes"


def _why_incomplete(device: DeviceReading, owned: ProcessOwners) -> str | None:
    """Why the device may have processes that are not listed; None where the list is complete."""
    if owned.unknown:
        unknown = _process_names(owned.unknown)
        return f"the workload of {unknown} is unknown: its variables cannot be read, or its pod is not known"
    if device.unlisted_mib is None:
        return f"memory: {device.why.get('process_memory') or device.why.get('memory_used_mib', 'unknown')}"
    if device.unlisted_mib > UNNAMED_MIB:
        return f"{device.unlisted_mib} MiB of its memory are used by processes that NVML does not list"
    return None


def _numbers(pids: Sequence[int]) -> str:
    return "process " + ", ".join(map(str, pids[:3]))


def _process_names(processes: Sequence[GpuProcess]) -> str:
    inner = {each.pid: f" ({each.inner_pid} in its container)" if each.inner_pid else "" for each in processes}
    return "process " + ", ".join(f"{pid}{number}" for pid, number in sorted(inner.items())[:3])


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
