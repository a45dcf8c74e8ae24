"""Whose work would end, or not start, because a quota file's ``policy.enforcement`` asks for more than holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ...core.enforcement import (
    EnforcementLabel,
    EnforcementLevel,
    EnforcementOffer,
    RequiredEnforcement,
    is_too_weak,
    is_weaker,
)
from ...core.lifecycle import HOLDS_SLICE
from ...core.model import WHOLE_DEVICE, Allocation, Device, Job, JobState, Notebook
from ...core.unenforceable import WARN_FOR_MS, WEAK_FOR_MS, unenforceable, weak_share
from ...messages.reasons import warning
from ...quotafile import QuotaFile

if TYPE_CHECKING:
    from ..requests.services import Door

RUNS = (JobState.STARTING, JobState.RUNNING)
MINUTES = (WEAK_FOR_MS + WARN_FOR_MS) // 60_000
WARNED = WARN_FOR_MS // 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A workload that is held or stopped under another file. ``what`` goes on from it; ``waits``: not started."""

    work: Job | Notebook
    effect: Literal["held", "stopped"]
    what: str
    waits: bool = False


async def ended_by(door: Door, file: QuotaFile, devices: Sequence[Device]) -> tuple[Ended, ...]:
    """Everybody with a fraction that the file asks more for than holds it, and the file in force does not.

    Takes all devices, in the pools of the file.
    """
    if not file.least.is_set:
        return ()
    present = door.world.quota_file.least if door.world.quota_file else RequiredEnforcement()
    offers = await _offers(door, devices)
    found = dict[str, Ended]()
    for one in door.world.allocations.values():
        label, best = door.world.label_of(one.id), offers.get(one.device)
        held = (
            None
            if label is None
            else EnforcementLabel(memory=EnforcementLevel(label.memory), compute=EnforcementLevel(label.compute))
        )
        now, then = (_label(held, best, least) for least in (present, file.least))
        if one.gpu_milli < WHOLE_DEVICE and is_too_weak(then, file.least) and not is_too_weak(now, present):
            _add(door, found, one, warning(weak_share(one.device, then, file.least)))
    return (*found.values(), *await _waiting(door, file.least, present, devices))


async def _offers(door: Door, devices: Sequence[Device]) -> Mapping[str, EnforcementOffer]:
    found, _ = await door.offers.of_fractions(devices)
    return {device.id: each for device, each in zip(devices, found, strict=True)}


def _label(
    held: EnforcementLabel | None, best: EnforcementOffer | None, least: RequiredEnforcement
) -> EnforcementLabel:
    """How a share is held under a policy: as was read back, but watched where that asks for it and it can be.

    Of one that was not read back yet what its device offers counts; of which nothing is known, it is held well.
    """
    if held is None:
        known = best is not None and not best.unsure
        return EnforcementLabel(memory=best.memory, compute=best.compute) if best and known else EnforcementLabel(
            memory=EnforcementLevel.HARDWARE, compute=EnforcementLevel.HARDWARE
        )  # fmt: skip
    seen = best is not None and not is_weaker(best.memory, EnforcementLevel.POLICED)
    watched = least.stops_over_share and seen and is_weaker(held.memory, EnforcementLevel.POLICED)
    return replace(held, memory=EnforcementLevel.POLICED) if watched else held


def _add(door: Door, found: dict[str, Ended], one: Allocation, why: str) -> None:
    mirror = door.world.mirror
    job, notebook = mirror.jobs.get(one.workload), mirror.notebooks.get(one.workload)
    if job is not None and job.job.state in RUNS:
        what = f"is asked to save, and held, {MINUTES} minutes after this is in force; what it does not save is lost."
        found[one.workload] = Ended(work=job.job, effect="held", what=f"{what} {why}")
    elif notebook is not None and notebook.notebook.state in HOLDS_SLICE:
        what = (
            f"has its server stopped {MINUTES} minutes after this is in force, and its owner is warned {WARNED} "
            "minutes before; the variables of its kernels are lost."
        )
        found[one.workload] = Ended(work=notebook.notebook, effect="stopped", what=f"{what} {why}")


async def _waiting(
    door: Door, least: RequiredEnforcement, present: RequiredEnforcement, devices: Sequence[Device]
) -> list[Ended]:
    """Jobs that wait for a fraction which no device could hold so: they are held before they start."""
    world = door.world
    jobs = [record.job for record in world.mirror.jobs.values()]
    already = {
        job.id
        for job, _ in await asyncio.to_thread(unenforceable, door.offers.of_jobs, world.devices_in, jobs, present)
    }
    inside = lambda pool: [device for device in devices if device.pool == pool]  # noqa: E731 - as the file has them
    return [
        Ended(
            work=job, effect="held", waits=True,
            what=f"waits, and is held before it starts: the best device for it offers memory {why.memory}, compute "
            f"{why.compute}; the file requires at least memory {why.least_memory}, compute {why.least_compute}.",
        )
        for job, why in await asyncio.to_thread(unenforceable, door.offers.of_jobs, inside, jobs, least)
        if job.id not in already
    ]  # fmt: skip


def stops_of(ended: Sequence[Ended]) -> tuple[str, ...]:
    """What must be accepted by name: how much that runs ends, in a sentence; nothing where none does."""
    jobs = sum(isinstance(one.work, Job) and not one.waits for one in ended)
    servers = sum(isinstance(one.work, Notebook) for one in ended)
    parts = []
    if jobs:
        parts.append("1 running job is held" if jobs == 1 else f"{jobs} running jobs are held")
    if servers:
        parts.append("1 notebook server is stopped" if servers == 1 else f"{servers} notebook servers are stopped")
    if not parts:
        return ()
    return (f"By policy.enforcement {' and '.join(parts)}, {MINUTES} minutes after it is in force.",)
