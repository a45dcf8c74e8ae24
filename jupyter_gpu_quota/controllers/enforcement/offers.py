"""What the devices of a pool could hold a share by, as was probed, and why a share that is held by less is refused."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...backends.local.enforcement.cgroup import Leaves
from ...backends.local.enforcement.labels import SIMULATED, Offer, best, offer
from ...backends.local.enforcement.protocol import STRONGEST_FIRST, Least, Machine
from ...backends.local.sampling.machine import probe
from ...backends.local.sampling.reader_client import Silence
from ...backends.local.sampling.reading import DeviceReading, Reading
from ...core.amounts import gpu_text
from ...core.model import WHOLE_DEVICE, Device, Health

PROBE_EVERY_S = 600.0
place_of = STRONGEST_FIRST.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A share that is asked for: by whom, how much of one device, where."""

    who: str
    project: str
    pool: str
    gpu_milli: int
    notebook: bool


class Offers:
    """Probes this machine's devices when a policy asks for more than nothing, and remembers the answer for a while."""

    def __init__(
        self, leaves: Leaves, mps: Mapping[str, str], ask: Callable[[], Reading | Silence] = probe,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:  # fmt: skip
        self._leaves, self._mps, self._ask, self._clock, self._now = leaves, mps, ask, clock, now
        self._known: tuple[float, Reading | Silence] | None = None
        self._read_at = 0
        self._turn = asyncio.Lock()

    async def why_refused(self, wish: Wish, least: Least, devices: Sequence[Device]) -> str | None:
        """A sentence for who asked, where no device of the pool could hold the share as the policy wants; else None.

        Takes the devices on which it may be placed. Of whole devices a policy asks nothing: each has one holder.
        """
        devices = [device for device in devices if device.health is Health.HEALTHY]
        if not least.asks or not devices or wish.gpu_milli >= WHOLE_DEVICE:
            return None
        told = await self._told() if any(not device.simulated for device in devices) else None
        offers = [self._offer(device, told, wish) for device in devices]
        if best(offers, least) is not None:
            return None
        closest = closest_of(offers)
        wanted = f"shares whose memory is held by {least.memory} or better, and their compute by {least.compute}"
        return (
            f"{wish.who} asked for {gpu_text(wish.gpu_milli)} GPU in the pool {wish.pool}. The quota file accepts only "
            f"{wanted} or better; {closest.device} offers memory {closest.memory}, compute {closest.compute} "
            f"({closest.why}). Ask for a whole device, which is shared with nobody and is not refused for this; an "
            "admin sees with `jupyter gpu-quota doctor` what is lacking, or changes policy.enforcement."
        )

    async def of_fractions(
        self, pool: str, devices: Sequence[Device], project: str | None = None
    ) -> tuple[Sequence[Offer], int]:
        """The best that a fraction of each device could be held by, and when that was read.

        It is a notebook's, or that of a job of ``project``. The instant is in milliseconds; it is now where nothing had
        to be read or could be.
        """
        half, notebook = WHOLE_DEVICE // 2, project is None
        wish = Wish(who="", project=project or "", pool=pool, gpu_milli=half, notebook=notebook)
        told = await self._told() if any(not device.simulated for device in devices) else None
        known = isinstance(told, Reading)
        return [self._offer(device, told, wish) for device in devices], self._read_at if known else self._now()

    def _offer(self, device: Device, told: Reading | Silence | None, wish: Wish) -> Offer:
        if device.simulated:
            return Offer(device=device.id, why=SIMULATED)
        found = _reading_of(device, told)
        if isinstance(found, str):
            return Offer(device=device.id, why=found, unsure=True)
        assert isinstance(told, Reading)
        machine = Machine(
            driver=told.driver, no_cgroups=self._leaves.why_no_limits, root=os.geteuid() == 0, mps=self._mps
        )  # fmt: skip
        return offer(found, machine, wish.gpu_milli, wish.project, notebook=wish.notebook)

    async def _told(self) -> Reading | Silence:
        async with self._turn:
            if self._known is None or self._clock() - self._known[0] >= PROBE_EVERY_S:
                told = await asyncio.to_thread(self._ask)
                if isinstance(told, Silence):
                    return told
                self._known, self._read_at = (self._clock(), told), self._now()
            return self._known[1]


def closest_of(offers: Sequence[Offer]) -> Offer:
    """The one that offers most."""
    return min(offers, key=lambda each: (place_of(each.memory), place_of(each.compute), each.device))


def _reading_of(device: Device, told: Reading | Silence | None) -> DeviceReading | str:
    """The reading of a device, or why there is none."""
    if not isinstance(told, Reading):
        return "its devices cannot be read" if told is None else f"its devices cannot be read: {told.why}"
    found = next((each for each in told.devices if each.uuid == device.uuid), None)
    return found or told.absent or "NVML does not name it"
