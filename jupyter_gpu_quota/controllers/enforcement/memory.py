"""The police: who holds more of a device's memory than its share is warned, then stopped; never its neighbour.

Memory is what the readings name as the workload's own processes'. What is not known is no offence. Nobody is stopped
unless the quota file's ``policy.enforcement`` asks for it; until then it is only said.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from ...api.refusals import Refused
from ...api.store_view import World
from ...api.views.records import instant
from ...backends.local.enforcement.policed import WARN_FOR_MS, Excess, watched
from ...backends.local.enforcement.protocol import Part
from ...core.lifecycle import HOLDS_SLICE
from ...core.plan import Reason, ReasonCode
from ...store.records.commands import ChangeJob, PoliceNotebook
from ...store.records.rows import NotebookRecord, SampleRow
from ...store.writes.memory_enforcement import is_stopped

log = logging.getLogger(__name__)

ACTOR = "system:policing"
STOP_AGAIN_MS = 60_000
"""A notebook's server that is to be stopped and still runs is stopped again after so long, then killed."""


def _figures(found: Excess, device: str) -> tuple[tuple[str, int | str], ...]:
    return ("used_mib", found.used_mib), ("device", device), ("share_mib", found.share_mib)


Beat = tuple[str, str]
"""A workload and a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What the police, and whoever refuses a share after its start, may do: hold a job, stop a server, kill a leaf."""

    hold: Callable[[ChangeJob], Awaitable[object]]
    stop: Callable[[NotebookRecord], Awaitable[None]]
    note: Callable[[PoliceNotebook], Awaitable[object]]
    """Keep what is said to a notebook, and tell its owner; raises Refused for one that has ended."""

    kill: Callable[[str], object]
    """Kill what is in the control group of a notebook; nothing where it has none."""


class Policing:
    """Everybody above its share, as the newest readings have it."""

    def __init__(self, world: World, hands: Hands, clock: Callable[[], int]) -> None:
        self.world, self.hands, self.clock = world, hands, clock
        self.excess: dict[Beat, Excess] = {}
        self._asked: dict[str, list[int]] = {}
        self._warned = set[Beat]()

    def read(self, parts: Iterable[tuple[str, Part]], samples: Mapping[str, SampleRow]) -> None:
        """Take the newest readings. ``parts`` are shares with their devices' ids; of one device they are summed."""
        shares = dict[Beat, int]()
        names = set[str]()
        for device, part in parts:
            names.add(part.workload)
            if part.is_fraction and not part.simulated and part.memory_mib:
                shares[part.workload, device] = shares.get((part.workload, device), 0) + part.memory_mib
        self.excess = {beat: found for beat, share in shares.items() if (found := self._look(beat, share, samples))}
        self._asked = {name: at for name, at in self._asked.items() if name in names}

    def _look(self, beat: Beat, share_mib: int, samples: Mapping[str, SampleRow]) -> Excess | None:
        before, row = self.excess.get(beat), samples.get(beat[1])
        if row is None:
            return before
        used_mib = row.workload_memory_mib.get(beat[0])
        found = watched(before, used_mib=used_mib, share_mib=share_mib, read_at=row.at)
        if found is not None and before is None:
            log.warning("%s holds %d MiB of %s, its share is %d MiB", beat[0], found.used_mib, beat[1], share_mib)
        return found

    def warning(self, workload: str, device: str, *, acts: bool) -> str:
        """What is said to who is above its share, as a clause; empty for everybody else."""
        found = self.excess.get((workload, device))
        if found is None:
            return ""
        told = f"it holds more of the device's memory than its share of {found.share_mib} MiB"
        return f"{told}, and is stopped if it still does {WARN_FOR_MS // 1000} s after it was seen" if acts else told

    def told(self, workload: str, *, acts: bool) -> str | None:
        """The same as sentences with their figures, for all devices of a workload; None for who keeps to its share."""
        found = [(device, excess) for (name, device), excess in sorted(self.excess.items()) if name == workload]
        said = [
            f"It holds {excess.used_mib} MiB of device {device}, and its share is {excess.share_mib} MiB."
            + (f" Its server is stopped at {instant(excess.ends_at):%H:%M:%S} UTC if it still does." if acts else "")
            for device, excess in found
        ]
        return " ".join(said) or None

    async def act(self, *, acts: bool) -> None:
        """Warn who is newly above its share, and stop those whose warning is over.

        A repetition changes nothing for a job that is held already. A stop that was decided is carried out, whatever
        is read since: its reason is what people see.
        """
        now = self.clock()
        self._warned &= self.excess.keys() if acts else set()
        for beat, found in sorted(self.excess.items()):
            if acts and beat not in self._warned:
                await self._warn(beat, found)
            if acts and found.is_over(now):
                await self._stop(*beat, found, now)
        for record in list(self.world.mirror.notebooks.values()):
            if is_stopped(record) and record.notebook.state in HOLDS_SLICE:
                await self.stop_server(record, now)

    async def _warn(self, beat: Beat, found: Excess) -> None:
        """Tell the owner of a notebook, once while it lasts."""
        self._warned.add(beat)
        if beat[0] in self.world.mirror.notebooks:
            figures = (*_figures(found, beat[1]), ("stop_at", found.ends_at))
            why = Reason(code=ReasonCode.OVER_ITS_SHARE, figures=figures)
            await self._note(PoliceNotebook(notebook=beat[0], actor=ACTOR, turn="over_share", why=why))

    async def _stop(self, workload: str, device: str, found: Excess, now: int) -> None:
        figures = (*_figures(found, device), ("warned_s", (now - found.since) // 1000))
        notebook = self.world.mirror.notebooks.get(workload)
        if notebook is not None:
            await self.order_stop(notebook, Reason(code=ReasonCode.STOPPED_OVER_SHARE, figures=figures), ACTOR)
        elif workload in self.world.mirror.jobs:
            why = Reason(code=ReasonCode.OVER_ITS_SHARE, figures=figures)
            await self.hands.hold(ChangeJob(job=workload, actor=ACTOR, change="hold", why=why))

    async def order_stop(self, record: NotebookRecord, why: Reason, actor: str) -> None:
        """Store that a notebook's server is to be stopped, and why, before the hub is asked to; once."""
        if not is_stopped(record):
            await self._note(PoliceNotebook(notebook=record.notebook.id, actor=actor, turn="stopped", why=why))

    async def _note(self, request: PoliceNotebook) -> None:
        try:
            await self.hands.note(request)
        except Refused as refused:  # its server ended just now
            log.debug("%s", refused)

    async def stop_server(self, record: NotebookRecord, now: int) -> None:
        """Stop a notebook's server; one that was asked to before and is still there has its processes killed."""
        name = record.notebook.id
        asked = self._asked.setdefault(name, [])
        if asked and now - asked[-1] < STOP_AGAIN_MS:
            return
        if asked:
            self.hands.kill(name)
        asked.append(now)
        log.warning("the server of notebook %s is stopped: its share of the GPU is not kept", name)
        await self.hands.stop(record)
