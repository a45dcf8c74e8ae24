"""The enforcement that devices offer, and the refusal of shares below the policy's requirement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from ...backends.protocol import CapabilityReader
from ...core.amounts import gpu_text
from ...core.enforcement.levels import EnforcementOffer, RequiredEnforcement, best_offer
from ...core.model import WHOLE_DEVICE, Device, Health
from ..access.permissions import Person
from ..access.refusals import Refused
from ..access.work_in_progress import DEVICE_CHECKS, WorkInProgress

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 8
"""While a driver hangs, every check waits for the one probe, and no other work of the service does."""


class EnforcementOffers:
    """The offers of a backend's devices, read in threads of their own, because that may wait."""

    def __init__(self, backend: CapabilityReader) -> None:
        self.backend = backend
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
            found = await self.in_thread(self.backend.capabilities, devices, gpu_milli=gpu_milli, project=project)
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

    def of_jobs(self, devices: Sequence[Device], project: str) -> Sequence[EnforcementOffer]:
        """The best for a job's fraction of each device; it may wait."""
        return self.backend.capabilities(devices, gpu_milli=WHOLE_DEVICE // 2, project=project).offers

    async def of_fractions(
        self, devices: Sequence[Device], project: str | None = None
    ) -> tuple[Sequence[EnforcementOffer], int]:
        """The best for a fraction of each device, and when that was read, in milliseconds.

        It is a notebook's, or that of a job of ``project``.
        """
        found = await self.in_thread(self.backend.capabilities, devices, gpu_milli=WHOLE_DEVICE // 2, project=project)
        return found.offers, found.read_at
