"""Evidence for the workload of a process, from /proc: parents, their variables, cgroup, number in its container."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from ....core.samples import Place
from ...rendering.variables import SHARE_VARIABLE
from ..host.processes import ProcessStat, process, read_proc, status_numbers
from .reading import GpuProcess

JOB = b"GPU_QUOTA_JOB_ID="
MPS_SERVER = b"nvidia-cuda-mps"
"""The name is cut off by the kernel."""
SHARE = SHARE_VARIABLE.encode() + b"="

CGROUP_READINGS = 6
"""The cgroup of a process is read again after so many readings at the latest."""

Started = tuple[int, int]
"""A process and its start: together they identify it."""


class _Traits(NamedTuple):
    """The number of a process in its own container, that container's namespace, and whether it is an MPS server."""

    inner_pid: int | None
    namespace: str
    serves_mps: bool


class _Chain(NamedTuple):
    """A process and its parents. ``claim`` is that of the outermost parent with one, which is hardest to forge.

    ``spaces`` are their namespaces; ``is_nested``: some have another number in a container of their own.
    """

    lineage: tuple[Started, ...] = ()
    claim: str | None = None
    spaces: frozenset[str] = frozenset()
    is_nested: bool = False


NO_CHAIN = _Chain()


class Lineages:
    """Looks up the processes of each reading; facts that cannot change are read once."""

    def __init__(self) -> None:
        self._stats: dict[int, ProcessStat | None] = {}
        self._chains: dict[int, _Chain] = {}
        self._claims: dict[Started, str | None] = {}
        self._traits: dict[Started, _Traits] = {}
        self._cgroups: dict[Started, str | None] = {}
        self._seen: set[Started] = set()
        self._turn = 0

    def begin(self) -> None:
        """Forget facts that may have changed since the previous reading, and processes that ended."""
        self._claims = {each: claim for each, claim in self._claims.items() if each in self._seen}
        self._traits = {each: traits for each, traits in self._traits.items() if each in self._seen}
        self._cgroups = {each: path for each, path in self._cgroups.items() if each in self._seen}
        self._stats, self._chains, self._seen, self._turn = {}, {}, set(), self._turn + 1

    def of(
        self,
        pid: int,
        memory_mib: int | None,
        percent: int | None,
        used_us: int | None = None,
        *,
        graphics_only: bool = False,
    ) -> GpuProcess:
        """A process that NVML lists, with its evidence."""
        chain = self._chain(pid)
        if not chain.lineage:
            return GpuProcess(
                pid=pid,
                memory_mib=memory_mib,
                percent=percent,
                used_us=used_us,
                hidden=True,
                graphics_only=graphics_only,
            )
        own, is_split = chain.lineage[0], chain.is_nested or len(chain.spaces) > 1
        return GpuProcess(
            pid=pid, memory_mib=memory_mib, percent=percent, used_us=used_us, lineage=chain.lineage,
            namespace="" if is_split else "".join(chain.spaces),
            places=tuple(map(self._place, chain.lineage)) if is_split else (), claim=chain.claim,
            hidden=chain.claim is None and self._claim(own) is None, cgroup=self._cgroup(own),
            inner_pid=self._traits_of(own).inner_pid, graphics_only=graphics_only,
        )  # fmt: skip

    def _chain(self, pid: int) -> _Chain:
        """The chain of a process; most processes on a device have their parents in common."""
        below: list[Started] = []
        while pid > 0 and pid not in self._chains and (stat := self._stat(pid)) is not None and stat.is_alive:
            below.append((pid, stat.started))
            pid = stat.parent
        chain = self._chains.get(pid, NO_CHAIN)
        for each in reversed(below):
            traits, claim = self._traits_of(each), self._claim(each)
            chain = self._chains[each[0]] = _Chain(
                lineage=(each, *chain.lineage),
                claim=chain.claim or claim or None,
                spaces=chain.spaces | {traits.namespace} if traits.namespace else chain.spaces,
                is_nested=chain.is_nested or traits.inner_pid is not None,
            )
        return chain

    def _stat(self, pid: int) -> ProcessStat | None:
        if pid not in self._stats:
            self._stats[pid] = process(pid)
        return self._stats[pid]

    def serves_mps(self, found: GpuProcess) -> bool:
        """Whether a process is the server through which MPS clients compute."""
        return bool(found.lineage) and self._traits_of(found.lineage[0]).serves_mps

    def _cgroup(self, own: Started) -> str | None:
        """Its cgroup in one of the last readings: it seldom changes, and is the most expensive fact to read."""
        if own not in self._cgroups or (own[0] + self._turn) % CGROUP_READINGS == 0:
            self._cgroups[own] = cgroup_of(own[0])
        return self._cgroups[own]

    def _place(self, own: Started) -> Place:
        """The process as the processes of its own container know it, a Jupyter server among them."""
        traits = self._traits_of(own)
        return traits.namespace, own[0] if traits.inner_pid is None else traits.inner_pid, own[1]

    def _traits_of(self, own: Started) -> _Traits:
        if own not in self._traits:
            numbers = status_numbers(own[0], b"NSpid:")
            name = read_proc(own[0], "comm") or b""
            inner_pid = numbers[-1] if len(numbers) > 1 else None
            self._traits[own] = _Traits(inner_pid, namespace_of(own[0]), name.startswith(MPS_SERVER))
        return self._traits[own]

    def _claim(self, own: Started) -> str | None:
        """The workload that its variables name; "" for none, None where they cannot be read.

        A process that has just begun a program has no variables yet, so none are read again.
        """
        self._seen.add(own)
        if own not in self._claims:
            variables = read_proc(own[0], "environ")
            if variables == b"":
                return ""
            self._claims[own] = None if variables is None else _claim_in(variables.split(b"\0"))
        return self._claims[own]


def _claim_in(variables: Iterable[bytes]) -> str:
    for each in variables:
        if each.startswith(JOB):
            return each[len(JOB) :].decode(errors="replace")
        if each.startswith(SHARE):
            try:
                return str(json.loads(each[len(SHARE) :])["notebook"])
            except (ValueError, LookupError, TypeError):
                return ""
    return ""


def cgroup_of(pid: int) -> str | None:
    """Its path in the unified hierarchy, or else in the first that is listed; None where it cannot be read."""
    lines = (read_proc(pid, "cgroup") or b"").decode(errors="replace").splitlines()
    named = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return next((path for _, kind, path in named if not kind), named[0][2] if named else None)


def namespace_of(pid: int) -> str:
    """Its pid namespace; empty where it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
