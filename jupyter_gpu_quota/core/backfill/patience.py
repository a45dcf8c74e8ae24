"""Patience: a job that has waited long without ever starting is not overtaken for ever by its own project."""

from __future__ import annotations

from ..model import MS_PER_S, Job
from ..queue.job_queue import ClassQueue
from ..queue.pool_state import PoolState
from ..queue.quota_state import QuotaState
from .planned_start import PatientJob
from .reservation import may_hold
from .state import BackfillState


class PatientJobs:
    """The first patient job of each project, found when it is first asked for. Rule R24."""

    def __init__(self, pool: PoolState, backfill: BackfillState) -> None:
        self.pool, self.backfill = pool, backfill
        self._since = pool.now - pool.policy.patience_s * MS_PER_S
        self._known: dict[tuple[QuotaState, str], PatientJob | None] = {}

    def of(self, project: QuotaState) -> PatientJob | None:
        """The project's patient job; never the one with the backfill reservation."""
        holder = self.backfill.now.job if self.backfill.now else ""
        if (project, holder) not in self._known:
            self._known[project, holder] = self._find(project, holder)
        return self._known[project, holder]

    def found(self) -> dict[str, PatientJob]:
        """The patient jobs that were asked for, by id."""
        return {one.job.id: one for one in self._known.values() if one is not None}

    def _find(self, project: QuotaState, holder: str) -> PatientJob | None:
        """The first in the project's order of those that fit beside the guarantees and have a planned start."""
        rows = list[tuple[int, int, str, Job, ClassQueue]]()
        for queue in project.queue.classes.values():
            job = queue.oldest(self._since)
            if job is not None and job.id != holder and may_hold(self.pool, project, queue):
                rows.append((-job.priority, job.submitted_at, job.id, job, queue))
        if not rows:
            return None
        *_, job, queue = min(rows)
        planned = self.backfill.plan(project, queue, job)
        return None if planned is None else PatientJob(job, queue, planned.starts_at)
