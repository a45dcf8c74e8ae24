"""Patience: a job that has waited long without ever starting is not overtaken for ever by its own project."""

from __future__ import annotations

from ..model import MS_PER_S, Job
from ..queue.job_queue import ClassQueue
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState
from .planned_start import OverdueJob
from .reservation import waits_for_devices_or_own_limit
from .state import BackfillState


class OverdueJobs:
    """The first overdue job of each project, found when it is first asked for. Rule R24."""

    def __init__(self, pool: PoolState, backfill: BackfillState) -> None:
        self.pool, self.backfill = pool, backfill
        self._since = pool.now - pool.policy.patience_s * MS_PER_S
        queues = (queue for project in pool.projects.values() for queue in project.queue.classes.values())
        self.any_waited = any(queue.oldest_at <= self._since for queue in queues)
        """Whether any job has waited long enough; if not, there is no overdue job."""
        self._known: dict[tuple[QuotaState, str], OverdueJob | None] = {}

    def of(self, project: QuotaState) -> OverdueJob | None:
        """The project's overdue job that still waits; never the one with the backfill reservation."""
        if not self.any_waited:
            return None
        holder = self.backfill.current.job if self.backfill.current else ""
        if (project, holder) in self._known:
            known = self._known[project, holder]
            if known is None or known.queue.has(known.job):
                return known
        found = self._known[project, holder] = self._find(project, holder)
        return found

    def may_have_one(self, project: QuotaState) -> bool:
        """False only if no job of the project has waited long enough."""
        return self.any_waited and any(
            queue.count and queue.oldest_at <= self._since for queue in project.queue.classes.values()
        )

    def that_holds_back(self, project: QuotaState, queue: ClassQueue, job: Job) -> OverdueJob | None:
        """The overdue job of the project, if a job of this class would overtake it and end after its planned start."""
        overdue = self.that_precedes(project, queue, job)
        return overdue if overdue is not None and job.time_limit_s > overdue.longest_time_limit_s(self.pool) else None

    def that_precedes(self, project: QuotaState, queue: ClassQueue, job: Job) -> OverdueJob | None:
        """The overdue job of the project, if a job of this class has to leave the backfill reservation to it."""
        overdue, reservation = self.of(project), self.backfill.current
        if (
            overdue is None
            or not overdue.is_overtaken_by(job)
            or (reservation is not None and reservation.job == job.id)
        ):
            return None
        if project.entitlement(queue.size) is Entitlement.GUARANTEE and overdue.size > project.guarantee:
            return None
        return overdue

    def found(self) -> dict[str, OverdueJob]:
        """The overdue jobs that were asked for, by id."""
        return {one.job.id: one for one in self._known.values() if one is not None}

    def forget_served(self, project: QuotaState) -> bool:
        """Forget the jobs of a project that wait no more. Returns whether one was known."""
        if not self._known:
            return False
        served = [
            key
            for key, one in self._known.items()
            if key[0] is project and one is not None and not one.queue.has(one.job)
        ]
        for key in served:
            del self._known[key]
        return bool(served)

    def forget(self) -> None:
        """Forget them all: jobs have returned to the queue."""
        self._known.clear()

    def _find(self, project: QuotaState, holder: str) -> OverdueJob | None:
        """By priority and submit time the first of those that fit beside the guarantees and have a planned start."""
        rows = list[tuple[int, int, str, Job, ClassQueue]]()
        for queue in project.queue.classes.values():
            job = queue.oldest(self._since, besides=holder)
            if job is not None and waits_for_devices_or_own_limit(self.pool, project, queue):
                rows.append((-job.priority, job.submitted_at, job.id, job, queue))
        for *_, job, queue in sorted(rows):
            planned = self.backfill.plan(project, queue, job)
            if planned is not None:
                return OverdueJob(job, queue, planned.starts_at)
        return None
