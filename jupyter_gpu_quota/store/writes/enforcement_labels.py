"""How shares were found to be held: one row for each allocation, and an audit row where that changes."""

from __future__ import annotations

from ..database.tables import ALLOCATIONS, JOBS, LABELS, NOTEBOOKS
from ..database.unit_of_work import Work
from ..records.commands import LabelShares, Recorded, ShareLabel

NOTHING = ("none", "none")


def label_shares(work: Work, request: LabelShares) -> Recorded:
    """Keep the newest labels; of shares that are over, or say nothing new, nothing is written."""
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


def _audit(work: Work, actor: str, workload: str, before: ShareLabel | None, new: ShareLabel) -> None:
    """That it is held otherwise than before; before the first look it was held by nothing."""
    was = NOTHING if before is None else (before.memory, before.compute)
    if was == (new.memory, new.compute):
        return
    payload = {
        "allocation": new.allocation, "was_memory": was[0], "was_compute": was[1], "memory": new.memory,
        "compute": new.compute, "why": new.why,
    }  # fmt: skip
    work.audit(actor, "share.enforcement", workload, payload, _project(work, workload))


def _project(work: Work, workload: str) -> str | None:
    job = work.get(JOBS, (workload,))
    if job is not None:
        return job.job.project
    notebook = work.get(NOTEBOOKS, (workload,))
    return None if notebook is None else notebook.notebook.project
