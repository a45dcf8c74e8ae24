"""Whose a process could be, as /proc shows it: its parents, what their variables say, its cgroup, its inner number."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from ....core.samples import Place
from ...rendering.variables import SHARE_VARIABLE
from ..host.processes import ProcessStat, process
from .reading import GpuProcess

JOB = b"GPU_QUOTA_JOB_ID="
MPS_SERVER = b"nvidia-cuda-mps"
"""As the kernel cuts it off."""
SHARE = SHARE_VARIABLE.encode() + b"="

CGROUP_READINGS = 6
"""A process that is moved to another cgroup is seen there after so many readings at the latest."""

Started = tuple[int, int]
"""A process and its start: the two together are never another one's."""


class _Look(NamedTuple):
    """What a process is besides: its number in its own container, that container's namespace, an MPS server or not."""

    inner_pid: int | None
    namespace: str
    serves_mps: bool


class _Chain(NamedTuple):
    """A process and its parents. ``claim`` is the outermost one, which is hardest to make up.

    ``spaces`` are their namespaces; ``is_nested``: some have another number in a container of theirs.
    """

    lineage: tuple[Started, ...] = ()
    claim: str | None = None
    spaces: frozenset[str] = frozenset()
    is_nested: bool = False


NO_CHAIN = _Chain()


class Lineages:
    """Looks up processes of one reading after the other; what cannot change is read once."""

    def __init__(self) -> None:
        self._stats: dict[int, ProcessStat | None] = {}
        self._chains: dict[int, _Chain] = {}
        self._claims: dict[Started, str | None] = {}
        self._looks: dict[Started, _Look] = {}
        self._cgroups: dict[Started, str | None] = {}
        self._seen: set[Started] = set()
        self._turn = 0

    def begin(self) -> None:
        """Forget what may have changed since the reading before, and those that are gone."""
        self._claims = {each: claim for each, claim in self._claims.items() if each in self._seen}
        self._looks = {each: look for each, look in self._looks.items() if each in self._seen}
        self._cgroups = {each: path for each, path in self._cgroups.items() if each in self._seen}
        self._stats, self._chains, self._seen, self._turn = {}, {}, set(), self._turn + 1

    def of(self, pid: int, memory_mib: int | None, percent: int | None, used_us: int | None = None) -> GpuProcess:
        """What is known of a process that NVML names."""
        chain = self._chain(pid)
        if not chain.lineage:
            return GpuProcess(pid=pid, memory_mib=memory_mib, percent=percent, used_us=used_us, hidden=True)
        own, is_split = chain.lineage[0], chain.is_nested or len(chain.spaces) > 1
        return GpuProcess(
            pid=pid,
            memory_mib=memory_mib,
            percent=percent,
            used_us=used_us,
            lineage=chain.lineage,
            namespace="" if is_split else "".join(chain.spaces),
            places=tuple(map(self._place, chain.lineage)) if is_split else (),
            claim=chain.claim,
            hidden=chain.claim is None and self._claim(*own) is None,
            cgroup=self._cgroup(*own),
            inner_pid=self._look(own).inner_pid,
        )

    def _chain(self, pid: int) -> _Chain:
        """The chain of a process; most processes on a device have their parents in common."""
        below: list[Started] = []
        while pid > 0 and pid not in self._chains and (stat := self._stat(pid)) is not None and stat.alive:
            below.append((pid, stat.started))
            pid = stat.parent
        chain = self._chains.get(pid, NO_CHAIN)
        for each in reversed(below):
            chain = self._chains[each[0]] = self._grown(chain, each)
        return chain

    def _grown(self, parents: _Chain, own: Started) -> _Chain:
        look, claim = self._look(own), self._claim(*own)
        return _Chain(
            lineage=(own, *parents.lineage),
            claim=parents.claim or claim or None,
            spaces=parents.spaces | {look.namespace} if look.namespace else parents.spaces,
            is_nested=parents.is_nested or look.inner_pid is not None,
        )

    def _stat(self, pid: int) -> ProcessStat | None:
        if pid not in self._stats:
            self._stats[pid] = process(pid)
        return self._stats[pid]

    def serves_mps(self, found: GpuProcess) -> bool:
        """Whether a process is the server through which MPS clients compute."""
        return bool(found.lineage) and self._look(found.lineage[0]).serves_mps

    def _cgroup(self, pid: int, started: int) -> str | None:
        """Its cgroup, as it was within the last few readings: it seldom changes, and to ask for it costs the most."""
        if (pid, started) not in self._cgroups or (pid + self._turn) % CGROUP_READINGS == 0:
            self._cgroups[pid, started] = cgroup_of(pid)
        return self._cgroups[pid, started]

    def _place(self, of: Started) -> Place:
        """The process as those of its own container know it, a Jupyter server among them."""
        look = self._look(of)
        return look.namespace, of[0] if look.inner_pid is None else look.inner_pid, of[1]

    def _look(self, of: Started) -> _Look:
        if of not in self._looks:
            name = _read(f"/proc/{of[0]}/comm") or b""
            self._looks[of] = _Look(inner_pid_of(of[0]), namespace_of(of[0]), name.startswith(MPS_SERVER))
        return self._looks[of]

    def _claim(self, pid: int, started: int) -> str | None:
        """The workload that its variables name; "" for none, None where they cannot be read."""
        key = (pid, started)
        self._seen.add(key)
        if key not in self._claims:
            self._claims[key] = _claimed(pid)
        return self._claims[key]


def _claimed(pid: int) -> str | None:
    variables = _read(f"/proc/{pid}/environ")
    if variables is None:
        return None
    for each in variables.split(b"\0"):
        if each.startswith(JOB):
            return each[len(JOB) :].decode(errors="replace")
        if each.startswith(SHARE):
            return _notebook(each[len(SHARE) :])
    return ""


def _notebook(share: bytes) -> str:
    try:
        return str(json.loads(share)["notebook"])
    except (ValueError, LookupError, TypeError):
        return ""


def cgroup_of(pid: int) -> str | None:
    """Its path in the unified hierarchy, or the first that is named where there is none; None if it is not told."""
    lines = (_read(f"/proc/{pid}/cgroup") or b"").decode(errors="replace").splitlines()
    named = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return next((path for _, kind, path in named if not kind), named[0][2] if named else None)


def inner_pid_of(pid: int) -> int | None:
    """Its number in the innermost namespace that it is in; None where it has no other one."""
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"NSpid:"):
            numbers = line.split()[1:]
            return int(numbers[-1]) if len(numbers) > 1 else None
    return None


def user_of(pid: int) -> int | None:
    """The system's user that it runs as; None where that is not told."""
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[2])
    return None


def namespace_of(pid: int) -> str:
    """The pid namespace that it is in; empty where that may not be looked up."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
