"""How the first job of a class is served: on free devices, on those of the backfill reservation, or by a claim.

Source: docs/scheduling.md, sections 3, 4 and 7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..backfill.patience import OverdueJobs
from ..backfill.state import BackfillState
from ..model import Job
from ..placement.place import Fit, Piece, Refusal, occupy, place
from ..placement.whole_nodes import WholeNodes
from ..preemption.feasibility import own_project_suffices
from ..preemption.result import Preemption
from ..preemption.rules import Preemptor, preemptor_of
from ..preemption.search.find import find_drain, find_preemption
from ..preemption.victims import victim_scope
from ..queue.job_queue import ClassQueue, JobClass, MakeReason
from ..queue.pool_state import PoolState, checked_shapes
from ..queue.quota_state import Entitlement, QuotaState
from ..reason_codes import ReasonCode
from . import reasons
from .claims import Claims
from .notebook_slices import slice_devices
from .plan_builder import PlanBuilder


class Candidate(NamedTuple):
    """A class of jobs whose turn it is."""

    project: QuotaState
    queue: ClassQueue
    entitlement: Entitlement
    scope: QuotaState | None
    """The project or department that all victims must belong to; None for any."""

    @classmethod
    def of(cls, project: QuotaState, queue: ClassQueue) -> Candidate:
        """The class as it may use devices now."""
        entitlement = project.entitlement(queue.size)
        return cls(project, queue, entitlement, victim_scope(project, queue, entitlement))

    @property
    def size(self) -> int:
        return self.queue.size

    @property
    def preemptor(self) -> Preemptor:
        return preemptor_of(self.project, self.queue, self.entitlement, self.scope)


class JobService:
    """Serves the job classes of one pool."""

    def __init__(self, pool: PoolState, builder: PlanBuilder, backfill: BackfillState, claims: Claims) -> None:
        self.pool, self.ledger, self.builder = pool, pool.ledger, builder
        self.backfill, self.claims, self.overdue_jobs = backfill, claims, OverdueJobs(pool, backfill)
        self.claims_ended = False
        """No job of this plan pauses or moves work any more."""
        self.whole_nodes: WholeNodes | None = None

    def serve(self, project: QuotaState, queue: ClassQueue) -> None:
        """Start the first job of the class, plan its claim, or close the class with the reason why it waits."""
        one = Candidate.of(project, queue)
        if (forbidden := reasons.why_forbidden(self.pool, project, queue, one.entitlement)) is not None:
            queue.blocked = forbidden
        elif self._waits_for_overdue_job(one):
            pass
        elif not project.at_limit(one.size):
            if self._start(one) or self._claim(one) or self._try_last_resorts(one) or self._claim_for_another(one):
                self._reopen_behind_overdue_job(project)
            else:
                queue.blocked = self._why_blocked(one)
                self.backfill.reserve_for(project, queue)
        elif not (project.over_limit(one.size) and self._claim(one)):  # else it fits when the stopping work is gone
            queue.blocked = no_room(project, one.size, ReasonCode.ABOVE_LIMIT)

    def take_drain(self, project: QuotaState, queue: ClassQueue) -> bool:
        """Reserve devices that work is leaving for the first job of a class that could not start."""
        one = Candidate.of(project, queue)
        forbidden = reasons.why_forbidden(self.pool, project, queue, one.entitlement)
        if forbidden is not None or self._waits_for_overdue_job(one) or project.at_limit(one.size):
            return False
        is_taken = self._add(self._search(find_drain, one), one)
        if is_taken:
            self._reopen_behind_overdue_job(project)
        return is_taken

    def claim_again(self, project: QuotaState, queue: ClassQueue, job: Job) -> bool:
        """Plan a claim for a job of the class whose reserved devices are quarantined in part."""
        one = Candidate.of(project, queue)
        forbidden = reasons.why_forbidden(self.pool, project, queue, one.entitlement)
        if forbidden is not None or project.at_limit(one.size) or not queue.has_room_for(job.user):
            return False
        self.pool.searches += 1
        preemptor = preemptor_of(project, queue, one.entitlement, one.scope, job)
        found = find_preemption(self.pool, preemptor) if self._may_claim(one) else None
        found = found or find_drain(self.pool, preemptor)
        if found is not None:
            queue.put_back(job)
        return self._add(found, one, job)

    def fits_nowhere(self, queue: ClassQueue) -> bool:
        """Whether a class has no room, not even on the reserved devices: a job that ends in time may run there."""
        request, borrowed = queue.job_class.request, queue.job_class.preemptible
        is_refused = isinstance(place(self.ledger, request, borrowed=borrowed), Refusal)
        if not is_refused or not self.backfill.has_room(request.per_device):
            return is_refused
        if not self.backfill.could_make_room(request.size) or self.backfill.is_refused(request, borrowed=borrowed):
            return True
        with self.backfill.lifted(plans_again=False):
            return isinstance(place(self.ledger, request, borrowed=borrowed), Refusal)

    def is_behind_overdue_job(self, project: QuotaState, queue: ClassQueue) -> bool:
        """Whether a class is closed because its jobs would overtake an overdue job; it gets no reservation either."""
        if not self.overdue_jobs.may_have_one(project):
            return False
        return queue.first_key() is not None and self._waits_for_overdue_job(Candidate.of(project, queue))

    def start_backfilled(self) -> None:
        """Start the job that has the backfill reservation, as soon as its devices, or others, are free."""
        reservation = self.backfill.current
        if (
            reservation is None
            or reservation.project.at_limit(reservation.queue.size)
            or self.builder.serves(reservation.job)
        ):
            return
        if not self.backfill.could_make_room(reservation.queue.size):
            return
        one = Candidate.of(reservation.project, reservation.queue)
        forbidden = reasons.why_forbidden(self.pool, reservation.project, reservation.queue, one.entitlement)
        job = self.pool.waiting[reservation.job]
        if forbidden is not None or not reservation.queue.has_room_for(job.user):
            return
        with self.backfill.lifted(plans_again=False):
            started = self._start_free(one, can_borrow=reservation.queue.job_class.preemptible, job=job)
        if started:
            self.backfill.drop()

    def _waits_for_overdue_job(self, one: Candidate) -> bool:
        """Whether the class has only jobs that would overtake an older job of the project; else its first does not."""
        queue = one.queue
        if not self.overdue_jobs.any_waited:
            queue.is_preceded = False
            return False
        job = queue.first()
        overdue = self.overdue_jobs.that_precedes(one.project, queue, job)
        queue.is_preceded = overdue is not None
        if overdue is None or job.time_limit_s <= (in_time := overdue.longest_time_limit_s(self.pool)):
            return False
        other = overdue.job if overdue.queue is queue else queue.first_beside(overdue.job, in_time)
        if other is not None and queue.has_room_for(other.user):
            queue.choose(other)
            queue.is_preceded = overdue.is_overtaken_by(other)
            return False
        queue.is_overtaking = True
        queue.blocked = partial(reasons.behind_overdue_job, self.pool, one.project, one.size, overdue)
        return True

    def _reopen_behind_overdue_job(self, project: QuotaState) -> None:
        """Open the classes that wait for an overdue job again once that is served."""
        if self.overdue_jobs.forget_served(project):
            for queue in project.queue.classes.values():
                if queue.is_overtaking:
                    queue.reopen()

    # -- at once -------------------------------------------------------------------------------------------------

    def _start(self, one: Candidate) -> bool:
        can_borrow = one.queue.job_class.preemptible and one.entitlement is not Entitlement.GUARANTEE
        return self._start_free(one, can_borrow=can_borrow) or self._start_on_reserved(one, can_borrow=can_borrow)

    def _start_on_reserved(self, one: Candidate, *, can_borrow: bool) -> bool:
        """Start a job on the reserved devices, if it ends in time, has the better right, or borrows them. Rule R30."""
        reservation, request = self.backfill.current, one.queue.job_class.request
        if reservation is None or not (self.backfill.has_room(request.per_device) or reservation.takes_cpu_or_memory):
            return False
        if not self.backfill.could_make_room(request.size) or self.backfill.is_refused(request, borrowed=can_borrow):
            return False
        short = one.queue.first_within(reservation.longest_time_limit_s(self.pool))
        if short is not None and self.overdue_jobs.that_holds_back(one.project, one.queue, short) is None:
            with self.backfill.lifted(plans_again=False):
                if self._start_free(one, can_borrow=can_borrow, job=short):
                    return True
        if not self._must_preempt_first(one) and self._start_by_right(one, can_borrow=can_borrow):
            return True
        if not self.backfill.lends_to(one.project, one.queue.job_class):
            return False
        with self.backfill.lifted(plans_again=False):
            return self._start_free(one, can_borrow=can_borrow, borrows=True)

    def _start_by_right(self, one: Candidate, *, can_borrow: bool) -> bool:
        """Start a job on the reserved devices for as long as it runs; the reservation is planned again."""
        if not self._has_better_right(one):
            return False
        with self.backfill.lifted(plans_again=True):
            return self._start_free(one, can_borrow=can_borrow)

    def _has_better_right(self, one: Candidate) -> bool:
        reservation = self.backfill.current
        return reservation is not None and reservation.has_better_right(
            self.pool, one.project, one.queue, one.entitlement
        )

    def _must_preempt_first(self, one: Candidate) -> bool:
        """Whether a job starts on the reserved devices only if no move and no preemption serves it."""
        reservation = self.backfill.current
        return reservation is not None and one.entitlement is reservation.entitlement is Entitlement.GUARANTEE

    def _start_free(self, one: Candidate, *, can_borrow: bool, job: Job | None = None, borrows: bool = False) -> bool:
        """Start the first job of a class, or the given one, on devices that are free now.

        ``borrows``: as a borrower of the backfill reservation, which is lifted.
        """
        project, queue = one.project, one.queue
        for borrowed in (False, True) if can_borrow and self.ledger.has_unused_quota else (False,):
            fit = place(self.ledger, queue.job_class.request, borrowed=borrowed)
            if isinstance(fit, Fit):
                fit = self._beside_whole_nodes(queue.job_class, fit)
                job = queue.take() if job is None else queue.pick(job)
                size, right, preemptible = queue.size, one.entitlement, job.preemptible
                reason = reasons.started(project, size, size, right, preemptible=preemptible, borrowed=borrowed)
                if borrows:
                    borrowed, reason = True, reasons.borrows_reserved(project, queue.size)
                occupy(self.ledger, fit.pieces, borrowed=borrowed)
                project.add(queue.size, job.user, preemptible=job.preemptible)
                self.builder.start(job, fit.pieces, borrowed=borrowed, reason=reason)
                self.pool.add_started(job, fit.pieces, borrowed=borrowed)
                if self.builder.count_of_claims and not self.backfill.is_lifted:
                    self.builder.start_beside(self._as_claim(one, job, fit.pieces, borrowed=borrowed))
                return True
        return False

    def _as_claim(self, one: Candidate, job: Job, pieces: tuple[Piece, ...], *, borrowed: bool) -> Preemption:
        """The start of a job as a claim without victims."""
        preemptor = preemptor_of(one.project, one.queue, one.entitlement, one.scope, job)
        return Preemption(preemptor=preemptor, pieces=pieces, borrowed=borrowed, starts=True)

    def _beside_whole_nodes(self, job_class: JobClass, fit: Fit) -> Fit:
        """Another place for work that may not be preempted, where this one breaks up a node that is needed whole."""
        request, ledger = job_class.request, self.ledger
        if job_class.preemptible or request.ranks > 1 or ledger.score or request.cpu_milli or request.memory_mib:
            return fit
        if self.whole_nodes is None:
            stays = [one.pieces for one in self.pool.running.values() if not one.job.preemptible]
            staying = {piece.device for pieces in stays for piece in pieces}
            staying |= slice_devices(self.pool)
            ranks = checked_shapes(self.pool, ()).projects.values()
            self.whole_nodes = WholeNodes(ledger, staying, ranks)
        found = self.whole_nodes.place(request)
        fit = found if isinstance(found, Fit) else fit
        self.whole_nodes.occupy(fit.pieces)
        return fit

    # -- by a claim ----------------------------------------------------------------------------------------------

    def _claim(self, one: Candidate) -> bool:
        """Plan a preemption beside the backfill reservation, or on its devices if the job has the right to them."""
        if not self._may_claim(one):
            return False
        if self._has_better_right(one) and not self._must_preempt_first(one):
            return self._claim_by_right(one)
        return self._drain_in_time(one) or self._add(self._search(find_preemption, one), one)

    def _drain_in_time(self, one: Candidate) -> bool:
        """Reserve what work is leaving on the reserved devices for a job that ends before the planned start."""
        reservation = self.backfill.current
        if reservation is None or not any(self.ledger.leaving[piece.device] for piece in reservation.pieces):
            return False
        if one.queue.first().time_limit_s + self.pool.policy.preemption.grace_s > reservation.longest_time_limit_s(
            self.pool
        ):
            return False
        if self._add(find_drain(self.pool, one.preemptor), one):
            return True
        with self.backfill.lifted(plans_again=False):
            return self._add(find_drain(self.pool, one.preemptor), one)

    def _search(self, search: Callable[[PoolState, Preemptor], Preemption | None], one: Candidate) -> Preemption | None:
        """Search beside the backfill reservation; its own job may use its devices."""
        self.pool.searches += 1
        if not self.backfill.holds(one.queue):
            return search(self.pool, one.preemptor)
        with self.backfill.lifted(plans_again=False):
            return search(self.pool, one.preemptor)

    def _may_claim(self, one: Candidate) -> bool:
        if self.claims_ended:
            return False
        priority = one.queue.job_class.priority
        return one.scope is not one.project or own_project_suffices(self.pool, one.project, priority, one.size)

    def _try_last_resorts(self, one: Candidate) -> bool:
        """The last resorts: unbooked notebook quota, the devices of the reservation by right, what drains already."""
        job_class = one.queue.job_class
        may_borrow = job_class.preemptible and not job_class.exhausted
        if one.entitlement is Entitlement.GUARANTEE and (
            (may_borrow and (self._start_free(one, can_borrow=True) or self._start_on_reserved(one, can_borrow=True)))
            or self._start_by_right(one, can_borrow=may_borrow)
        ):
            return True
        any_drains = self.ledger.draining or self.backfill.holds(one.queue)
        if any_drains and self._add(self._search(find_drain, one), one):
            return True
        return self._has_better_right(one) and self._may_claim(one) and self._claim_by_right(one)

    def _claim_by_right(self, one: Candidate) -> bool:
        """Plan a preemption that uses devices of the reservation, which is planned again."""
        with self.backfill.lifted(plans_again=True):
            return self._add(find_preemption(self.pool, one.preemptor), one)

    def _claim_for_another(self, one: Candidate) -> bool:
        """Plan a preemption for another job of the class where R46 forbids one to the first."""
        paused_for = one.queue.first().paused_for
        if paused_for is None or one.entitlement is Entitlement.GUARANTEE or not self._may_claim(one):
            return False
        if paused_for not in self.pool.running:
            return False
        other = one.queue.first_not_paused_for(paused_for)
        if other is None or self.overdue_jobs.that_holds_back(one.project, one.queue, other) is not None:
            return False
        found = find_preemption(self.pool, preemptor_of(one.project, one.queue, one.entitlement, one.scope, other))
        return self._add(found, one, other)

    def _add(self, found: Preemption | None, one: Candidate, job: Job | None = None) -> bool:
        """Add a preemption for the first job of the class, or for the given one. Returns whether there is one."""
        if found is not None:
            self.claims.preempt_or_start(found, one.queue.take() if job is None else one.queue.pick(job))
        return found is not None

    def _why_blocked(self, one: Candidate) -> MakeReason:
        code = ReasonCode.NO_FREE_GPU
        if one.entitlement is Entitlement.SURPLUS:
            code = ReasonCode.ABOVE_FAIR_SHARE
        elif one.entitlement is Entitlement.FAIR and one.scope is not one.project:
            self.builder.failed.append((one.preemptor, one.queue))
        return no_room(one.project, one.size, code)


def no_room(project: QuotaState, size: int, code: ReasonCode) -> MakeReason:
    """The reason with the present use of the project; it is made only when it is read."""
    return partial(reasons.no_room, project, size, code, project.use)
