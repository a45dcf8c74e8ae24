"""What workloads hold: allocations given out and released, reservations dropped. Shared by every kind of change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..core.lifecycle import NOTEBOOK_FINAL, notebook_after
from ..core.model import Allocation, Placement
from ..core.plan import Reason
from .protocol import JobRecord, NotebookRecord
from .rows import ALLOCATIONS, DEVICES, JOBS, NOTEBOOKS, RESERVATIONS, SECRETS, AllocationRow
from .work import Work


def put_job(work: Work, record: JobRecord) -> None:
    """Write a job as of this transaction; one that has ended keeps no secret."""
    work.put(JOBS, replace(record, changed=work.stamp()))
    if record.ended_at is not None and record.spec.secret_names:
        work.delete(SECRETS, (record.job.id,))


def move_notebook(work: Work, record: NotebookRecord, event: str, reason: Reason | None) -> NotebookRecord:
    """Apply one event to a notebook's slice; raises IllegalMove."""
    state = notebook_after(record.notebook.state, event)
    moved = replace(
        record,
        notebook=replace(record.notebook, state=state),
        reason=reason,
        booked_at=work.now if event == "book" else record.booked_at,
        ended_at=work.now if state in NOTEBOOK_FINAL else None,
        changed=work.stamp(),
    )
    work.put(NOTEBOOKS, moved)
    return moved


def give_devices(work: Work, workload: str, attempt: int, placements: Iterable[Placement]) -> None:
    """Write the allocations of a workload that starts; capacity was checked for the whole plan."""
    for placement in placements:
        device = work.get(DEVICES, (placement.device,))
        allocation = Allocation(
            id=work.new_id(),
            workload=workload,
            rank=placement.rank,
            device=placement.device,
            gpu_milli=placement.gpu_milli,
            memory_mib=placement.memory_mib,
        )
        row = AllocationRow(
            allocation=allocation,
            device_uuid=device.device.uuid if device else None,
            attempt=attempt,
            allocated_at=work.now,
            released_at=None,
            changed=work.stamp(),
        )
        work.put(ALLOCATIONS, row)


def release_devices(work: Work, workload: str) -> None:
    """The workload's processes are gone: what it held is free from now on."""
    for row in work.find(ALLOCATIONS, "workload", [workload]):
        work.put(ALLOCATIONS, replace(row, released_at=work.now, changed=work.stamp()))


def drop_reservation(work: Work, workload: str) -> None:
    """Drop the workload's reservation, if it has one."""
    row = work.get(RESERVATIONS, (workload,))
    if row is not None and row.dropped_at is None:
        work.put(RESERVATIONS, replace(row, dropped_at=work.now, changed=work.stamp()))
