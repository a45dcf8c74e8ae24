"""Work that outlives its project or pool: a quota file no longer names them, and what runs keeps its devices.

It is no owner's any more: preemptible work is over quota, other work and notebooks drain, nothing new starts.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Collection

from ..lifecycle import HOLDS_GPU, HOLDS_SLICE
from ..model import Job, Notebook
from ..plan import Reason, ReasonCode


def outlives(
    work: Job | Notebook, *, projects: Collection[str], pools: Collection[str], deadline: bool = False
) -> Reason | None:
    """Why what holds devices is no longer covered by any quota; None for what is, and for what holds none.

    ``projects`` and ``pools`` are the names that the quota file has; ``deadline``: it gives one to what drains.
    """
    holds = work.state in HOLDS_GPU if isinstance(work, Job) else work.state in HOLDS_SLICE
    if not holds or (work.project in projects and work.pool in pools):
        return None
    code = ReasonCode.POOL_GONE if work.pool not in pools else ReasonCode.PROJECT_GONE
    kind = "notebook" if isinstance(work, Notebook) else _kind(work, code, deadline=deadline)
    return Reason(code=code, figures=(("project", work.project), ("pool", work.pool), ("kind", kind)))


def _kind(job: Job, code: ReasonCode, *, deadline: bool) -> str:
    """Nobody claims devices of a pool that is gone, so what runs there is paused for nobody."""
    if code is ReasonCode.POOL_GONE:
        return "job"
    return "preemptible job" if job.preemptible else "job with a deadline" if deadline else "job"
