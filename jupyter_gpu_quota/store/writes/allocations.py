"""What workloads hold: allocations given out and released, reservations dropped. Shared by every kind of change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core import transitions
from ...core.facts import NotebookFact
from ...core.frozen import with_changes
from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import Activity, Placement
from ...core.reasons import Reason
from ..database.tables import ALLOCATIONS, DEVICES, JOBS, NOTEBOOKS, RESERVATIONS, SECRETS, AllocationRow
from ..database.unit_of_work import UnitOfWork
from ..records.rows import JobRecord, NotebookRecord


def put_job(work: UnitOfWork, record: JobRecord, **changes: Any) -> None:
    """Write a job, with these fields of its record changed, as of this transaction; an ended one keeps no secret."""
    row = with_changes(record, **changes, changed=work.stamp())
    work.put(JOBS, row)
    if row.ended_at is not None and row.spec.secret_names:
        work.delete(SECRETS, (row.job.id,))


def move_notebook(work: UnitOfWork, record: NotebookRecord, event: str, reason: Reason | None) -> NotebookRecord:
    """Apply one event to a notebook's slice; raises IllegalMove."""
    was, is_lent = record.notebook, event == "lend"
    becomes = transitions.lent(was, device=was.device, now=work.now) if is_lent else transitions.moved(was, event)
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
    """Record how a notebook with a slice is used; one that is not known, or has no slice any more, is left alone.

    What plans rest on goes into the audit: whether it is idle, and empty. Busy and unknown are the same to them.
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


def give_devices(work: UnitOfWork, workload: str, attempt: int, placements: Iterable[Placement]) -> None:
    """Write the allocations of a workload that starts; capacity was checked for the whole plan."""
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
    """The workload's processes are gone: what it held is free from now on. Rule R46."""
    for row in work.find(ALLOCATIONS, "workload", [workload]):
        work.put(ALLOCATIONS, with_changes(row, released_at=work.now, changed=work.stamp()))


def drop_reservation(work: UnitOfWork, workload: str) -> None:
    """Drop the workload's reservation, if it has one."""
    row = work.get(RESERVATIONS, (workload,))
    if row is not None and row.dropped_at is None:
        work.put(RESERVATIONS, with_changes(row, dropped_at=work.now, changed=work.stamp()))
