"""Quarantine: devices on which work does not end after it was killed are not allocated to other work."""

from __future__ import annotations

from collections.abc import Container, Mapping

from ..model import MS_PER_S, Health, Job, JobState, Policy, Reservation, Snapshot

KILL_BOUND_S = 10
"""Seconds after the grace within which a killed process tree has to be gone."""

RESERVATION_KEPT_TIMES = 10
"""A reservation with quarantined devices ends after this many times the time to die."""

SLOW_NODES, SLOW_TIMES = 8, 10
"""Where work of more nodes of a pool is late at once, its cluster is slow: so many times the time to die."""

NOT_ORDERED = 1 << 62
"""The instant of a stop order that did not reach its nodes yet."""


def quarantine_changes(
    snapshot: Snapshot, policy: Policy, ordered_at: Mapping[str, int | None] | None = None
) -> dict[str, Health]:
    """Devices whose health should change: {device: quarantined | healthy}.

    A device is quarantined while a job on it is still there ``KILL_BOUND_S`` after its grace, and healthy again
    once that job is gone. Claims that wait for it choose other devices, or keep their reservation (R25). They would
    pause ever more work if thousands of stops were slow, as where the API server has too much load.
    ``ordered_at``: when the nodes of each job had its stop order, None: not yet; a job that is left out was stopped
    when that was decided. Source: docs/scheduling.md, section 5. Rule R58.
    """
    ordered_at = ordered_at or {}
    due = {job.id: _due(at, job, ordered_at) for job in snapshot.jobs if (at := quarantine_at(job, policy)) is not None}
    occupied = _occupied(snapshot, due)
    if occupied and (slow := _slow_pools(snapshot, occupied)):
        more_ms = (SLOW_TIMES - 1) * _time_to_die_s(policy) * MS_PER_S
        of_slow = {job.id for job in snapshot.jobs if job.pool in slow}
        occupied = _occupied(snapshot, {id: at + more_ms * (id in of_slow) for id, at in due.items()})
    changes: dict[str, Health] = {}
    for device in snapshot.devices:
        if device.id in occupied and device.health is Health.HEALTHY:
            changes[device.id] = Health.QUARANTINED
        elif device.id not in occupied and device.health is Health.QUARANTINED:
            changes[device.id] = Health.HEALTHY
    return changes


def _occupied(snapshot: Snapshot, due: Mapping[str, int]) -> set[str]:
    """The devices of the work that should be gone."""
    late = {workload for workload, at in due.items() if snapshot.now >= at}
    return {part.device for part in snapshot.allocations if part.workload in late} if late else set()


def _slow_pools(snapshot: Snapshot, occupied: Container[str]) -> set[str | None]:
    nodes: dict[str | None, set[str]] = {}
    for device in snapshot.devices:
        if device.id in occupied:
            nodes.setdefault(device.pool, set()).add(device.node)
    return {pool for pool, late in nodes.items() if len(late) > SLOW_NODES}


def _due(at: int, job: Job, ordered_at: Mapping[str, int | None]) -> int:
    """The instant of :func:`quarantine_at`, later by the time that the stop order took to reach the nodes."""
    decided_at = job.pausing_since_at or 0
    ordered = ordered_at.get(job.id, decided_at)
    return NOT_ORDERED if ordered is None else at + max(0, ordered - decided_at)


def quarantine_at(job: Job, policy: Policy) -> int | None:
    """The first instant at which a stopping job's devices may be quarantined; None for any other job."""
    if job.state is not JobState.PAUSING or job.pausing_since_at is None:
        return None
    return job.pausing_since_at + _time_to_die_s(policy) * MS_PER_S


def kept_until(reservation: Reservation, policy: Policy) -> int:
    """When a reservation ends if devices of it are still quarantined."""
    return reservation.reserved_at + RESERVATION_KEPT_TIMES * _time_to_die_s(policy) * MS_PER_S


def _time_to_die_s(policy: Policy) -> int:
    return max(policy.preemption.grace_s, policy.preemption.lent_grace_s) + KILL_BOUND_S
