"""Refuses a share that no device of its pool could enforce as the policy requires, with a sentence that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ...backends.protocol import EnforcementBackend
from ...core.amounts import gpu_text
from ...core.enforcement import EnforcementOffer, RequiredEnforcement, best_offer
from ...core.model import WHOLE_DEVICE, Device, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A requested share: by whom, how much of one device, where. ``project`` None: for a notebook."""

    who: str
    project: str | None
    pool: str
    gpu_milli: int


class Offers:
    """What the devices of a backend can offer; asked for beside the event loop, because that may wait."""

    def __init__(self, backend: EnforcementBackend) -> None:
        self.backend = backend

    async def why_refused(self, wish: Wish, least: RequiredEnforcement, devices: Sequence[Device]) -> str | None:
        """A sentence for the person who asked, where no device could enforce the share as required; else None.

        Takes the devices on which it may be placed. A policy requires nothing of whole devices: each has one user.
        """
        devices = [device for device in devices if device.health is Health.HEALTHY]
        if not least.is_set or not devices or wish.gpu_milli >= WHOLE_DEVICE:
            return None
        found = await asyncio.to_thread(
            self.backend.capabilities, devices, gpu_milli=wish.gpu_milli, project=wish.project
        )
        if any(each.is_enough(least) for each in found.offers):
            return None
        closest = best_offer(found.offers)
        wanted = f"shares whose memory is held by {least.memory} or better, and their compute by {least.compute}"
        return (
            f"{wish.who} asked for {gpu_text(wish.gpu_milli)} GPU in the pool {wish.pool}. The quota file accepts only "
            f"{wanted} or better; {closest.device} offers memory {closest.memory}, compute {closest.compute} "
            f"({closest.why}). Ask for a whole device, which is shared with nobody and is not refused for this; an "
            "admin sees with `jupyter gpu-quota doctor` what is lacking, or changes policy.enforcement."
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
