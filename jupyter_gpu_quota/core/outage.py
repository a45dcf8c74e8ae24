"""Devices that cannot be given out now: who has to leave them, who stays on them, and who waits for them.

An unhealthy device loses its preemptible work, which is queued again; notebooks and work that may not be preempted
stay, and are told. A node that takes no new work keeps what runs on it. A quarantined device is waited for.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from .ledger import Ledger
from .model import Device, Health, Job, JobState, JobTarget, Policy, Snapshot
from .placement import EmptyPool, Request, request_of
from .plan import Reason, ReasonCode, Stop

Figures = tuple[tuple[str, int | str], ...]
RUNS = (JobState.STARTING, JobState.RUNNING)


def must_leave(snapshot: Snapshot, policy: Policy, stopping: Collection[str]) -> list[Stop]:
    """A stop for each preemptible job that runs on an unhealthy device, in id order; none for those stopping anyway.

    It is queued again, and the stop counts as no pause: nobody claimed anything.
    """
    sick = _sick_by_workload(snapshot)
    rules = policy.preemption
    return [
        Stop(
            workload=job.id,
            target=JobTarget.PAUSED,
            grace_s=rules.lent_grace_s if job.borrower else rules.grace_s,
            reason=_unhealthy(sick[job.id], "job"),
        )
        for job in sorted(snapshot.jobs, key=lambda job: job.id)
        if job.id in sick and job.preemptible and job.state in RUNS and job.id not in stopping
    ]


def as_leaving(snapshot: Snapshot, stops: Collection[Stop]) -> Snapshot:
    """The snapshot as if those jobs had been asked to leave already, so that the rest is decided around them."""
    leaving = {stop.workload for stop in stops}
    if not leaving:
        return snapshot
    jobs = (
        replace(job, state=JobState.PAUSING, target=JobTarget.PAUSED) if job.id in leaving else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=tuple(jobs))


def stays_on_unhealthy(snapshot: Snapshot, workload: str) -> Reason | None:
    """What to tell the owner of a notebook or job that runs on an unhealthy device; None where it does not."""
    device = _sick_by_workload(snapshot).get(workload)
    is_job = any(job.id == workload for job in snapshot.jobs)
    return None if device is None else _unhealthy(device, "job" if is_job else "notebook")


def _sick_by_workload(snapshot: Snapshot) -> dict[str, Device]:
    """The first unhealthy device of each workload that has one."""
    sick = {device.id: device for device in snapshot.devices if device.health is Health.UNHEALTHY}
    if not sick:
        return {}
    rows = sorted((one for one in snapshot.allocations if one.device in sick), key=lambda one: one.device, reverse=True)
    return {one.workload: sick[one.device] for one in rows}


def _unhealthy(device: Device, kind: str) -> Reason:
    figures: Figures = (("device", device.id), ("pool", device.pool or ""), ("node", device.node), ("kind", kind))
    return Reason(code=ReasonCode.DEVICE_UNHEALTHY, figures=figures)


def awaited(snapshot: Snapshot, waits: Mapping[str, Reason]) -> dict[str, Reason]:
    """The reasons of jobs that can never start on the devices given out now, but on those that come back."""
    never = {name for name, reason in waits.items() if reason.code is ReasonCode.NEVER_FITS}
    if not never:
        return {}
    found = dict[str, Reason]()
    for pool in sorted({job.pool for job in snapshot.jobs if job.id in never}):
        jobs = [job for job in snapshot.jobs if job.pool == pool and job.id in never]
        found |= _awaited_in(snapshot, pool, jobs)
    return found


def _awaited_in(snapshot: Snapshot, pool: str, jobs: list[Job]) -> dict[str, Reason]:
    devices = [device for device in snapshot.devices if device.pool == pool]
    closed = {node.id for node in snapshot.nodes if not node.schedulable}
    out = sorted((d for d in devices if d.health is not Health.HEALTHY or d.node in closed), key=lambda d: d.id)
    held = [device for device in out if device.health is Health.QUARANTINED]
    freed = EmptyPool(Ledger([_well(d) if d in held else d for d in devices], snapshot.nodes))
    whole = EmptyPool(Ledger(map(_well, devices), ()))
    found = dict[str, Reason]()
    for job in jobs if out else ():
        request = request_of(job, job.least_ranks)
        if held and freed.takes(request):
            found[job.id] = _quarantined(snapshot, job, request, _of_model(held, job))
        elif whole.takes(request):
            found[job.id] = _out(job, request, _of_model(out, job))
    return found


def _well(device: Device) -> Device:
    return replace(device, health=Health.HEALTHY)


def _of_model(devices: list[Device], job: Job) -> list[Device]:
    return [device for device in devices if request_of(job, 1).takes(device.model)]


def _quarantined(snapshot: Snapshot, job: Job, request: Request, held: list[Device]) -> Reason:
    device = held[0]
    on_it = {one.workload for one in snapshot.allocations if one.device == device.id}
    stuck = sorted((each.id, each.attempt) for each in snapshot.jobs if each.id in on_it)
    who: Figures = (("holder", stuck[0][0]), ("attempt", stuck[0][1])) if stuck else ()
    figures = (*_asked(job, request), ("device", device.id), ("devices", len(held)), *who)
    return Reason(code=ReasonCode.DEVICE_QUARANTINED, figures=figures)


def _out(job: Job, request: Request, out: list[Device]) -> Reason:
    figures = (*_asked(job, request), ("device", out[0].id), ("devices", len(out)))
    return Reason(code=ReasonCode.DEVICES_OUT, figures=figures)


def _asked(job: Job, request: Request) -> Figures:
    return (("project", job.project), ("pool", job.pool), ("asked_milli", request.size))
