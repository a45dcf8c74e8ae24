"""Reservations with quarantined devices in a world: which there are, how to make one, and what R25 says of them."""

from __future__ import annotations

from jupyter_gpu_quota.core.model import Health, Reservation
from tests.core.cluster import TICK_MS, World


def claims(made: World) -> dict[str, Reservation]:
    """The reservations of claims, by workload."""
    return {name: one for name, one in made.reserved.items() if one.starts_at is None}


def on_quarantined(made: World) -> dict[str, Reservation]:
    """Those with quarantined devices."""
    out = {name for name, one in made.devices.items() if one.health is Health.QUARANTINED}
    return {name: one for name, one in claims(made).items() if not out.isdisjoint(_devices(one))}


def kept_until(made: World, reservation: Reservation) -> int:
    """Ten times the time to die after the reservation was made."""
    return reservation.reserved_at + 10 * (made.policy.preemption.grace_s + 10) * TICK_MS


def quarantine(made: World, late: str) -> None:
    """The work that a claim of several devices waits for does not end in time.

    ``late``: ``one`` of its devices, or ``most`` devices of the pool; ``none``. Nothing if one is quarantined already.
    """
    several = [one.placements for one in claims(made).values() if len(_devices(one)) > 1]
    if late == "none" or not several or on_quarantined(made):
        return
    first, last = several[0][0].device, several[0][-1].device
    for name in [last] if late == "one" else [name for name in made.devices if name != first]:
        made.health(name, Health.QUARANTINED)


def check_quarantined_reservations(made: World) -> None:
    """R25: only a claim of several devices and a restart keep theirs, for a bounded time. After a plan."""
    for name, one in on_quarantined(made).items():
        assert len(_devices(one)) > 1 or name in made.owned, f"R25: {name} has only quarantined devices reserved"
        assert made.now < kept_until(made, one), f"R25: {name} has had its reservation for too long"


def _devices(reservation: Reservation) -> set[str]:
    return {one.device for one in reservation.placements}
