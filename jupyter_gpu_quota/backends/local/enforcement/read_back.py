"""Reads evidence of enforcement: the driver's limit on a cgroup, the processes in it, variables, samples.

It uses neither the settings nor any record of the limits that were set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ....core.enforcement.levels import DeviceShare
from ....core.enforcement.over_share import FRESH_MS
from ....core.samples import DeviceSample, ProcessUse
from ...rendering.variables import SHARE_VARIABLE
from ..host.processes import is_same_process, processes, variables_of
from ..host.servers import Servers
from ..sampling.device_shares import MPS
from .cgroup import Cgroups, cgroup_of
from .limits_client import LimitAnswer, LimitRequest
from .mechanisms import Evidence

AHEAD_MS = 60_000
"""A sample may be dated ahead of this machine's clock by this much at most."""

LIMITS_EVERY_MS = 30_000
NO_CGROUP = LimitAnswer(why="the driver was not asked: its processes have no cgroup of their own", is_known=True)
NO_PROCESS = "its first process is not known yet"

Rank = tuple[str, int, int]
"""A workload, an attempt and a rank."""

Process = tuple[int, int | None]
"""A process id and its start in clock ticks."""


class ReadBack:
    """Reads evidence. ``limits`` reads the driver's limits, in a process of its own; it may wait.

    ``first_of_rank`` is the first process of a running rank, as its supervisor recorded it. It is thread-safe.
    """

    def __init__(
        self, cgroups: Cgroups, servers: Servers, first_of_rank: Callable[[DeviceShare], Process | None],
        limits: Callable[[Sequence[LimitRequest]], Sequence[LimitAnswer]],
    ) -> None:  # fmt: skip
        self.cgroups, self.servers, self._first_of_rank, self._request_limits = cgroups, servers, first_of_rank, limits
        self._limits: dict[tuple[str, str], tuple[LimitAnswer, int]] = {}
        self._first: dict[Rank, Process] = {}
        self._lock = threading.Lock()

    def read(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, Evidence]:
        """The evidence of each share, by allocation, as ``samples`` are. There is none of simulated devices."""
        real = {name: share for name, share in shares.items() if not share.simulated}
        fractions = [share for share in real.values() if share.is_fraction]
        with self._lock:
            first = self._first_processes(fractions)
            self._read_limits(fractions, now)
            evidence = {
                name: self._evidence(share, samples.get(name), first.get(_rank_of(share)), policed=policed, now=now)
                for name, share in real.items()
            }
        return dict.fromkeys(shares, Evidence()) | evidence

    def _evidence(
        self, share: DeviceShare, sample: DeviceSample | None, pid: int | None, *, policed: bool, now: int
    ) -> Evidence:
        limit, _ = self._limits.get((cgroup_of(share), share.device or ""), (NO_CGROUP, 0))
        unknown = "" if sample is None else sample.why.get(share.workload, "")
        known = sample is not None and sample.workload_memory_mib.get(share.workload) is not None
        why_unread = _why_unread(sample, now)
        return Evidence(
            why_unread=why_unread,
            limit_mib=limit.limit_mib,
            why_no_limit=limit.why,
            is_limit_unread=not limit.is_known,
            why_outside="" if limit.limit_mib is None else self._why_outside(share, pid, sample),
            variables=None if pid is None else variables_of(pid),
            why_no_memory="" if known else unknown or "the memory of its processes was not read",
            mps=unknown == MPS and not why_unread,
            policed=policed,
        )

    def _why_outside(self, share: DeviceShare, pid: int | None, sample: DeviceSample | None) -> str:
        """Why the limit does not cover all processes of a share; empty where it does.

        The cgroups of all ranks of a job are its own.
        """
        inside = self.cgroups.processes(cgroup_of(share))
        if not inside:
            return "no process is in the cgroup that has the limit"
        if pid is None:
            return NO_PROCESS
        if pid not in inside:
            return f"its first process ({pid}) is not in the cgroup that has the limit"
        own = f"job.{share.workload}."
        groups = [] if share.notebook else [name for name in self.cgroups.names() if name.startswith(own)]
        covered = inside.union(*map(self.cgroups.processes, groups))
        listed = () if sample is None else sample.processes.get(share.workload, ())
        outside = [each.handle for each in listed if int(each.handle) not in covered and _is_alive(each)]
        return f"its process {outside[0]} is not in the cgroup that has the limit" if outside else ""

    # --- the driver -----------------------------------------------------------------------------------------------
    def _read_limits(self, shares: Sequence[DeviceShare], now: int) -> None:
        """Read the limits of all cgroups when one is new or the last answers are old."""
        wanted = {
            (cgroup_of(share), share.device)
            for share in shares
            if share.device and not share.is_instance and self.cgroups.exists(cgroup_of(share))
        }
        self._limits = {key: known for key, known in self._limits.items() if key in wanted}
        if all(key in self._limits and 0 <= now - self._limits[key][1] < LIMITS_EVERY_MS for key in wanted):
            return
        keys = sorted(wanted)
        answers = self._request_limits(
            [LimitRequest(device=device, group=str(self.cgroups.path(cgroup))) for cgroup, device in keys]
        )
        self._limits = {key: (answer, now) for key, answer in zip(keys, answers, strict=True)}

    # --- processes ------------------------------------------------------------------------------------------------
    def _first_processes(self, shares: Sequence[DeviceShare]) -> Mapping[Rank, int]:
        """The first process of each rank, and the server of each notebook."""
        keys = {_rank_of(share): share for share in shares}
        self._first = {
            key: process for key, process in self._first.items() if key in keys and is_same_process(*process)
        }
        missing = [share for key, share in keys.items() if key not in self._first]
        for share in missing:
            if not share.notebook and (process := self._first_of_rank(share)) is not None:
                self._first[_rank_of(share)] = process
        if notebooks := [share.workload for share in missing if share.notebook]:
            self._first |= server_processes(notebooks, self.servers)
        return {key: pid for key, (pid, _) in self._first.items()}


def _rank_of(share: DeviceShare) -> Rank:
    return share.workload, share.attempt, share.rank


def _why_unread(sample: DeviceSample | None, now: int) -> str:
    """Why there is no recent sample of a device; empty where there is one."""
    if sample is None:
        return "it was not read yet"
    age_ms = now - sample.at
    if age_ms > FRESH_MS:
        return f"the newest reading is older than {FRESH_MS // 1000} s"
    if -age_ms > AHEAD_MS:
        return f"the newest reading is dated {-age_ms // 1000} s ahead of this machine's clock"
    return "" if sample.memory_used_mib is not None else sample.why.get("memory_used_mib", "its memory was not read")


def _is_alive(process: ProcessUse) -> bool:
    """Whether a process still exists; one without a known start counts as alive."""
    return not process.places or is_same_process(int(process.handle), process.places[0][2])


def server_processes(notebooks: Sequence[str], records: Servers) -> dict[Rank, Process]:
    """The servers that the hub recorded; where it records none, the processes whose variables name the notebook."""
    recorded = {name: server for name in notebooks if (server := records.of(name)) is not None}
    known: dict[Rank, Process] = {(name, 0, 0): (server.pid, server.started) for name, server in recorded.items()}
    others = () if records.is_complete else [name for name in notebooks if name not in recorded]
    for pid, process in sorted(processes().items()) if others else ():
        variable = (variables_of(pid) or {}).get(SHARE_VARIABLE, "")
        for name in others:
            if f'"{name}"' in variable:
                known.setdefault((name, 0, 0), (pid, process.started))
    return known
