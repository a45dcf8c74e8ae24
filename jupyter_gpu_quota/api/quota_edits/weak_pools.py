"""What a quota file's ``policy.enforcement`` asks beside what the devices of its pools can do, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.enforcement import EnforcementOffer, RequiredEnforcement, best_offer
from ...core.model import Device, Health
from ...quotafile import QuotaFile
from ..views.records import instant

if TYPE_CHECKING:
    from ..requests.services import Door

WHAT_TO_DO = (
    "To give fractions out there, accept less in policy.enforcement, or mend what `jupyter gpu-quota doctor` says is"
    " lacking."
)


async def weak_pools(door: Door, file: QuotaFile, devices: Sequence[Device]) -> tuple[str, ...]:
    """A sentence for each pool of the file in which not every device could hold a fraction as the file asks.

    Takes all devices, in the pools of the file. What could not be read is told as unknown.
    """
    if not file.least.is_set:
        return ()
    found = [await _pool(door, name, file.least, devices) for name in sorted(row.name for row in file.pools)]
    return tuple(filter(None, found))


async def _pool(door: Door, pool: str, least: RequiredEnforcement, devices: Sequence[Device]) -> str:
    """What stands against one pool; empty where nothing does, or where it has no device that is well."""
    here = [device for device in devices if device.pool == pool and device.health is Health.HEALTHY]
    if not here:
        return ""
    offers, read_at = await door.offers.of_fractions(here)
    asked = f"Pool {pool}: policy.enforcement asks for memory {least.memory} and compute {least.compute} or better"
    short = [each for each in offers if not each.unsure and not each.is_enough(least)]
    unknown = [each for each in offers if each.unsure]
    if not short and not unknown:
        return ""
    able = f"{len(offers) - len(short) - len(unknown)} of {_counted(len(offers), 'device')}"
    parts = [
        f"{asked}, and {able} can be seen to hold a fraction so, as read at {instant(read_at):%Y-%m-%dT%H:%M:%SZ}."
    ]
    parts += [_best_of(short), _unknown_of(unknown), _follows(len(short) + len(unknown) == len(offers))]
    parts += [await _by_mps(door, pool, least, here), WHAT_TO_DO]
    return " ".join(filter(None, parts))


async def _by_mps(door: Door, pool: str, least: RequiredEnforcement, devices: Sequence[Device]) -> str:
    """Whose jobs are held better than notebooks: those of projects with an MPS daemon."""
    found = []
    for project in sorted(door.settings.mps):
        offers, _ = await door.offers.of_fractions(devices, project)
        found += [project] if any(each.is_enough(least) for each in offers) else []
    return f"Jobs of {' and '.join(found)} are held so by an MPS daemon, and are not refused." if found else ""


def _best_of(short: Sequence[EnforcementOffer]) -> str:
    if not short:
        return ""
    closest = best_offer(short)
    best = f"memory {closest.memory}, compute {closest.compute} ({closest.why})"
    return f"The best of those that cannot, {closest.device}, offers {best}."


def _unknown_of(unknown: Sequence[EnforcementOffer]) -> str:
    if not unknown:
        return ""
    return f"Of {_counted(len(unknown), 'device')} it is not known: {unknown[0].why}."


def _follows(none: bool) -> str:
    if none:
        return (
            "Requests for less than a whole device are refused there, and jobs that wait for less are held; whole "
            "devices, which are shared with nobody, are given out."
        )
    return "A fraction that is placed on another device is warned and ended when that is read back."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
