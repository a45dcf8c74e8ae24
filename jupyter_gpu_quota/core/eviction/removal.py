"""Work of a removed project or pool: the quota file no longer names it, and running work keeps its devices.

No quota covers it: preemptible work is over quota, other work and notebooks drain, nothing new starts.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Collection

from ..lifecycle import HOLDS_GPU, HOLDS_SLICE
from ..model import Job, Notebook
from ..reasons import PoolGone, ProjectGone, Reason


def outlives(
    work: Job | Notebook, *, projects: Collection[str], pools: Collection[str], deadline: bool = False
) -> Reason | None:
    """Why no quota covers work that holds devices; None for work that is covered, or holds none.

    ``projects`` and ``pools``: the names in the quota file; ``deadline``: whether it gives draining work a deadline.
    """
    holds = work.state in HOLDS_GPU if isinstance(work, Job) else work.state in HOLDS_SLICE
    if not holds or (work.project in projects and work.pool in pools):
        return None
    gone = PoolGone if work.pool not in pools else ProjectGone
    kind = "notebook" if isinstance(work, Notebook) else _kind(work, gone, deadline=deadline)
    return gone(project=work.project, pool=work.pool, kind=kind)


def _kind(job: Job, gone: type[PoolGone | ProjectGone], *, deadline: bool) -> str:
    """The kind of a job in the reason. No job claims devices of a removed pool, so no job there is paused."""
    if gone is PoolGone:
        return "job"
    return "preemptible job" if job.preemptible else "job with a deadline" if deadline else "job"
