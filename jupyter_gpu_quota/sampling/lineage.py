"""Whose a process could be, as /proc shows it: its parents, what their variables say, its cgroup, its inner number."""

from __future__ import annotations

import json

from ..executors.process_tree import ProcessStat, process
from ..manifests import SHARE_VARIABLE
from .reading import GpuProcess

JOB = b"GPU_QUOTA_JOB_ID="
MPS_SERVER = b"nvidia-cuda-mps"
"""As the kernel cuts it off."""
SHARE = SHARE_VARIABLE.encode() + b"="

Started = tuple[int, int]
"""A process and its start: the two together are never another one's."""


class Lineages:
    """Looks up processes of one reading after the other; what cannot change is read once."""

    def __init__(self) -> None:
        self._stats: dict[int, ProcessStat | None] = {}
        self._claims: dict[Started, str | None] = {}
        self._looks: dict[Started, tuple[int | None, bool]] = {}
        self._seen: set[Started] = set()

    def begin(self) -> None:
        """Forget what may have changed since the reading before, and those that are gone."""
        self._claims = {each: claim for each, claim in self._claims.items() if each in self._seen}
        self._looks = {each: look for each, look in self._looks.items() if each in self._seen}
        self._stats, self._seen = {}, set()

    def of(self, pid: int, memory_mib: int | None, percent: int | None) -> GpuProcess:
        """What is known of a process that NVML names."""
        lineage = tuple(self._lineage(pid))
        if not lineage:
            return GpuProcess(pid=pid, memory_mib=memory_mib, percent=percent, hidden=True)
        claims = [self._claim(*each) for each in reversed(lineage)]  # the outermost one is hardest to make up
        claim = next((found for found in claims if found), None)
        return GpuProcess(
            pid=pid,
            memory_mib=memory_mib,
            percent=percent,
            lineage=lineage,
            claim=claim,
            hidden=claim is None and claims[-1] is None,
            cgroup=cgroup_of(pid),
            inner_pid=self._look(lineage[0])[0],
        )

    def _lineage(self, pid: int) -> list[Started]:
        found: list[Started] = []
        while pid > 0 and (stat := self._stat(pid)) is not None and stat.alive:
            found.append((pid, stat.started))
            pid = stat.parent
        return found

    def _stat(self, pid: int) -> ProcessStat | None:
        if pid not in self._stats:
            self._stats[pid] = process(pid)
        return self._stats[pid]

    def serves_mps(self, found: GpuProcess) -> bool:
        """Whether a process is the server through which MPS clients compute."""
        return bool(found.lineage) and self._look(found.lineage[0])[1]

    def _look(self, of: Started) -> tuple[int | None, bool]:
        """Its number in its own container, and whether it is an MPS server."""
        if of not in self._looks:
            name = _read(f"/proc/{of[0]}/comm") or b""
            self._looks[of] = inner_pid_of(of[0]), name.startswith(MPS_SERVER)
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


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return None
