"""Quarantine: devices on which work does not end after it was killed are given to no other work."""

from __future__ import annotations

from ..model import Health, Job, JobState, Policy, Snapshot

KILL_BOUND_S = 10
"""Seconds after the grace within which a killed process tree has to be gone."""


def quarantine_changes(snapshot: Snapshot, policy: Policy) -> dict[str, Health]:
    """Devices whose health should change: {device: quarantined | healthy}.

    A device is quarantined while a job on it is still there ``KILL_BOUND_S`` after its grace, and healthy again
    once that job is gone. Claims that waited for it choose other devices. Source: docs/scheduling.md, section 5.
    Rule R47.
    """
    overdue = {job.id for job in snapshot.jobs if _is_overdue(job, snapshot.now, policy)}
    held = {allocation.device for allocation in snapshot.allocations if allocation.workload in overdue}
    changes: dict[str, Health] = {}
    for device in snapshot.devices:
        if device.id in held and device.health is Health.HEALTHY:
            changes[device.id] = Health.QUARANTINED
        elif device.id not in held and device.health is Health.QUARANTINED:
            changes[device.id] = Health.HEALTHY
    return changes


def quarantine_at(job: Job, policy: Policy) -> int | None:
    """The instant from which a leaving job's devices are quarantined; None for a job that is not leaving."""
    if job.state is not JobState.PAUSING or job.pausing_since_at is None:
        return None
    grace_s = max(policy.preemption.grace_s, policy.preemption.lent_grace_s)
    return job.pausing_since_at + (grace_s + KILL_BOUND_S) * 1000


def _is_overdue(job: Job, now: int, policy: Policy) -> bool:
    since = quarantine_at(job, policy)
    return since is not None and now >= since
