"""What can be read of a share from outside: the driver's limit on its group, who is in that, variables, readings.

Nothing here trusts what was set, or who set it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ...api.store_view import World
from ...api.views.utilisation import AHEAD_MS
from ...backends.local.enforcement.cgroup import Leaves, leaf_of, notebook_leaf
from ...backends.local.enforcement.cooperative import first_with, variables_of
from ...backends.local.enforcement.limiter import Limiter
from ...backends.local.enforcement.limits_client import Ask, Told, limits
from ...backends.local.enforcement.protocol import Part, Seen
from ...backends.local.processes import is_same_process, processes
from ...backends.local.sampling.device_shares import MPS
from ...backends.local.servers import Servers
from ...backends.rendering.variables import SHARE_VARIABLE
from ...core.idle.activity import ProcessUse
from ...core.model import Allocation
from ...store.records.rows import RankRecord, SampleRow

FRESH_MS = 45_000
"""A reading that is older says nothing of how things are now; devices are read every ten seconds."""

LIMITS_EVERY_MS = 30_000
NOT_LIMITED = "the driver was not asked: its processes have no control group of their own"
NO_PROCESS = "its first process is not known yet"

Held = Sequence[tuple[Allocation, Part]]
Rank = tuple[str, int, int]
"""A workload, an attempt and a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """What the driver told of one leaf and device, and when."""

    told: Told
    at: int


