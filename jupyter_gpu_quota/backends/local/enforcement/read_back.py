"""Reads shares back from outside: the driver's limit on their cgroup, the processes in it, variables, samples.

Nothing here trusts what was set, or the program that set it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ....core.enforcement import DeviceShare
from ....core.samples import DeviceSample, ProcessUse
from ...rendering.variables import SHARE_VARIABLE
from ..host.processes import is_same_process, processes
from ..host.servers import Servers
from ..sampling.device_shares import MPS
from .cgroup import Cgroups, cgroup_of, notebook_cgroup
from .cooperative import first_with, variables_of
from .limiter import Limiter
from .limits_client import Ask, Told, limits
from .protocol import Seen

FRESH_MS = 45_000
"""An older sample says nothing of how things are now; devices are read every ten seconds."""

AHEAD_MS = 60_000
"""So far may the clock of a sample be ahead of ours."""

LIMITS_EVERY_MS = 30_000
NOT_LIMITED = "the driver was not asked: its processes have no control group of their own"
NO_PROCESS = "its first process is not known yet"

Rank = tuple[str, int, int]
"""A workload, an attempt and a rank."""

Process = tuple[int, int | None]
"""A process id and its start in clock ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """What the driver told of one cgroup and device, and when."""

    told: Told
    at: int


class ReadBack:
    """Reads shares back. ``ask`` reads the driver's limits, in a process of its own; it may wait.

    ``first_of_rank`` is the process of a rank that runs, as its supervisor recorded it. Threads may share it.
    """

    def __init__(
        self, cgroups: Cgroups, servers: Servers, first_of_rank: Callable[[DeviceShare], Process | None],
        ask: Callable[[Sequence[Ask]], Sequence[Told]] = limits,
    ) -> None:  # fmt: skip
        self.cgroups, self.servers, self._first_of_rank, self._ask = cgroups, servers, first_of_rank, ask
        self._limiter = Limiter(cgroups, lambda asked: self._ask(asked))  # noqa: PLW0108 - tests set it later
        self._limits: dict[tuple[str, str], _Limit] = {}
        self._first: dict[Rank, Process] = {}
        self._turn = threading.Lock()

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Release what a hub that was killed left of notebooks that are over: cgroups, records. Those in use stay."""
        kept = {notebook_cgroup(name) for name in notebooks}
        for name in self.cgroups.names():
            if name.startswith("notebook.") and name not in kept:
                self._limiter.release(name, sorted(devices))
        self.servers.sweep(frozenset(notebooks))

    def read(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, Seen]:
        """What is seen of each share, by allocation; ``samples`` too. Of simulated devices nothing is."""
        real = {name: share for name, share in shares.items() if not share.simulated}
        fractions = [share for share in real.values() if share.is_fraction]
        with self._turn:
            first = self._first_processes(fractions)
            self._read_limits(fractions, now)
            seen = {
                name: self._seen(share, samples.get(name), first.get(_key(share)), policed=policed, now=now)
                for name, share in real.items()
            }
        return dict.fromkeys(shares, Seen()) | seen

    def _seen(
        self, share: DeviceShare, sample: DeviceSample | None, pid: int | None, *, policed: bool, now: int
    ) -> Seen:
        limit = self._limits.get((cgroup_of(share), share.device or ""))
        told = Told(why=NOT_LIMITED) if limit is None else limit.told
        unknown = "" if sample is None else sample.why.get(share.workload, "")
        known = sample is not None and sample.workload_memory_mib.get(share.workload) is not None
        return Seen(
            unread=_unread(sample, now),
            limit_mib=told.limit_mib,
            no_limit=told.why,
            outside="" if told.limit_mib is None else self._outside(share, pid) or self._got_away(share, sample),
            variables=None if pid is None else variables_of(pid),
            no_memory="" if known else unknown or "the memory of its processes was not read",
            mps=unknown == MPS,
            policed=policed,
        )

    def _outside(self, share: DeviceShare, pid: int | None) -> str:
        """Why the processes of a share are not those that are limited; empty where they are."""
        inside = self.cgroups.processes(cgroup_of(share))
        if not inside:
            return "nothing runs in the control group that has the limit"
        if pid is None:
            return NO_PROCESS
        return "" if pid in inside else f"its first process ({pid}) is not in the control group that has the limit"

    def _got_away(self, share: DeviceShare, sample: DeviceSample | None) -> str:
        """Why the limit does not cover all processes on the device; the cgroups of all ranks of a job are its own."""
        own = cgroup_of(share) if share.notebook else f"job.{share.workload}."
        groups = [name for name in self.cgroups.names() if name == own or (not share.notebook and name.startswith(own))]
        inside = frozenset[int]().union(*map(self.cgroups.processes, groups))
        there = () if sample is None else sample.processes.get(share.workload, ())
        away = [each.pid for each in there if each.pid not in inside and _lives(each)]
        return f"its process {away[0]} is not in the control group that has the limit" if away else ""

    # --- the driver -----------------------------------------------------------------------------------------------
    def _read_limits(self, shares: Sequence[DeviceShare], now: int) -> None:
        """Ask for the limits of every cgroup that is there, when one is new or the last answers are old."""
        wanted = {
            (cgroup_of(share), share.device)
            for share in shares
            if share.device and not share.is_instance and self.cgroups.exists(cgroup_of(share))
        }
        self._limits = {key: known for key, known in self._limits.items() if key in wanted}
        if all(key in self._limits and now - self._limits[key].at < LIMITS_EVERY_MS for key in wanted):
            return
        asked = sorted(wanted)
        told = self._ask([Ask(device=device, group=str(self.cgroups.path(cgroup))) for cgroup, device in asked])
        self._limits = {key: _Limit(told=each, at=now) for key, each in zip(asked, told, strict=True)}

    # --- processes ------------------------------------------------------------------------------------------------
    def _first_processes(self, shares: Sequence[DeviceShare]) -> Mapping[Rank, int]:
        """The first process of each share: a rank's own, or the server of a notebook."""
        keys = {_key(share): share for share in shares}
        self._first = {
            key: process for key, process in self._first.items() if key in keys and is_same_process(*process)
        }
        missing = [share for key, share in keys.items() if key not in self._first]
        ranks = {_key(share): self._first_of_rank(share) for share in missing if not share.notebook}
        self._first |= {key: process for key, process in ranks.items() if process is not None}
        notebooks = [share.workload for share in missing if share.notebook]
        if notebooks:
            self._first |= _servers(notebooks, self.servers)
        return {key: pid for key, (pid, _) in self._first.items()}


