"""Quarantine: devices on which work does not end after it was killed are not allocated to other work."""

from __future__ import annotations

from ..model import Health, Job, JobState, Policy, Snapshot

KILL_BOUND_S = 10
"""Seconds after the grace within which a killed process tree has to be gone."""


def quarantine_changes(snapshot: Snapshot, policy: Policy) -> dict[str, Health]:
    """Devices whose health should change: {device: quarantined | healthy}.

    A device is quarantined while a job on it is still there ``KILL_BOUND_S`` after its grace, and healthy again
    once that job is gone. Claims that waited for it choose other devices. Source: docs/scheduling.md, section 5.
    Rule R58.
    """
    due = {job.id: at for job in snapshot.jobs if (at := quarantine_at(job, policy)) is not None}
    overdue = {workload for workload, at in due.items() if snapshot.now >= at}
    occupied = {allocation.device for allocation in snapshot.allocations if allocation.workload in overdue}
    changes: dict[str, Health] = {}
    for device in snapshot.devices:
        if device.id in occupied and device.health is Health.HEALTHY:
            changes[device.id] = Health.QUARANTINED
        elif device.id not in occupied and device.health is Health.QUARANTINED:
            changes[device.id] = Health.HEALTHY
    return changes


def quarantine_at(job: Job, policy: Policy) -> int | None:
    """The instant from which a stopping job's devices are quarantined; None for any other job."""
    if job.state is not JobState.PAUSING or job.pausing_since_at is None:
        return None
    grace_s = max(policy.preemption.grace_s, policy.preemption.lent_grace_s)
    return job.pausing_since_at + (grace_s + KILL_BOUND_S) * 1000
