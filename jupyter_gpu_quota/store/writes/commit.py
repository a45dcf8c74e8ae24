"""Commit a plan, or drop it whole: the only place where devices are allocated."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import assert_never

from ...core import transitions
from ...core.frozen import with_changes
from ...core.job_ends import JobEnd
from ...core.model import WHOLE_DEVICE, Allocation, Device, Health, Job, JobTarget, Placement, Policy
from ...core.plan import (
    RESIZED,
    Action,
    Lend,
    Pause,
    Plan,
    Refuse,
    Release,
    Reserve,
    Resume,
    Start,
    Stop,
    Unreserve,
)
from ...core.reason_codes import KEPT_WHILE_STOPPING
from ...core.reasons import ByUser, Reason
from ..database.tables import ALLOCATIONS, DEVICES, JOBS, NOTEBOOKS, RANKS, RESERVATIONS, ReservationRow
from ..database.unit_of_work import UnitOfWork
from ..records.calls import Lease, Stale
from ..records.plan_chunks import PlanChunk
from ..records.rows import JobRecord, NotebookRecord, RankRecord
from .allocations import (
    allocate_devices,
    drop_reservation,
    move_notebook,
    put_job,
    release_devices,
    workload_project,
)
from .lease import why_lost

CONTROLLER = "system:controller"


def commit_chunk(
    work: UnitOfWork, chunk: PlanChunk, *, policy: Policy, snapshot_digest: str, lease: Lease
) -> Stale | None:
    """Write every action of a plan, or of a chunk of it, or return why it is stale; an empty plan writes nothing.

    Raises IllegalTransition and ValueError for a plan that was wrong when it was made: a bug of its author.
    """
    plan = chunk.plan
    named = _read_ahead(work, plan)
    if why := why_lost(work, lease) or _why_stale(work, plan, policy, named):
        return Stale(seen=plan.seen_version, current=work.version(), why=why)
    for action in plan.actions:
        _apply(work, action, policy=policy, lease=lease)
    if plan.actions:
        _audit_plan(work, chunk, policy=policy, snapshot_digest=snapshot_digest, lease=lease)
    return None


# --- stale or not ---------------------------------------------------------------------------------------------------
def _read_ahead(work: UnitOfWork, plan: Plan) -> list[str]:
    """Read every row that the plan names in a few queries; returns the ids of its jobs and notebooks."""
    named = [action.workload for action in plan.actions]
    named += [action.preemptor for action in plan.actions if isinstance(action, Pause)]
    keys = [(id,) for id in named]
    work.fetch(JOBS, keys)
    work.fetch(NOTEBOOKS, [key for key in keys if work.get(JOBS, key) is None])
    work.fetch(RESERVATIONS, keys)
    work.fetch(DEVICES, [(placement.device,) for action in plan.actions for placement in _placements(action)])
    return named


def _placements(action: Action) -> tuple[Placement, ...]:
    return action.placements if isinstance(action, (Start, Resume, Reserve)) else ()


def _why_stale(work: UnitOfWork, plan: Plan, policy: Policy, named: Iterable[str]) -> str | None:
    if plan.seen_version > work.head.version:
        return f"The plan was made for version {plan.seen_version} of another database; this one is a restored backup."
    present = work.head.quota_revision
    if present != policy.revision:
        return f"The plan was made for quota revision {policy.revision}, but revision {present} is in force."
    for id in named:
        record = work.get(JOBS, (id,)) or work.get(NOTEBOOKS, (id,))
        if record is None:
            return f"The plan names workload {id}, which is not there any more."
        if record.changed > plan.seen_version:
            return f"Workload {id} changed at version {record.changed}, after the plan's {plan.seen_version}."
    return _why_no_room(work, plan)


def _why_no_room(work: UnitOfWork, plan: Plan) -> str | None:
    """Why a device of the plan has no room; None if each is unchanged, healthy and large enough."""
    given = [p for action in plan.actions if isinstance(action, (Start, Resume)) for p in action.placements]
    started = {p.device for p in given}
    named = sorted(started | {p.device for action in plan.actions for p in _placements(action)})
    milli, memory = dict.fromkeys(named, 0), dict.fromkeys(named, 0)
    held = [row.allocation for row in work.find(ALLOCATIONS, "device", named)] if given else []
    parts: list[Placement | Allocation] = [*held, *given]
    for part in parts:
        milli[part.device] += part.gpu_milli
        memory[part.device] += part.memory_mib
    for id in named:
        row = work.get(DEVICES, (id,))
        if row is None:
            return f"The plan names device {id}, which is not known."
        if row.changed > plan.seen_version:
            return f"Device {id} changed at version {row.changed}, after the plan's {plan.seen_version}."
        if id in started and (why := _why_too_much(row.device, milli[id], memory[id])):
            return why
    return None


def _why_too_much(device: Device, milli: int, memory_mib: int) -> str | None:
    milli_used = milli + device.foreign_milli
    if device.health is not Health.HEALTHY:
        return f"Device {device.id} is {device.health}; nothing may be started on it."
    if milli_used > WHOLE_DEVICE:
        return f"Device {device.id} would have {milli_used} of {WHOLE_DEVICE} milli-GPU in use, foreign use included."
    if memory_mib > device.memory_mib:
        return f"Device {device.id} would need {memory_mib} MiB of its {device.memory_mib} MiB."
    return None


# --- actions ---------------------------------------------------------------------------------------
def _apply(work: UnitOfWork, action: Action, *, policy: Policy, lease: Lease) -> None:
    match action:
        case Start() | Resume():
            project = _start(work, action, policy, lease)
        case Pause():
            project = _pause(work, action, policy)
        case Stop():
            action, project = _stop(work, action)
        case Refuse() | Release():
            drop_reservation(work, action.workload)
            event = "refuse" if isinstance(action, Refuse) else "return"
            project = move_notebook(work, _notebook(work, action.workload), event, action.reason).notebook.project
        case Lend():
            project = _lend(work, action)
        case Reserve():
            project = _project(work, action.workload)
            reservation = transitions.reserved(action, now=work.now)
            work.put(RESERVATIONS, ReservationRow(reservation=reservation, dropped_at=None, changed=work.stamp()))
        case Unreserve():
            project = _project(work, action.workload)
            drop_reservation(work, action.workload)
        case _:
            assert_never(action)
    work.audit(CONTROLLER, type(action).__name__.lower(), action.workload, {"action": action}, project)


def _job(work: UnitOfWork, id: str) -> JobRecord:
    record = work.get(JOBS, (id,))
    if record is None:
        raise ValueError(f"{id} is not a job, so it cannot be started, paused or stopped as one")
    return record


def _notebook(work: UnitOfWork, id: str) -> NotebookRecord:
    record = work.get(NOTEBOOKS, (id,))
    if record is None:
        raise ValueError(f"{id} is not a notebook slice, so it cannot be booked or refused")
    return record


def _project(work: UnitOfWork, id: str) -> str:
    return workload_project(work, id) or _notebook(work, id).notebook.project


def _start(work: UnitOfWork, action: Start | Resume, policy: Policy, lease: Lease) -> str:
    _check_placements(action)
    drop_reservation(work, action.workload)
    allocate_devices(work, action.workload, action.attempt, action.placements)
    if work.get(JOBS, (action.workload,)) is None:
        booked = move_notebook(work, _notebook(work, action.workload), "book", action.reason)
        return booked.notebook.project
    return _start_job(work, action, policy, lease)


def _check_placements(action: Start | Resume) -> None:
    if not action.placements:
        raise ValueError(f"{action.workload} cannot start on no device")
    for placement in action.placements:
        if not 1 <= placement.gpu_milli <= WHOLE_DEVICE or placement.memory_mib < 0 or placement.rank < 0:
            raise ValueError(f"{action.workload} cannot start on {placement}")


def _start_job(work: UnitOfWork, action: Start | Resume, policy: Policy, lease: Lease) -> str:
    record = _job(work, action.workload)
    if action.attempt != record.job.attempt + 1:
        raise ValueError(f"job {record.job.id} has had {record.job.attempt} attempts; {action.attempt} is not the next")
    nodes = {p.rank: p.device for p in reversed(action.placements)}
    _check_ranks(record.job, nodes)
    job = transitions.started(record.job, action)
    put_job(work, record, job=job, reason=action.reason, exit_status=None)
    for rank, device in sorted(nodes.items()):
        row = work.get(DEVICES, (device,))
        node = row.device.node if row else ""
        new = RankRecord(job=job.id, attempt=action.attempt, rank=rank, node=node, fencing=lease.fencing)
        work.put(RANKS, new)
    if record.spec.data:
        payload = {"attempt": job.attempt, "data": list(record.spec.data), "revision": policy.revision}
        work.audit(job.user, "data.use", job.id, payload, job.project)
    return job.project


def _check_ranks(job: Job, ranks: Collection[int]) -> None:
    """A gang starts with all ranks, an elastic job with its minimum at least; ranks have numbers from 0 on."""
    if sorted(ranks) != list(range(len(ranks))) or not job.least_ranks <= len(ranks) <= job.ranks:
        least = "" if job.min_ranks is None else f"{job.min_ranks} to "
        raise ValueError(f"job {job.id} has {least}{job.ranks} ranks and cannot start with the ranks {sorted(ranks)}")


def _pause(work: UnitOfWork, action: Pause, policy: Policy) -> str:
    record = _job(work, action.workload)
    job = transitions.paused(record.job, action, per_s=policy.preemption.per_s, now=work.now)
    put_job(work, record, job=job, reason=action.reason, pauses=record.pauses + (action.reason.code not in RESIZED))
    return job.project


def _stop(work: UnitOfWork, action: Stop) -> tuple[Stop, str]:
    """The stop with its reason: the job's row knows it better than the plan after a hold, a cancel or a failure."""
    if action.target is JobTarget.RUNNING:
        raise ValueError(f"job {action.workload} cannot be stopped in order to be {action.target}")
    record = _job(work, action.workload)
    action = with_changes(action, reason=_stop_reason(record.reason, action.reason))
    job = transitions.stopped(record.job, action, now=work.now)
    put_job(work, record, job=job, reason=action.reason)
    return action, job.project