def _key(share: DeviceShare) -> Rank:
    return share.workload, share.attempt, share.rank


def _unread(sample: DeviceSample | None, now: int) -> str:
    """Why nothing of a device was read lately; empty where it was."""
    if sample is None:
        return "it was not read yet"
    age_ms = now - sample.at
    if age_ms > FRESH_MS:
        return f"the newest reading is older than {FRESH_MS // 1000} s"
    if -age_ms > AHEAD_MS:
        return f"the newest reading is dated {-age_ms // 1000} s ahead of this machine's clock"
    return "" if sample.memory_used_mib is not None else sample.why.get("memory_used_mib", "its memory was not told")


def _lives(process: ProcessUse) -> bool:
    """Whether it is still there; one of which no start is known counts as such."""
    return not process.places or is_same_process(process.pid, process.places[0][2])


def _servers(notebooks: Sequence[str], records: Servers) -> dict[Rank, Process]:
    """The servers of notebooks as the hub recorded them; where it does not, those whose variables name the share."""
    recorded = {name: server for name in notebooks if (server := records.of(name)) is not None}
    known: dict[Rank, Process] = {(name, 0, 0): (server.pid, server.started) for name, server in recorded.items()}
    others = () if records.are_all else [name for name in notebooks if name not in recorded]
    everything = processes() if others else {}
    found = {name: first_with(SHARE_VARIABLE, f'"{name}"', everything) for name in others}
    return known | {(name, 0, 0): (pid, everything[pid].started) for name, pid in found.items() if pid is not None}
