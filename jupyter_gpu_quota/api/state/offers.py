"""The enforcement that devices offer, and the refusal of shares below the policy's requirement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from ...backends.protocol import Capabilities, CapabilityReader
from ...core.amounts import gpu_text
from ...core.enforcement.levels import EnforcementLevel, EnforcementOffer, RequiredEnforcement, best_offer, is_weaker
from ...core.enforcement.over_share import FRESH_MS
from ...core.model import WHOLE_DEVICE, Device, Health
from ...core.samples import DeviceSample
from ..access.permissions import Person
from ..access.refusals import Refused
from ..access.work_in_progress import DEVICE_CHECKS, WorkInProgress

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 8
"""While a driver hangs, every check waits for the one probe, and no other work of the service does."""


class EnforcementOffers:
    """The offers of a backend's devices, read in threads of their own, because that may wait.

    ``samples`` has the newest sample of each device; ``clock`` is in milliseconds since 1970.
    """

    def __init__(
        self, backend: CapabilityReader, samples: Callable[[], Mapping[str, DeviceSample]], clock: Callable[[], int]
    ) -> None:
        self.backend, self._samples, self._clock = backend, samples, clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="offers")

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that reads offers outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def check(
        self,
        person: Person,
        in_progress: WorkInProgress,
        *,
        pool: str,
        gpu_milli: int,
        devices: Sequence[Device],
        least: RequiredEnforcement,
        project: str | None = None,
    ) -> None:
        """Refuse a share that none of the devices where it may be placed could enforce as required.

        ``project`` None: for a notebook. A policy requires nothing of whole devices: each has one user. A person has
        few checks at a time. Raises LimitReached.
        """
        devices = [device for device in devices if device.health is Health.HEALTHY]
        if not least.is_set or not devices or gpu_milli >= WHOLE_DEVICE:
            return
        with in_progress.one(person, DEVICE_CHECKS):
            found = await self.in_thread(self._capabilities, devices, gpu_milli, project)
        if any(each.is_enough(least) for each in found.offers):
            return
        closest = best_offer(found.offers)
        raise Refused(
            409,
            "enforcement_too_weak",
            f"{person.name} asked for {gpu_text(gpu_milli)} GPU in the pool {pool}. The quota file requires at least "
            f"memory {least.memory}, compute {least.compute} for shares of a device; the best one, {closest.device}, "
            f"offers memory {closest.memory}, compute {closest.compute} ({closest.why}). Ask for a whole device, which "
            "needs no enforcement, or ask an admin to fix what `jupyter gpu-quota doctor` reports or to change "
            "policy.enforcement.",
        )

    async def least_rank(self, devices: Sequence[Device], least: RequiredEnforcement, project: str | None) -> int:
        """The least GPU of a rank, in milli-GPU, that ``check`` accepts: a whole device where no part is enforced."""
        devices = [device for device in devices if device.health is Health.HEALTHY]
        if not least.is_set or not devices:
            return 1
        offers, _ = await self.of_fractions(devices, project)
        return 1 if any(each.is_enough(least) for each in offers) else WHOLE_DEVICE

    def of_jobs(self, devices: Sequence[Device], project: str) -> Sequence[EnforcementOffer]:
        """The best for a job's fraction of each device; it may wait."""
        return self._capabilities(devices, WHOLE_DEVICE // 2, project).offers

    async def of_fractions(
        self, devices: Sequence[Device], project: str | None = None
    ) -> tuple[Sequence[EnforcementOffer], int]:
        """The best for a fraction of each device, and when that was read, in milliseconds.

        It is a notebook's, or that of a job of ``project``.
        """
        found = await self.in_thread(self._capabilities, devices, WHOLE_DEVICE // 2, project)
        return found.offers, found.read_at

    def _capabilities(self, devices: Sequence[Device], gpu_milli: int, project: str | None) -> Capabilities:
        """As the backend reads them; memory of a device whose enforcement is unknown is policed where it is sampled."""
        found, now = self.backend.capabilities(devices, gpu_milli=gpu_milli, project=project), self._clock()
        samples = self._samples()
        offers = tuple(
            replace(offer, memory=EnforcementLevel.POLICED)
            if offer.unsure and is_weaker(offer.memory, EnforcementLevel.POLICED) and _is_read(samples.get(name), now)
            else offer
            for name, offer in zip((device.id for device in devices), found.offers, strict=True)
        )
        return replace(found, offers=offers)


def _is_read(sample: DeviceSample | None, now: int) -> bool:
    """Whether a present sample has the memory of every workload on its device, and of any that begins to use it."""
    if sample is None or sample.is_stand_in or not sample.shows_workloads or abs(now - sample.at) > FRESH_MS:
        return False
    return sample.memory_used_mib is not None and None not in sample.workload_memory_mib.values()
