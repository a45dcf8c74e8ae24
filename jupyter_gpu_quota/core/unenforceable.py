"""Shares whose enforcement is weaker than required: how long that is accepted, and for which jobs it never ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .enforcement import EnforcementLabel, EnforcementOffer, RequiredEnforcement, best_offer
from .lifecycle import WAITING
from .model import WHOLE_DEVICE, Device, Health, Job, JobTarget
from .reasons import EnforcementTooWeak, EnforcementUnavailable

WEAK_FOR_MS = 60_000
"""A share may be enforced more weakly than required for so long: a start takes its time."""

WARN_FOR_MS = 300_000
"""Then its owner is warned, and has so long before it ends."""

Offers = Callable[[Sequence[Device], str], Sequence[EnforcementOffer]]
"""The best that a fraction of each device can have, for a job of a project."""


def unenforceable(
    offers: Offers, devices_in: Callable[[str], Sequence[Device]], jobs: Iterable[Job], least: RequiredEnforcement
) -> list[tuple[Job, EnforcementUnavailable]]:
    """Jobs that wait for a fraction that certainly no device of their pool can enforce; with what the best offers."""
    known = dict[tuple[str, str, tuple[str, ...]], EnforcementUnavailable | None]()
    found = list[tuple[Job, EnforcementUnavailable]]()
    for job in jobs:
        if not least.is_set or not _waits_for_fraction(job):
            continue
        key = job.pool, job.project, job.gpu_models
        if key not in known:
            known[key] = _best_but_weak(offers, devices_in(job.pool), job, least)
        if (why := known[key]) is not None:
            found.append((job, why))
    return found


def _waits_for_fraction(job: Job) -> bool:
    return job.state in WAITING and job.target is JobTarget.RUNNING and job.gpu_milli < WHOLE_DEVICE


def _best_but_weak(
    offers: Offers, devices: Sequence[Device], job: Job, least: RequiredEnforcement
) -> EnforcementUnavailable | None:
    """What the best device for a job offers; None where one is enough, or where that is not known of all."""
    well = [
        device
        for device in devices
        if device.health is Health.HEALTHY and (not job.gpu_models or device.model in job.gpu_models)
    ]
    found = offers(well, job.project) if well else ()
    if not found or any(each.unsure or each.is_enough(least) for each in found):
        return None
    best = best_offer(found)
    return EnforcementUnavailable(
        device=best.device,
        memory=str(best.memory),
        compute=str(best.compute),
        least_memory=str(least.memory),
        least_compute=str(least.compute),
    )


def weak_share(device: str, found: EnforcementLabel, least: RequiredEnforcement) -> EnforcementTooWeak:
    return EnforcementTooWeak(
        device=device,
        memory=str(found.memory),
        compute=str(found.compute),
        least_memory=str(least.memory),
        least_compute=str(least.compute),
    )
