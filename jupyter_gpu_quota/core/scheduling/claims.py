"""The claims of a plan: each is added with its victims, and what it frees beyond its need is offered again."""

from __future__ import annotations

from ..backfill.state import BackfillState
from ..model import Job
from ..placement.place import is_free_now, occupy, reserve
from ..preemption.result import Preemption
from ..queue.job_class import queue_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import NO_LIMIT, QuotaState
from . import reasons
from .plan_builder import PlanBuilder
from .read_pool import enqueue


class Claims:
    """Adds preemptions to the plan of one pool."""

    def __init__(self, pool: PoolState, builder: PlanBuilder, backfill: BackfillState) -> None:
        self.pool, self.ledger, self.builder, self.backfill = pool, pool.ledger, builder, backfill
        self.offers_again = False
        """A claim has freed more than it needs."""
        self.changed: dict[QuotaState, None] = {}
        """The projects whose use or queue a claim has changed."""
        self.took_over = False
        """A claim has taken over a reservation; devices that it does not use may be free now."""

    def preempt_or_start(self, preemption: Preemption, job: Job) -> None:
        """Start the job now if it only takes over reserved devices that are free; else plan the preemption."""
        project = preemption.preemptor.project
        stops = [victim for victim in preemption.victims if not victim.reserved]
        if stops or preemption.moves or project.at_limit(0):
            self.add(preemption)
            return
        mark = self.ledger.mark()
        reserve(self.ledger, preemption.pieces, borrowed=preemption.borrowed, sign=-1)
        if not is_free_now(self.ledger, preemption.pieces, borrowed=preemption.borrowed):
            self.ledger.undo(mark)
            self.add(preemption)
            return
        occupy(self.ledger, preemption.pieces, borrowed=preemption.borrowed)
        size, entitlement = preemption.preemptor.request.size, preemption.preemptor.entitlement
        reason = reasons.started(
            project, size, 0, entitlement, preemptible=job.preemptible, borrowed=preemption.borrowed
        )
        self.pool.add_started(job, preemption.pieces, borrowed=preemption.borrowed)
        self.builder.take_over(preemption)
        self._queue_again(preemption)
        self._reorder_users(preemption)
        self.builder.start(job, preemption.pieces, borrowed=preemption.borrowed, reason=reason)

    def add(self, preemption: Preemption) -> None:
        """Plan a preemption; what it frees beyond the claim is offered again from the top of the order."""
        self.backfill.note_claim(preemption)
        self.builder.preempt(preemption)
        self.follow_up(preemption)

    def follow_up(self, preemption: Preemption) -> None:
        """What follows from a preemption that is in the plan."""
        self._queue_again(preemption)
        if not self.offers_again and preemption.victims:
            self.offers_again = bool(self.ledger.draining) or self.backfill.is_freed_by(preemption)
        self.backfill.give_up_new(preemption)
        self._reorder_users(preemption)
        self._reopen_within_guarantee(preemption)

    def _reopen_within_guarantee(self, preemption: Preemption) -> None:
        """Open the project's classes again if its claim frees more than it needs, and leaves it below its guarantee."""
        preemptor, project = preemption.preemptor, preemption.preemptor.project
        if project.use < project.guarantee:
            lost = sum([victim.size for victim in preemption.victims if victim.project is project])
            if lost > preemptor.request.size:
                project.queue.reopen()

    def _queue_again(self, preemption: Preemption) -> None:
        """Queue the jobs again whose reservations the claim takes over."""
        for victim in preemption.victims:
            if victim.reserved:
                enqueue(self.pool, self.pool.waiting[victim.id])
                self.pool.room_came_back = self.took_over = True

    def return_to_queue(self, preemption: Preemption) -> None:
        """Queue a job again that has lost the devices that others are leaving."""
        preemptor, job = preemption.preemptor, self.pool.waiting[preemption.preemptor.id]
        preemptor.project.remove(preemptor.request.size, preemptor.user, preemptible=preemptor.preemptible)
        if (queue := queue_of(self.pool, job)) is not None:
            queue.put_back(job)
        self._reorder_user(preemptor.project, preemptor.user)

    def _reorder_users(self, preemption: Preemption) -> None:
        """Reorder the users of the victims in their queues; they may have room under a ceiling again."""
        self.changed[preemption.preemptor.project] = None
        for victim in preemption.victims:
            self.changed[victim.project] = None
            self._reorder_user(victim.project, victim.user)

    def _reorder_user(self, owner: QuotaState, user: str) -> None:
        """Reorder a user whose use of a project fell, in the queues of all projects whose ceilings count it."""
        department = owner.parent
        is_shared = department is not None and department.user_ceiling != NO_LIMIT
        for project in self.pool.projects.values() if is_shared else (owner,):
            if project is owner or project.parent is department:
                project.queue.reorder(user)
