"""Shares that are held by less than the policy accepts: their owners' countdown, its end, and who waits for such a one.

A policy asks of fractions alone: a whole device has one holder, and nobody to be held back from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...api.refusals import Refused
from ...api.store_view import World
from ...api.views.records import instant
from ...backends.local.enforcement.labels import too_weak
from ...backends.local.enforcement.protocol import Label, Least, Part
from ...core.lifecycle import WAITING
from ...core.model import WHOLE_DEVICE, Allocation, Device, Health, Job, JobTarget
from ...core.plan import Reason, ReasonCode
from ...store.records.commands import ChangeJob, PoliceNotebook
from .memory import Hands, Policing
from .offers import Offers, closest_of

log = logging.getLogger(__name__)

ACTOR = "system:enforcement"
WEAK_FOR_MS = 60_000
"""A share that was read back as held by less than the policy accepts may be so for as long: a start takes its time."""

WARN_FOR_MS = 300_000
"""Then its owner is warned, and has so long before it ends."""

WAITING_EVERY_MS = 10_000
Held = Sequence[tuple[Allocation, Part]]
Figures = tuple[tuple[str, int | str], ...]


class WeakShares:
    """Who is held too weakly, since when, and when that ends. A restart of the service begins anew."""

    def __init__(
        self, world: World, hands: Hands, policing: Policing, *, offers: Callable[[], Offers],
        clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self.world, self.hands, self.policing, self.offers, self.clock = world, hands, policing, offers, clock
        self.stop_at: dict[str, int] = {}
        self._why: dict[str, str] = {}
        self._since: dict[str, int] = {}
        self._waiting_at = 0

    def told(self, workload: str) -> str | None:
        """What is said to the owner of a share that will end for it, as sentences; None for everybody else."""
        at = self.stop_at.get(workload)
        if at is None:
            return None
        end = "its server is stopped" if workload in self.world.mirror.notebooks else "it is asked to save, and held"
        return f"{self._why[workload]} At {instant(at):%H:%M:%SZ} {end}, unless that has changed."

    async def act(self, held: Held, found: Mapping[str, Label], least: Least) -> None:
        """Warn the owners of shares that are surely held too weakly, and end those whose countdown is over."""
        now = self.clock()
        weak = {
            allocation.id: allocation
            for allocation, part in held
            if part.is_fraction and too_weak(found[allocation.id], least) and self._counts(allocation, found)
        }
        self._since = {name: self._since.get(name, now) for name in weak}
        workloads = {one.workload for one in weak.values()}
        self.stop_at = {name: at for name, at in self.stop_at.items() if name in workloads}
        sure = (one for name, one in weak.items() if now - self._since[name] >= WEAK_FOR_MS and not found[name].unsure)
        for one in sure:
            await self._next(one, figures_of(one.device, found[one.id], least), now)
        await self._hold_waiting(least, now)

    def _counts(self, one: Allocation, found: Mapping[str, Label]) -> bool:
        """A gap in the readings begins nothing, and ends no countdown; at its end nothing happens in one."""
        return not found[one.id].unsure or (one.workload in self.stop_at and one.id in self._since)

    async def _next(self, one: Allocation, figures: Figures, now: int) -> None:
        if one.workload not in self.stop_at:
            await self._warn(one.workload, figures, now + WARN_FOR_MS)
        elif now >= self.stop_at[one.workload]:
            await self._end(one.workload, figures)

    async def _warn(self, workload: str, figures: Figures, stop_at: int) -> None:
        self.stop_at[workload], self._why[workload] = stop_at, weak_sentence(dict(figures))
        log.warning("%s ends at %d: %s", workload, stop_at, self._why[workload])
        if workload not in self.world.mirror.notebooks:
            return
        why = Reason(code=ReasonCode.HELD_TOO_WEAKLY, figures=(*figures, ("stop_at", stop_at)))
        try:
            await self.hands.note(PoliceNotebook(notebook=workload, actor=ACTOR, turn="too_weak", why=why))
        except Refused as refused:  # its server ended just now
            log.debug("%s", refused)

    async def _end(self, workload: str, figures: Figures) -> None:
        notebook = self.world.mirror.notebooks.get(workload)
        if notebook is not None:
            why = Reason(code=ReasonCode.STOPPED_TOO_WEAK, figures=figures)
            await self.policing.order_stop(notebook, why, ACTOR)
            return
        why = Reason(code=ReasonCode.HELD_TOO_WEAKLY, figures=figures)
        await self.hands.hold(ChangeJob(job=workload, actor=ACTOR, change="hold", why=why))

    # --- who waits for what would end ---------------------------------------------------------------------------------
    async def _hold_waiting(self, least: Least, now: int) -> None:
        """Hold jobs that wait for a fraction which no device of their pool could hold: they would start, and end."""
        if not least.asks or now < self._waiting_at:
            return
        self._waiting_at = now + WAITING_EVERY_MS
        for job, figures in await hopeless(self.offers(), self.world.devices_in, self._jobs(), least):
            why = Reason(code=ReasonCode.NOTHING_HOLDS_IT, figures=figures)
            await self.hands.hold(ChangeJob(job=job.id, actor=ACTOR, change="hold", why=why))

    def _jobs(self) -> list[Job]:
        return [record.job for record in self.world.mirror.jobs.values()]


async def hopeless(
    offers: Offers, devices_in: Callable[[str], Sequence[Device]], jobs: Iterable[Job], least: Least
) -> list[tuple[Job, Figures]]:
    """Jobs that wait for a fraction, and surely no device of their pool could hold one; with what the best offers."""
    known, found = dict[tuple[str, str, tuple[str, ...]], Figures | None](), list[tuple[Job, Figures]]()
    for job in jobs:
        if not least.asks or job.state not in WAITING or job.target is not JobTarget.RUNNING or not _is_fraction(job):
            continue
        key = job.pool, job.project, job.gpu_models
        if key not in known:
            known[key] = await _best_but_weak(offers, devices_in(job.pool), job, least)
        if (figures := known[key]) is not None:
            found.append((job, figures))
    return found


def _is_fraction(job: Job) -> bool:
    return job.gpu_milli < WHOLE_DEVICE


async def _best_but_weak(offers: Offers, devices: Sequence[Device], job: Job, least: Least) -> Figures | None:
    """What the best device for a job offers; None where one is enough, or where that is not known of all."""
    well = [
        device
        for device in devices
        if device.health is Health.HEALTHY and (not job.gpu_models or device.model in job.gpu_models)
    ]
    found, _ = await offers.of_fractions(job.pool, well, job.project)
    if not found or any(each.unsure or each.is_enough(least) for each in found):
        return None
    best = closest_of(found)
    return figures_of(best.device, Label(memory=best.memory, compute=best.compute), least)


def figures_of(device: str, found: Label, least: Least) -> Figures:
    return (
        ("device", device), ("memory", str(found.memory)), ("compute", str(found.compute)),
        ("least_memory", str(least.memory)), ("least_compute", str(least.compute)),
    )  # fmt: skip


def weak_sentence(figures: Mapping[str, object]) -> str:
    """Why a share is too weak, by the figures of its reason."""
    return (
        f"Its share of device {figures['device']} is read back as memory {figures['memory']}, compute "
        f"{figures['compute']}; the quota file accepts memory {figures['least_memory']} and compute "
        f"{figures['least_compute']} at least."
    )
