"""The enforcement that devices offer, and the refusal of shares below the policy's requirement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...backends.protocol import CapabilityReader
from ...core.amounts import gpu_text
from ...core.enforcement.levels import EnforcementOffer, RequiredEnforcement, best_offer
from ...core.model import WHOLE_DEVICE, Device, Health
from ..access.refusals import Refused


class Offers:
    """The offers of a backend's devices, read outside the event loop, because that may wait."""

    def __init__(self, backend: CapabilityReader) -> None:
        self.backend = backend

    async def check(
        self,
        user: str,
        *,
        pool: str,
        gpu_milli: int,
        devices: Sequence[Device],
        least: RequiredEnforcement,
        project: str | None = None,
    ) -> None:
        """Refuse a share that none of the devices where it may be placed could enforce as required.

        ``project`` None: for a notebook. A policy requires nothing of whole devices: each has one user.
        """
        devices = [device for device in devices if device.health is Health.HEALTHY]
        if not least.is_set or not devices or gpu_milli >= WHOLE_DEVICE:
            return
        found = await asyncio.to_thread(self.backend.capabilities, devices, gpu_milli=gpu_milli, project=project)
        if any(each.is_enough(least) for each in found.offers):
            return
        closest = best_offer(found.offers)
        raise Refused(
            409,
            "enforcement_too_weak",
            f"{user} asked for {gpu_text(gpu_milli)} GPU in the pool {pool}. The quota file requires at least "
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
        found = await asyncio.to_thread(
            self.backend.capabilities, devices, gpu_milli=WHOLE_DEVICE // 2, project=project
        )
        return found.offers, found.read_at
