"""How each allocation is enforced: one row for each, and an audit row when the level changes."""

from __future__ import annotations

from ..database.tables import ALLOCATIONS, JOBS, LABELS, NOTEBOOKS
from ..database.unit_of_work import UnitOfWork
from ..records.commands import AllocationLabel, Recorded, RecordEnforcementLabels

NOTHING = ("none", "none")


def record_labels(work: UnitOfWork, request: RecordEnforcementLabels) -> Recorded:
    """Store new labels. Labels of released allocations and unchanged labels are not written."""
    keys = [(each.allocation,) for each in request.labels]
    work.fetch(LABELS, keys)
    work.fetch(ALLOCATIONS, keys)
    for new in request.labels:
        share = work.get(ALLOCATIONS, (new.allocation,))
        if share is None or share.released_at is not None:
            continue
        before = work.get(LABELS, (new.allocation,))
        if before is not None and before.says == new.says:
            continue
        work.put(LABELS, new)
        _audit(work, request.actor, share.allocation.workload, before, new)
    return Recorded(id="labels", version=work.version())


def _audit(work: UnitOfWork, actor: str, workload: str, before: AllocationLabel | None, new: AllocationLabel) -> None:
    """Audit a changed level; the level before the first label is none."""
    was = NOTHING if before is None else (before.memory, before.compute)
    if was == (new.memory, new.compute):
        return
    payload = {
        "allocation": new.allocation, "was_memory": was[0], "was_compute": was[1], "memory": new.memory,
        "compute": new.compute, "why": new.why,
    }  # fmt: skip
    work.audit(actor, "share.enforcement", workload, payload, _project(work, workload))


def _project(work: UnitOfWork, workload: str) -> str | None:
    job = work.get(JOBS, (workload,))
    if job is not None:
        return job.job.project
    notebook = work.get(NOTEBOOKS, (workload,))
    return None if notebook is None else notebook.notebook.project
