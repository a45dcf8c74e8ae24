"""Shares whose enforcement is weaker than required: how long that is accepted, and which jobs no device can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..lifecycle import WAITING
from ..model import WHOLE_DEVICE, Device, Health, Job, JobTarget
from ..reasons import EnforcementTooWeak, EnforcementUnavailable
from .levels import EnforcementLabel, EnforcementOffer, RequiredEnforcement, best_offer

Weak = TypeVar("Weak", EnforcementTooWeak, EnforcementUnavailable)

WEAK_FOR_MS = 60_000
"""How long a share may be enforced more weakly than required: after a start it takes time to become effective."""

WARN_FOR_MS = 300_000
"""The time from the warning of its owner to the stop."""

Offers = Callable[[Sequence[Device], str], Sequence[EnforcementOffer]]
"""The best that a fraction of each device can have, for a job of a project."""


def unenforceable_jobs(
    offers: Offers, devices_in: Callable[[str], Sequence[Device]], jobs: Iterable[Job], least: RequiredEnforcement
) -> list[tuple[Job, EnforcementUnavailable]]:
    """Jobs that wait for a fraction that certainly no device of their pool can enforce; with the best offer.

    ``devices_in`` returns all devices of a pool, with those that are gone: they may come back.
    """
    known = dict[tuple[str, str, tuple[str, ...]], EnforcementUnavailable | None]()
    found = list[tuple[Job, EnforcementUnavailable]]()
    for job in jobs:
        waits = job.state in WAITING and job.target is JobTarget.RUNNING
        if not least.is_set or not waits or job.gpu_milli >= WHOLE_DEVICE:
            continue
        key = job.pool, job.project, job.gpu_models
        if key not in known:
            known[key] = _best_weak_offer(offers, devices_in(job.pool), job, least)
        if (why := known[key]) is not None:
            found.append((job, why))
    return found


def _best_weak_offer(
    offers: Offers, devices: Sequence[Device], job: Job, least: RequiredEnforcement
) -> EnforcementUnavailable | None:
    """The best offer of a device for a job; None where one is enough, or could be: it is unknown, or not healthy."""
    fitting = [device for device in devices if not job.gpu_models or device.model in job.gpu_models]
    if not fitting or any(device.health is not Health.HEALTHY and not device.simulated for device in fitting):
        return None
    found = offers(fitting, job.project)
    if any(each.unsure or each.is_enough(least) for each in found):
        return None
    best = best_offer(found)
    return _weak(EnforcementUnavailable, best.device, best, least)


def weak_share(device: str, found: EnforcementLabel, least: RequiredEnforcement) -> EnforcementTooWeak:
    """The reason of a share that is enforced by less than the policy accepts."""
    return _weak(EnforcementTooWeak, device, found, least)


def _weak(kind: type[Weak], device: str, found: EnforcementLabel, least: RequiredEnforcement) -> Weak:
    return kind(
        device=device,
        memory=str(found.memory),
        compute=str(found.compute),
        least_memory=str(least.memory),
        least_compute=str(least.compute),
    )
