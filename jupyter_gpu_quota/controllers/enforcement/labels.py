"""How every share is held: read back again and again, labelled, stored, and compared with what the policy accepts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from ...api.store_view import World
from ...api.writer import Writer
from ...backends.local.enforcement.labels import label
from ...backends.local.enforcement.protocol import Label, Least, Part
from ...core.lifecycle import HOLDS_SLICE
from ...core.model import Allocation, JobState
from ...store.records.commands import LabelShares, ShareLabel
from ..loop import go_round
from .memory import Hands, Policing
from .offers import Offers
from .read_back import ReadBack
from .weak_shares import ACTOR, WeakShares

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
SWEEP_EVERY_MS = 60_000


class Shares:
    """Labels of all shares that are held now. ``least`` is what the policy in force accepts."""

    def __init__(
        self, world: World, writer: Writer, readback: ReadBack, hands: Hands, *, least: Callable[[], Least],
        offers: Callable[[], Offers], clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self.world, self.writer, self.readback, self.least, self.clock = world, writer, readback, least, clock
        self.hands, self.policing = hands, Policing(world, hands, clock)
        self.weak = WeakShares(world, hands, self.policing, offers=offers, clock=clock)
        self._recalled = False
        self._sweep_at = 0

    def warning(self, notebook: str) -> str | None:
        """What is said to a notebook that holds more than its share, or that too little holds; None to any other."""
        said = (self.policing.told(notebook, acts=self.least().polices), self.weak.told(notebook))
        return " ".join(filter(None, said)) or None

    async def look(self) -> None:
        """Read back every share that is held now, keep what is new, and stop what must be stopped."""
        await self._recall()
        held = list(self._held())
        self.policing.read(((allocation.device, part) for allocation, part in held), self.world.samples)
        seen = await self.readback.read(held, policed=self.least().polices)
        found = {allocation.id: label(part, seen[allocation.id]) for allocation, part in held}
        await self._keep(held, found)
        await self.policing.act(acts=self.least().polices)
        await self._sweep()
        await self.weak.act(held, found, self.least())

    async def _recall(self) -> None:
        """Begin with what was last stored, so that nobody is told less meanwhile."""
        if not self._recalled:
            names = list(self.world.allocations)
            self.world.labels = await self.world.read(self.world.store.labels, names)
            self._recalled = True

    def _held(self) -> Iterator[tuple[Allocation, Part]]:
        """Shares of jobs that run and of notebooks whose slice is booked, as far as their devices are known."""
        for allocation in list(self.world.allocations.values()):
            part = self._part(allocation)
            if part is not None:
                yield allocation, part

    def _part(self, allocation: Allocation) -> Part | None:
        mirror, device = self.world.mirror, self.world.device(allocation.device)
        job, notebook = mirror.jobs.get(allocation.workload), mirror.notebooks.get(allocation.workload)
        runs = job is not None and job.job.state in (JobState.RUNNING, JobState.PAUSING)
        booked = notebook is not None and notebook.notebook.state in HOLDS_SLICE
        if device is None or not (runs or booked):
            return None
        return Part(
            workload=allocation.workload, device=device.uuid, gpu_milli=allocation.gpu_milli,
            memory_mib=allocation.memory_mib, rank=allocation.rank, attempt=0 if job is None else job.job.attempt,
            notebook=booked, simulated=device.simulated,
        )  # fmt: skip

    async def _keep(self, held: Sequence[tuple[Allocation, Part]], found: dict[str, Label]) -> None:
        """Store labels that say something new, and only then show them."""
        now, acts = self.clock(), self.least().polices
        told = dict[str, ShareLabel]()
        for allocation, _ in held:
            each = found[allocation.id]
            warning = self.policing.warning(allocation.workload, allocation.device, acts=acts)
            why = "; ".join(filter(None, (warning, each.why, self.weak.told(allocation.workload))))
            told[allocation.id] = ShareLabel(
                allocation=allocation.id, memory=each.memory, compute=each.compute, why=why, read_at=now
            )
        known = self.world.labels
        new = tuple(each for name, each in told.items() if name not in known or known[name].says != each.says)
        if new:
            await self.writer.record(LabelShares(labels=new, actor=ACTOR))
        self.world.labels = told

    async def _sweep(self) -> None:
        """Clear up, now and then, after notebooks whose slice is given back."""
        now = self.clock()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY_MS
            real = [device.uuid for device in self.world.mirror.devices.values() if not device.simulated]
            await self.readback.sweep(self.world.mirror.notebooks.keys(), [uuid for uuid in real if uuid])


async def keep_looking(shares: Shares) -> None:
    """Look every other second, for ever."""

    async def look() -> None:
        await shares.world.fresh()
        await shares.world.sampled()
        await shares.look()

    await go_round(look, LOOK_EVERY_S, "shares cannot be read back now", log)
