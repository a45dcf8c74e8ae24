"""Work of a removed project or pool: it is no longer in the quota file, and running work continues.

No quota covers it: preemptible work is over quota, other work and notebooks drain, nothing new starts.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Collection

from ..lifecycle import HOLDS_GPU, HOLDS_SLICE
from ..model import Job, Notebook
from ..reasons import PoolGone, ProjectGone, Reason


def removal_reason(
    work: Job | Notebook, *, projects: Collection[str], pools: Collection[str], deadline: bool = False
) -> Reason | None:
    """Why no quota covers work that has devices; None for work that is covered, or has none.

    ``projects`` and ``pools``: the names in the quota file; ``deadline``: whether it gives draining work a deadline.
    """
    holds = work.state in HOLDS_GPU if isinstance(work, Job) else work.state in HOLDS_SLICE
    if not holds or (work.project in projects and work.pool in pools):
        return None
    kind = "notebook" if isinstance(work, Notebook) else "preemptible job" if work.preemptible else "job"
    if kind == "job" and deadline:
        kind = "job with a deadline"
    if work.pool in pools:
        return ProjectGone(project=work.project, pool=work.pool, kind=kind)
    kind = "job" if kind == "preemptible job" else kind  # no job claims devices there, so it is not paused
    return PoolGone(project=work.project, pool=work.pool, kind=kind)