def _stop_reason(recorded: Reason | None, planned: Reason) -> Reason:
    """The recorded reason of a controller's hold or of a failed rank; the planned one with who held or cancelled."""
    if recorded is None:
        return planned
    if isinstance(planned, ByUser) and isinstance(recorded, ByUser):
        return with_changes(planned, by=recorded.by)
    return recorded if recorded.code in KEPT_WHILE_STOPPING or isinstance(recorded, JobEnd) else planned


def _lend(work: UnitOfWork, action: Lend) -> str:
    """Release the device of a slice that stays booked; the record keeps the device to which the slice returns."""
    record = _notebook(work, action.workload)
    held = work.find(ALLOCATIONS, "workload", [action.workload])
    if not held:
        raise ValueError(f"notebook {action.workload} has no device that could be lent")
    release_devices(work, action.workload)
    lent = with_changes(record.notebook, device=held[0].allocation.device)
    return move_notebook(work, with_changes(record, notebook=lent), "lend", action.reason).notebook.project


def _audit_plan(work: UnitOfWork, chunk: PlanChunk, *, policy: Policy, snapshot_digest: str, lease: Lease) -> None:
    payload: dict[str, object] = {
        "snapshot": snapshot_digest,
        "seen_version": chunk.plan.seen_version,
        "revision": policy.revision,
        "plan": chunk.plan_digest,
        "actions": len(chunk.plan.actions),
        "fencing": lease.fencing,
    }
    if not chunk.is_whole_plan:
        payload |= {"first": chunk.first, "of": chunk.of}
    work.audit(CONTROLLER, "plan", str(work.version()), payload, None)
