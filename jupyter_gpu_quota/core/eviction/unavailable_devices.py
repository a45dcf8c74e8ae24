"""Unavailable devices: the work that has to leave them, the work that stays, and the work that waits for them.

Preemptible work leaves an unhealthy device or a drained node, and is queued again. Notebooks and non-preemptible work
stay, with a reason; a drain with a deadline ends the latter. A cordoned node keeps what runs on it. Work waits for a
quarantined device. Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from ..model import Device, Health, Job, JobState, JobTarget, Node, Notebook, Policy, Snapshot, Upkeep
from ..placement.ledger import Ledger
from ..placement.place import EmptyPool, request_of
from ..plan import Stop
from ..queue.quota_state import SECOND
from ..reasons import DeviceQuarantined, DeviceUnavailable, DeviceUnhealthy, NeverFits, NodeDrained, NoFreeGpu, Reason

RUNS = (JobState.STARTING, JobState.RUNNING)
NEVER = 1 << 62
"""A drain without a deadline."""


def evictions(snapshot: Snapshot, policy: Policy, stopping: Collection[str]) -> list[Stop]:
    """A stop for each job that has to leave its devices, in id order; none for those stopping anyway.

    It is queued again, and the stop counts as no pause: no claim caused it.
    Rule R58.
    """
    unhealthy, drained = _unhealthy_by_workload(snapshot), _drained_by_workload(snapshot)
    if not unhealthy and not drained:
        return []
    rules, found = policy.preemption, list[Stop]()
    for job in sorted(snapshot.jobs, key=lambda job: job.id):
        reason = _why_leave(job, unhealthy.get(job.id), drained.get(job.id), snapshot.now)
        if reason is not None and job.state in RUNS and job.id not in stopping:
            grace_s = rules.lent_grace_s if job.borrower else rules.grace_s
            found.append(Stop(workload=job.id, target=JobTarget.PAUSED, grace_s=grace_s, reason=reason))
    return found


def _why_leave(job: Job, unhealthy: Device | None, drained: tuple[Device, Node] | None, now: int) -> Reason | None:
    """Why a job has to leave its devices now; None where it stays. Rule R59."""
    if unhealthy is not None and job.preemptible:
        return _unhealthy(unhealthy, "job")
    if drained is None:
        return None
    device, node = drained
    overdue = node.drain_by_at is not None and now >= node.drain_by_at
    return _drained(device, node, "job", now) if job.preemptible or overdue else None


def as_leaving(snapshot: Snapshot, stops: Collection[Stop]) -> Snapshot:
    """The snapshot as if those jobs were leaving already; other decisions take that into account."""
    leaving = {stop.workload for stop in stops}
    if not leaving:
        return snapshot
    jobs = (
        replace(job, state=JobState.PAUSING, target=JobTarget.PAUSED) if job.id in leaving else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=tuple(jobs))


def what_it_stays_on(snapshot: Snapshot, workload: str) -> Reason | None:
    """The reason shown for work that stays on an unhealthy device or a drained node; None for other work."""
    kind = "job" if any(job.id == workload for job in snapshot.jobs) else "notebook"
    device = _unhealthy_by_workload(snapshot).get(workload)
    if device is not None:
        return _unhealthy(device, kind)
    drained = _drained_by_workload(snapshot).get(workload)
    return None if drained is None else _drained(*drained, kind, snapshot.now)


_UNHEALTHY = Health.UNHEALTHY


def _unhealthy_by_workload(snapshot: Snapshot) -> dict[str, Device]:
    """The first unhealthy device of each workload that has one."""
    unhealthy = sorted((device for device in snapshot.devices if device.health is _UNHEALTHY), key=lambda one: one.id)
    return _first_of_each(snapshot, {device.id: device for device in unhealthy})


def _drained_by_workload(snapshot: Snapshot) -> dict[str, tuple[Device, Node]]:
    """The device that each workload on drained nodes has to leave first, with its node."""
    nodes = {node.id: node for node in snapshot.nodes if node.upkeep is Upkeep.DRAINING}
    if not nodes:
        return {}
    by = {node.id: NEVER if node.drain_by_at is None else node.drain_by_at for node in nodes.values()}
    devices = sorted((one for one in snapshot.devices if one.node in nodes), key=lambda one: (by[one.node], one.id))
    first = _first_of_each(snapshot, {device.id: device for device in devices})
    return {name: (device, nodes[device.node]) for name, device in first.items()}


def _first_of_each(snapshot: Snapshot, devices: Mapping[str, Device]) -> dict[str, Device]:
    """The first of these devices that each workload is on, by the order in which they are given."""
    if not devices:
        return {}
    number = {id: at for at, id in enumerate(devices)}
    on_them = (one for one in snapshot.allocations if one.device in devices)
    rows = sorted(on_them, key=lambda one: number[one.device], reverse=True)
    return {one.workload: devices[one.device] for one in rows}


def _unhealthy(device: Device, kind: str) -> Reason:
    trouble = device.trouble or "the cause is not known"
    return DeviceUnhealthy(device=device.id, pool=device.pool or "", node=device.node, kind=kind, trouble=trouble)


def _drained(device: Device, node: Node, kind: str, now: int) -> Reason:
    left_s = None if node.drain_by_at is None else max(0, -(-(node.drain_by_at - now) // SECOND))
    return NodeDrained(device=device.id, pool=device.pool or "", node=device.node, kind=kind, left_s=left_s)


def awaited(snapshot: Snapshot, waits: Mapping[str, Reason]) -> dict[str, Reason]:
    """The reasons of work that could start only on devices that are unavailable for now. Rule R60."""
    never = {name for name, reason in waits.items() if isinstance(reason, NeverFits)}
    found = _awaited_slices(snapshot, waits)
    for pool in sorted({job.pool for job in snapshot.jobs if job.id in never}):
        jobs = [job for job in snapshot.jobs if job.pool == pool and job.id in never]
        found |= _awaited_in(snapshot, pool, jobs)
    return found


def _awaited_slices(snapshot: Snapshot, waits: Mapping[str, Reason]) -> dict[str, Reason]:
    """The reasons of slices within their quota that wait in a pool without any available device.

    A lent slice waits for its own device where that is quarantined: its borrowers were killed already.
    """
    found = dict[str, Reason]()
    for notebook in snapshot.notebooks:
        if notebook.id in waits and isinstance(waits[notebook.id], NoFreeGpu):
            devices = [device for device in snapshot.devices if device.pool == notebook.pool]
            out = _out_of(devices, snapshot)
            home = [device for device in out if device.id == notebook.device and device.health is Health.QUARANTINED]
            if len(out) == len(devices) and home:
                found[notebook.id] = _quarantined(snapshot, notebook, notebook.gpu_milli, home)
            elif len(out) == len(devices):
                found[notebook.id] = _unavailable(notebook, notebook.gpu_milli, out, snapshot.nodes)
    return found


def _awaited_in(snapshot: Snapshot, pool: str, jobs: list[Job]) -> dict[str, Reason]:
    devices = [device for device in snapshot.devices if device.pool == pool]
    out = _out_of(devices, snapshot)
    held = [device for device in out if device.health is Health.QUARANTINED]
    freed = EmptyPool(Ledger([_well(d) if d in held else d for d in devices], snapshot.nodes))
    whole = EmptyPool(Ledger(map(_well, devices), ()))
    found = dict[str, Reason]()
    for job in jobs if out else ():
        request = request_of(job, job.least_ranks)
        if held and freed.takes(request):
            found[job.id] = _quarantined(snapshot, job, request.size, _of_model(held, job))
        elif whole.takes(request):
            found[job.id] = _unavailable(job, request.size, _of_model(out, job), snapshot.nodes)
    return found


def _out_of(devices: Iterable[Device], snapshot: Snapshot) -> list[Device]:
    """The unavailable ones of these devices, by id."""
    closed = {node.id for node in snapshot.nodes if not node.is_open}
    return sorted((d for d in devices if d.health is not Health.HEALTHY or d.node in closed), key=lambda d: d.id)


def _well(device: Device) -> Device:
    return replace(device, health=Health.HEALTHY)


def _of_model(devices: list[Device], job: Job) -> list[Device]:
    return [device for device in devices if request_of(job, 1).takes(device.model)]


def _quarantined(snapshot: Snapshot, work: Job | Notebook, milli: int, held: list[Device]) -> Reason:
    device = held[0]
    on_it = {one.workload for one in snapshot.allocations if one.device == device.id}
    stuck = sorted((each.id, each.attempt) for each in snapshot.jobs if each.id in on_it)
    workload, attempt = stuck[0] if stuck else (None, None)
    return DeviceQuarantined(
        project=work.project,
        pool=work.pool,
        asked_milli=milli,
        device=device.id,
        devices=len(held),
        workload=workload,
        attempt=attempt,
    )


def _unavailable(work: Job | Notebook, milli: int, out: list[Device], nodes: Iterable[Node]) -> Reason:
    """Why work waits that needs unavailable devices; the first of them is named."""
    first = out[0]
    node = next((node for node in nodes if node.id == first.node), None)
    return DeviceUnavailable(
        project=work.project,
        pool=work.pool,
        asked_milli=milli,
        device=first.id,
        devices=len(out),
        trouble=_trouble(first, node),
    )


def _trouble(device: Device, node: Node | None) -> str:
    """Why a device is unavailable, in words."""
    match device.health:
        case Health.UNHEALTHY:
            return f"unhealthy: {device.trouble or 'the cause is not known'}"
        case Health.QUARANTINED:
            return "in quarantine"
        case Health.HEALTHY:
            return f"on node {device.node}, which {_closed_by(node)}"
        case _:
            assert_never(device.health)


def _closed_by(node: Node | None) -> str:
    if node is None or not node.schedulable:
        return "is gone, or cannot be read now"
    return "is being drained" if node.upkeep is Upkeep.DRAINING else "is cordoned"
