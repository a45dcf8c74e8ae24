"""Changes that several kinds of requests, plans and facts have in common: rows of jobs, notebooks and allocations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core import transitions
from ...core.facts import NotebookFact
from ...core.frozen import with_changes
from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import Activity, Placement
from ...core.reasons import Reason
from ..database.tables import (
    ALLOCATIONS,
    DEVICES,
    JOBS,
    LABELS,
    NOTEBOOKS,
    RESERVATIONS,
    SECRETS,
    AllocationRow,
)
from ..database.unit_of_work import UnitOfWork
from ..records.commands import Recorded, RecordEnforcementLabels, Refused
from ..records.rows import JobRecord, NotebookRecord


def put_job(work: UnitOfWork, record: JobRecord, **changes: Any) -> None:
    """Write a job with some fields of its record changed; the secrets of an ended one are deleted."""
    row = with_changes(record, **changes, changed=work.stamp())
    work.put(JOBS, row)
    if row.ended_at is not None and row.spec.secret_names:
        work.delete(SECRETS, (row.job.id,))


def live_notebook(work: UnitOfWork, notebook: str) -> NotebookRecord:
    """The record of a slice that has not ended. Raises Refused."""
    record = work.get(NOTEBOOKS, (notebook,))
    if record is None or record.ended_at is not None:
        raise Refused("ended", f"The notebook slice {notebook} has ended; nothing was recorded.")
    return record


def workload_project(work: UnitOfWork, workload: str) -> str | None:
    """The project of a job or notebook; None for an unknown one."""
    job = work.get(JOBS, (workload,))
    if job is not None:
        return job.job.project
    notebook = work.get(NOTEBOOKS, (workload,))
    return None if notebook is None else notebook.notebook.project


def move_notebook(work: UnitOfWork, record: NotebookRecord, event: str, reason: Reason | None) -> NotebookRecord:
    """Apply one event to a notebook's slice; raises IllegalTransition."""
    was, is_lent = record.notebook, event == "lend"
    becomes = (
        transitions.lent(was, device=was.device, now=work.now) if is_lent else transitions.notebook_changed(was, event)
    )
    moved = with_changes(
        record,
        notebook=becomes,
        reason=reason,
        booked_at=work.now if event == "book" else record.booked_at,
        ended_at=work.now if becomes.state in NOTEBOOK_FINAL else None,
        changed=work.stamp(),
    )
    work.put(NOTEBOOKS, moved)
    return moved


def observe_notebook(work: UnitOfWork, fact: NotebookFact) -> None:
    """Record how a notebook with a live slice is used; any other one is ignored.

    The audit has a row where plans depend on the change: they distinguish idle from other use, and empty devices.
    """
    record = work.get(NOTEBOOKS, (fact.notebook,))
    if record is None or record.ended_at is not None:
        return
    seen = with_changes(record.notebook, activity=Activity(fact.activity), seen_empty=fact.seen_empty)
    if seen == record.notebook:
        return
    work.put(NOTEBOOKS, with_changes(record, notebook=seen, changed=work.stamp()))
    before = record.notebook
    if (before.activity is Activity.IDLE, before.seen_empty) == (seen.activity is Activity.IDLE, seen.seen_empty):
        return
    payload = {"was": record.notebook.activity, "is": seen.activity, "seen_empty": seen.seen_empty}
    work.audit("system:controller", "notebook.activity", seen.id, payload, seen.project)


def allocate_devices(work: UnitOfWork, workload: str, attempt: int, placements: Iterable[Placement]) -> None:
    """Write the allocations of a workload that starts; the caller has checked the capacity for the whole plan."""
    for placement in placements:
        device = work.get(DEVICES, (placement.device,))
        row = AllocationRow(
            allocation=transitions.allocation(work.new_id(), workload, placement),
            device_uuid=device.device.uuid if device else None,
            attempt=attempt,
            allocated_at=work.now,
            released_at=None,
            changed=work.stamp(),
        )
        work.put(ALLOCATIONS, row)


def release_devices(work: UnitOfWork, workload: str) -> None:
    """Release the allocations of a workload whose processes have ended. Rule R57."""
    for row in work.find(ALLOCATIONS, "workload", [workload]):
        work.put(ALLOCATIONS, with_changes(row, released_at=work.now, changed=work.stamp()))


def drop_reservation(work: UnitOfWork, workload: str) -> None:
    """Drop the workload's reservation, if it has one."""
    row = work.get(RESERVATIONS, (workload,))
    if row is not None and row.dropped_at is None:
        work.put(RESERVATIONS, with_changes(row, dropped_at=work.now, changed=work.stamp()))


NO_ENFORCEMENT = ("none", "none")


def record_labels(work: UnitOfWork, request: RecordEnforcementLabels) -> Recorded:
    """Store how allocations are enforced, with an audit row for each changed level.

    Labels of released allocations and unchanged labels are not written.
    """
    keys = [(each.allocation,) for each in request.labels]
    work.fetch(LABELS, keys)
    work.fetch(ALLOCATIONS, keys)
    for new in request.labels:
        row, before = work.get(ALLOCATIONS, (new.allocation,)), work.get(LABELS, (new.allocation,))
        if row is None or row.released_at is not None or (before is not None and before.content == new.content):
            continue
        work.put(LABELS, new)
        was = NO_ENFORCEMENT if before is None else (before.memory, before.compute)
        if was != (new.memory, new.compute):
            payload = {
                "allocation": new.allocation, "was_memory": was[0], "was_compute": was[1], "memory": new.memory,
                "compute": new.compute, "why": new.why,
            }  # fmt: skip
            workload = row.allocation.workload
            work.audit(request.actor, "share.enforcement", workload, payload, workload_project(work, workload))
    return work.recorded("labels")