class ReadBack:
    """Reads shares back. ``ask`` reads the driver's limits, in a process of its own; it may wait."""

    def __init__(
        self, world: World, leaves: Leaves, servers: Servers, clock: Callable[[], int],
        ask: Callable[[Sequence[Ask]], Sequence[Told]] = limits,
    ) -> None:  # fmt: skip
        self.world, self.leaves, self.clock, self._ask = world, leaves, clock, ask
        self.servers = servers
        self._limiter = Limiter(leaves, lambda asked: self._ask(asked))  # noqa: PLW0108 - tests tell it later
        self._limits: dict[tuple[str, str], _Limit] = {}
        self._first: dict[Rank, tuple[int, int | None]] = {}

    async def sweep(self, notebooks: Collection[str], devices: Sequence[str]) -> None:
        """Release what a hub that was killed left of notebooks that are over: groups, records. Those in use stay."""
        kept = {notebook_leaf(name) for name in notebooks}
        over = [name for name in self.leaves.names() if name.startswith("notebook.") and name not in kept]
        for name in over:
            await asyncio.to_thread(self._limiter.release, name, devices)
        await asyncio.to_thread(self.servers.sweep, frozenset(notebooks))

    async def read(self, held: Held, *, policed: bool) -> Mapping[str, Seen]:
        """What is seen of each share, by allocation. Of simulated devices nothing is."""
        real = [(allocation, part) for allocation, part in held if not part.simulated]
        pids = await self._first_pids([part for _, part in real if part.is_fraction])
        await asyncio.to_thread(self._read_limits, [part for _, part in real if part.is_fraction])
        seen = {allocation.id: Seen() for allocation, _ in held}
        for allocation, part in real:
            seen[allocation.id] = self._seen(allocation, part, pids.get(_key(part)), policed=policed)
        return seen

    def _seen(self, allocation: Allocation, part: Part, pid: int | None, *, policed: bool) -> Seen:
        row = self.world.samples.get(allocation.device)
        unread = self._unread(row)
        limit = self._limits.get((leaf_of(part), part.device or ""))
        told = Told(why=NOT_LIMITED) if limit is None else limit.told
        unknown = "" if row is None else row.why.get(part.workload, "")
        known = row is not None and row.workload_memory_mib.get(part.workload) is not None
        return Seen(
            unread=unread,
            limit_mib=told.limit_mib,
            no_limit=told.why,
            outside="" if told.limit_mib is None else self._outside(part, pid) or self._got_away(part, row),
            variables=None if pid is None else variables_of(pid),
            no_memory="" if known else unknown or "the memory of its processes was not read",
            mps=unknown == MPS,
            policed=policed,
        )

    def _unread(self, row: SampleRow | None) -> str:
        if row is None:
            return "it was not read yet"
        age_ms = self.clock() - row.at
        if age_ms > FRESH_MS:
            return f"the newest reading is older than {FRESH_MS // 1000} s"
        if -age_ms > AHEAD_MS:
            return f"the newest reading is dated {-age_ms // 1000} s ahead of this machine's clock"
        return "" if row.memory_used_mib is not None else row.why.get("memory_used_mib", "its memory was not told")

    def _outside(self, part: Part, pid: int | None) -> str:
        """Why the processes of a share are not those that the limit holds; empty where they are."""
        inside = self.leaves.processes(leaf_of(part))
        if not inside:
            return "nothing runs in the control group that has the limit"
        if pid is None:
            return NO_PROCESS
        return "" if pid in inside else f"its first process ({pid}) is not in the control group that has the limit"

    def _got_away(self, part: Part, row: SampleRow | None) -> str:
        """Why the limit does not hold all that is on the device; the groups of all ranks of a job are its own."""
        own = leaf_of(part) if part.notebook else f"job.{part.workload}."
        groups = [name for name in self.leaves.names() if name == own or (not part.notebook and name.startswith(own))]
        inside = frozenset[int]().union(*map(self.leaves.processes, groups))
        there = () if row is None else row.processes.get(part.workload, ())
        away = [each.pid for each in there if each.pid not in inside and _lives(each)]
        return f"its process {away[0]} is not in the control group that has the limit" if away else ""

    # --- the driver -----------------------------------------------------------------------------------------------
    def _read_limits(self, parts: Sequence[Part]) -> None:
        """Ask for the limits of every leaf that is there, when one is new or the last answers are old."""
        wanted = {
            (leaf_of(part), part.device)
            for part in parts
            if part.device and not part.is_instance and self.leaves.exists(leaf_of(part))
        }
        now = self.clock()
        self._limits = {key: known for key, known in self._limits.items() if key in wanted}
        if all(key in self._limits and now - self._limits[key].at < LIMITS_EVERY_MS for key in wanted):
            return
        asked = sorted(wanted)
        told = self._ask([Ask(device=device, group=str(self.leaves.path(leaf))) for leaf, device in asked])
        self._limits = {key: _Limit(told=each, at=now) for key, each in zip(asked, told, strict=True)}

    # --- processes ------------------------------------------------------------------------------------------------
    async def _first_pids(self, parts: Sequence[Part]) -> Mapping[Rank, int]:
        """The first process of each part: a rank's own, or the server of a notebook."""
        keys = {_key(part): part for part in parts}
        self._first = {key: who for key, who in self._first.items() if key in keys and is_same_process(*who)}
        missing = [part for key, part in keys.items() if key not in self._first]
        for job in sorted({part.workload for part in missing if not part.notebook}):
            self._first |= _first_of(await self.world.read(self.world.store.ranks, job))
        notebooks = [part.workload for part in missing if part.notebook]
        if notebooks:
            self._first |= await asyncio.to_thread(_servers, notebooks, self.servers)
        return {key: pid for key, (pid, _) in self._first.items()}


def _key(part: Part) -> Rank:
    return part.workload, part.attempt, part.rank


def _first_of(ranks: Sequence[RankRecord]) -> dict[Rank, tuple[int, int | None]]:
    live = (rank for rank in ranks if rank.ended_at is None)
    return {(rank.job, rank.attempt, rank.rank): (rank.pid, rank.pid_started) for rank in live if rank.pid is not None}


def _lives(process: ProcessUse) -> bool:
    """Whether it is still there; one of which no start is known counts as such."""
    return not process.places or is_same_process(process.pid, process.places[0][2])


def _servers(notebooks: Sequence[str], records: Servers) -> dict[Rank, tuple[int, int | None]]:
    """The servers of notebooks as the hub recorded them; where it need not, known by the share that variables name."""
    recorded = {name: server for name in notebooks if (server := records.of(name)) is not None}
    known: dict[Rank, tuple[int, int | None]] = {
        (name, 0, 0): (server.pid, server.started) for name, server in recorded.items()
    }
    others = () if records.are_all else [name for name in notebooks if name not in recorded]
    everybody = processes() if others else {}
    found = {name: first_with(SHARE_VARIABLE, f'"{name}"', everybody) for name in others}
    return known | {(name, 0, 0): (pid, everybody[pid].started) for name, pid in found.items() if pid is not None}
