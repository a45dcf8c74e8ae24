"""Unavailable devices: the work that is evicted, the work that stays, and the work that waits for them.

Preemptible work on an unhealthy device or a drained node is stopped and queued again. Notebooks and non-preemptible
work stay, with a reason; a drain with a deadline ends the latter. A cordoned node keeps what runs on it. Work waits
for a quarantined device. Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace

from ..lifecycle import RUNS
from ..model import (
    MS_PER_S,
    OWN_CLUSTER,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    Notebook,
    Policy,
    Snapshot,
    Upkeep,
)
from ..placement.ledger import Ledger
from ..placement.node_resources import nodes_of_pool
from ..placement.place import EmptyPool, request_of
from ..plan import Stop
from ..reasons import DeviceQuarantined, DeviceUnavailable, DeviceUnhealthy, NeverFits, NodeDrained, NoFreeGpu, Reason

NEVER = 1 << 62
"""A drain without a deadline."""


def evictions(snapshot: Snapshot, policy: Policy, stopping: Collection[str]) -> list[Stop]:
    """A stop for each job that has to release its devices, in id order; none for those stopping anyway.

    It is queued again, and the stop counts as no pause: no claim caused it.
    Rule R69.
    """
    unhealthy, drained = _unhealthy_by_workload(snapshot), _drained_by_workload(snapshot)
    if not unhealthy and not drained:
        return []
    rules, found = policy.preemption, list[Stop]()
    for job in sorted(snapshot.jobs, key=lambda job: job.id):
        reason = _eviction_reason(job, unhealthy.get(job.id), drained.get(job.id), snapshot.now)
        if reason is not None and job.state in RUNS and job.id not in stopping:
            grace_s = rules.lent_grace_s if job.borrower else rules.grace_s
            found.append(Stop(workload=job.id, target=JobTarget.PAUSED, grace_s=grace_s, reason=reason))
    return found


def _eviction_reason(
    job: Job, unhealthy: Device | None, drained: tuple[Device, Node] | None, now: int
) -> Reason | None:
    """Why a job has to release its devices now; None where it stays. Rule R70."""
    if unhealthy is not None and job.preemptible:
        return _unhealthy(unhealthy, "job")
    if drained is None:
        return None
    device, node = drained
    is_past_deadline = node.drain_by_at is not None and now >= node.drain_by_at
    return _drained(device, node, "job", now) if job.preemptible or is_past_deadline else None


def as_pausing(jobs: Iterable[Job], stops: Iterable[Stop]) -> dict[str, Job]:
    """The jobs of these stops, by id, as they are after the stops."""
    gone = {stop.workload for stop in stops}
    stopped = (job for job in jobs if job.id in gone) if gone else ()
    return {job.id: replace(job, state=JobState.PAUSING, target=JobTarget.PAUSED) for job in stopped}


def stay_reason(snapshot: Snapshot, workload: str) -> Reason | None:
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
    """The device that each workload on drained nodes has to release first, with its node."""
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
    left_s = None if node.drain_by_at is None else max(0, -(-(node.drain_by_at - now) // MS_PER_S))
    return NodeDrained(device=device.id, pool=device.pool or "", node=device.node, kind=kind, left_s=left_s)


def awaited(snapshot: Snapshot, waits: Mapping[str, Reason], kept: Container[str]) -> dict[str, Reason]:
    """The reasons of work that could start only on devices that are unavailable for now.

    ``kept``: the ids of the claims that keep reservations of quarantined devices.
    Rule R71.
    """
    found = _reasons_of_kept(snapshot, kept)
    work: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    for pool in sorted({one.pool for one in work if one.id in waits}):
        devices = [device for device in snapshot.devices if device.pool == pool]
        closed = {node.id for node in snapshot.nodes if not node.is_open}
        unavailable = [one for one in devices if one.health is not Health.HEALTHY or one.node in closed]
        unavailable.sort(key=lambda device: device.id)
        if len(unavailable) == len(devices):
            slices = [one for one in snapshot.notebooks if one.pool == pool and one.id in waits]
            waiting = [one for one in slices if isinstance(waits[one.id], NoFreeGpu)]
            found |= {one.id: _reason_of_slice(snapshot, one, unavailable) for one in waiting if devices}
        jobs = [job for job in snapshot.jobs if job.pool == pool and isinstance(waits.get(job.id), NeverFits)]
        if unavailable and jobs:
            found |= _reasons_of_jobs(snapshot, jobs, devices, unavailable)
    return found


def _reasons_of_kept(snapshot: Snapshot, kept: Container[str]) -> dict[str, Reason]:
    """The reasons of claims that keep reservations of quarantined devices."""
    reserved = {one.workload: one.placements for one in snapshot.reservations if one.workload in kept}
    found = dict[str, Reason]()
    for job in (job for job in snapshot.jobs if job.id in reserved):
        parts = reserved[job.id]
        on = {part.device for part in parts}
        quarantined = [one for one in snapshot.devices if one.id in on and one.health is Health.QUARANTINED]
        quarantined.sort(key=lambda device: device.id)
        found[job.id] = _quarantined(snapshot, job, sum(part.gpu_milli for part in parts), quarantined)
    return found


def _reason_of_slice(snapshot: Snapshot, notebook: Notebook, unavailable: list[Device]) -> Reason:
    """A lent slice waits for its own device where that is quarantined: its borrowers were killed already."""
    own = [one for one in unavailable if one.id == notebook.device and one.health is Health.QUARANTINED]
    if own:
        return _quarantined(snapshot, notebook, notebook.gpu_milli, own)
    return _unavailable(notebook, notebook.gpu_milli, unavailable, snapshot.nodes)


def _reasons_of_jobs(
    snapshot: Snapshot, jobs: list[Job], devices: list[Device], unavailable: list[Device]
) -> dict[str, Reason]:
    """The reasons of those jobs that would fit on the devices that are unavailable."""
    healthy = [replace(device, health=Health.HEALTHY) for device in devices]
    quarantined = [device for device in unavailable if device.health is Health.QUARANTINED]
    rows = zip(devices, healthy, strict=True)
    nodes = nodes_of_pool(snapshot.nodes, snapshot.devices, jobs[0].pool)
    freed = EmptyPool(Ledger([one if old in quarantined else old for old, one in rows], nodes))
    opened = [replace(node, schedulable=True, upkeep=Upkeep.NONE) for node in nodes]
    whole, found = EmptyPool(Ledger(healthy, opened)), dict[str, Reason]()
    for job in jobs:
        request = request_of(job, job.least_ranks)
        if quarantined and freed.fits(request):
            of_model = [one for one in quarantined if request.accepts(one.model)]
            found[job.id] = _quarantined(snapshot, job, request.size, of_model)
        elif whole.fits(request):
            of_model = [one for one in unavailable if request.accepts(one.model)]
            found[job.id] = _unavailable(job, request.size, of_model, snapshot.nodes)
    return found


def _quarantined(snapshot: Snapshot, work: Job | Notebook, milli: int, quarantined: list[Device]) -> Reason:
    device = quarantined[0]
    on_it = {one.workload for one in snapshot.allocations if one.device == device.id}
    stopping = sorted((each.id, each.attempt) for each in snapshot.jobs if each.id in on_it)
    workload, attempt = stopping[0] if stopping else (None, None)
    return DeviceQuarantined(
        project=work.project,
        pool=work.pool,
        asked_milli=milli,
        device=device.id,
        devices=len(quarantined),
        workload=workload,
        attempt=attempt,
    )


def _unavailable(work: Job | Notebook, milli: int, unavailable: list[Device], nodes: Iterable[Node]) -> Reason:
    """Why work waits that needs unavailable devices; the first of them is named."""
    first = unavailable[0]
    node = next((node for node in nodes if node.id == first.node), None)
    cluster, unread_since_at = _unread(node)
    return DeviceUnavailable(
        project=work.project,
        pool=work.pool,
        asked_milli=milli,
        device=first.id,
        devices=len(unavailable),
        trouble=_trouble(first, node),
        cluster=cluster,
        unread_since_at=unread_since_at,
    )


def _unread(node: Node | None) -> tuple[str | None, int | None]:
    """The further cluster of a node, and since when it cannot be read."""
    if node is None or node.cluster == OWN_CLUSTER or node.unread_since_at is None:
        return None, None
    return node.cluster, node.unread_since_at


def _trouble(device: Device, node: Node | None) -> str:
    """Why a device is unavailable."""
    if device.health is Health.UNHEALTHY:
        return f"unhealthy: {device.trouble or 'the cause is not known'}"
    if device.health is Health.QUARANTINED:
        return "in quarantine"
    if node is not None and not node.schedulable and device.trouble is not None:
        return device.trouble
    if node is None or not node.schedulable:
        return f"on node {device.node}, which is gone, or cannot be read now"
    return f"on node {device.node}, which is {'being drained' if node.upkeep is Upkeep.DRAINING else 'cordoned'}"
