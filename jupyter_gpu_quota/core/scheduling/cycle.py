"""The scheduling cycle of one pool: notebooks, reservations, division, then the queue until nothing changes."""

from __future__ import annotations

from ..backfill.state import BackfillState
from ..model import Job
from ..placement.place import Fit, is_free_now, occupy, place, request_of, reserve
from ..preemption.feasibility import own_project_suffices
from ..preemption.minimize import minimize_victims
from ..queue.division import divide_pool
from ..queue.job_class import queue_of
from ..queue.job_queue import ClassQueue
from ..queue.order import QueueOrder, comes_before, precedes
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState, Victim
from ..reason_codes import ReasonCode
from ..reasons import ClaimEnded, ReservedDeviceLost
from . import reasons
from .claims import Claims
from .drain_offers import DrainOffers
from .early_stop import EarlyStop
from .elastic import grow
from .job_service import JobService, no_room
from .notebook_placement import NotebookPlacement
from .plan_builder import PlanBuilder
from .read_pool import enqueue
from .reservations import mark_borrowers, read_reservations


class SchedulingCycle:
    """Makes the plan of one pool. It changes the pool state, so a cycle runs once.

    ``early_stop`` may end the queue's service early; then the plan is a part of the whole one.
    """

    def __init__(self, pool: PoolState, early_stop: EarlyStop | None = None) -> None:
        self.pool, self.ledger, self.early_stop = pool, pool.ledger, early_stop
        self.builder = PlanBuilder(pool)
        self.backfill = BackfillState(pool, self.builder.future_work)
        self.claims = Claims(pool, self.builder, self.backfill)
        self.notebooks = NotebookPlacement(pool, self.builder, self.claims)
        self.jobs = JobService(pool, self.builder, self.backfill, self.claims)
        self.started_elsewhere = False
        """A job with reserved devices has started on others."""
        self.kept = set[str]()
        """The jobs with quarantined reserved devices for which no other devices were found."""

    def run(self) -> PlanBuilder:
        """Run all steps in order. Returns the plan builder with the decisions."""
        notebooks = self.notebooks
        notebooks.admit()
        notebooks.slices, notebooks.reserved = read_reservations(self.pool, self.builder, notebooks.slices)
        for project in (*self.pool.projects.values(), *self.pool.departments.values()):
            project.record_use()
        notebooks.reserve_quota()
        self._divide()
        mark_borrowers(self.pool)
        notebooks.place()
        self._read_backfill()
        self._start_reserved(Entitlement.GUARANTEE)
        self._serve_queue()
        if self.builder.preemptions:
            self._minimize_victims()
            self._serve_freed()
        grow(self.pool, self.builder)
        if self.builder.preemptions or self.builder.restarts or self.started_elsewhere or self.claims.took_over:
            self._verify_backfill()
        self.builder.backfill, self.builder.returning_borrowers = self.backfill.current, self.backfill.leaving
        self.builder.overdue_jobs = self.jobs.overdue_jobs
        return self.builder

    def _divide(self) -> None:
        """Divide what healthy devices have, less foreign use and the slices that are booked and not lent. Rule R14."""
        pool, notebooks = self.pool, self.notebooks
        amount = max(0, sum(self.ledger.capacity) - pool.booked_milli - notebooks.requested_milli)
        unused = sum(max(0, one.notebook_quota - one.booked) for one in pool.projects.values())
        unused += sum(notebook.gpu_milli for notebook in notebooks.lent)
        divide_pool(pool, amount, amount - unused)

    def _read_backfill(self) -> None:
        self.backfill.read()
        for job in self.backfill.ended_claims:
            self.builder.drop(job.id, ClaimEnded())
            enqueue(self.pool, job)

    def _start_reserved(self, weakest: Entitlement) -> None:
        """Start the jobs with reserved devices that can start, the oldest reservation first."""
        for victim in sorted(self.pool.reserved, key=lambda one: (one.started_at, one.id)):
            if self.claims.took_over and victim not in self.pool.reserved:
                continue  # a job before it has lost reserved devices and has taken these over
            if victim.project.entitlement(0) <= weakest:
                self._start_reserved_job(victim)

    def _start_reserved_job(self, victim: Victim) -> None:
        """Start a job on its reserved devices when all of them are free, or on others that are free sooner."""
        job, project = self.pool.waiting[victim.id], victim.project
        mark = self.ledger.mark()
        reserve(self.ledger, victim.pieces, borrowed=victim.borrower, sign=-1)
        pieces, borrowed = victim.pieces, victim.borrower
        is_whole = victim.id not in self.pool.incomplete
        is_free = is_whole and is_free_now(self.ledger, pieces, borrowed=borrowed)
        if not is_free and job.min_ranks is not None:
            pieces = ()
        elif not is_free:
            fit = place(self.ledger, request_of(job, job.ranks))
            pieces, borrowed = (fit.pieces, False) if isinstance(fit, Fit) else ((), False)
            self.started_elsewhere |= bool(pieces)
        may_start = victim.preemptible or project.fits_non_preemptible(0)
        if not pieces or not may_start or self._waits_for_limit(victim):
            self.ledger.undo(mark)
            if not is_whole and job.id not in self.kept and self._claim_again(victim, job):
                return
            self.builder.wait(job.id, reasons.waits_for_drain(self.pool.name, victim.size, ()))
            return
        occupy(self.ledger, pieces, borrowed=borrowed)
        self.pool.reserved.remove(victim)
        self.pool.add_started(job, pieces, borrowed=borrowed)
        entitlement, preemptible = project.entitlement(0), victim.preemptible
        reason = reasons.started(project, victim.size, 0, entitlement, preemptible=preemptible, borrowed=borrowed)
        self.builder.start(job, pieces, borrowed=borrowed, reason=reason)

    def _waits_for_limit(self, victim: Victim) -> bool:
        """Whether a limit or user ceiling has no room for a job beside running and stopping work.

        Other claims do not count: their jobs have not started.
        """
        if not victim.project.at_limit(0) and not victim.project.has_user_ceiling:
            return False
        claims = [(one.project, one.user, one.size) for one in self.pool.reserved if one is not victim]
        for one in [claim.preemptor for claim in self.builder.preemptions]:
            if one.entitlement is not Entitlement.NOTEBOOK:
                claims.append((one.project, one.user, one.request.size))
        for level in victim.project.levels:
            at_level = [(user, size) for project, user, size in claims if level in project.levels]
            if level.use + level.leaving - sum([size for _, size in at_level]) > level.ceiling:
                return True
            of_user = sum([size for user, size in at_level if user == victim.user])
            if level.user_total(victim.user) - of_user > level.user_ceiling:
                return True
        return False

    def _claim_again(self, victim: Victim, job: Job) -> bool:
        """Plan a new claim for a job with quarantined reserved devices.

        Returns False, and changes nothing, if none is found.
        """
        queue, project, mark = queue_of(self.pool, job), victim.project, self.ledger.mark()
        if queue is None:
            return False
        reserve(self.ledger, victim.pieces, borrowed=victim.borrower, sign=-1)
        reserved, self.pool.reserved = self.pool.reserved, [one for one in self.pool.reserved if one is not victim]
        project.remove(victim.size, victim.user, preemptible=victim.preemptible)
        if self.jobs.claim_again(project, queue, job):
            self.builder.drop(job.id, ReservedDeviceLost())  # unless the claim stays in the plan, or the job starts
            return True
        project.add(victim.size, victim.user, preemptible=victim.preemptible)
        self.pool.reserved = reserved
        self.ledger.undo(mark)
        self.kept.add(job.id)
        return False

    # -- the queue -----------------------------------------------------------------------------------------------

    def _serve_queue(self) -> None:
        """Serve claims within guarantee, then reservations above guarantee, then all other jobs."""
        self._serve_in_order(Entitlement.GUARANTEE)
        if self.claims.took_over:
            self._minimize_victims()
        self._start_reserved(Entitlement.SURPLUS)
        self.jobs.start_backfilled()
        self._serve_the_rest()
        while self.backfill.dropped:
            self._serve_the_rest()

    def _serve_the_rest(self) -> None:
        self._begin_round()
        is_settled = self.backfill.pass_on()
        if self.backfill.dropped:
            self._begin_round()
        blocked = self._next_for_reservation()
        any_served = self._serve_in_order(Entitlement.SURPLUS, reserve_next=blocked)
        if not is_settled:
            self.backfill.pass_on()
        self._reserve_for(self._next_for_reservation() if any_served or not is_settled else blocked)

    def _begin_round(self) -> None:
        """Open all classes if the backfill reservation was dropped; close those without room."""
        for project in self.pool.projects.values():
            if self.backfill.dropped:
                project.queue.reopen()
            self._close_classes_without_room(project)
        self.backfill.dropped = False

    def _next_for_reservation(self) -> tuple[QuotaState, ClassQueue] | None:
        """The job that is to get the backfill reservation; None while another one has it."""
        return self.backfill.first_blocked() if self.backfill.current is None else None

    def _serve_in_order(
        self, weakest: Entitlement, *, reserve_next: tuple[QuotaState, ClassQueue] | None = None
    ) -> bool:
        """Serve the first job of all projects, down to this entitlement, until no job class is open.

        Returns whether any was open. ``reserve_next``: the first of the jobs that are known not to start, whose turn is
        to get the reservation.
        """
        order, offers = QueueOrder(self.pool.projects.values(), weakest), DrainOffers(self.pool, self.backfill, weakest)
        any_open = order.first() is not None
        while self.early_stop is None or not self.early_stop.is_over(self.builder):
            found = order.first()
            if offers.first is not None and (found is None or not comes_before(*found, *offers.first)):
                if offers.offer_to(self.jobs.take_drain):
                    self._drop_served_reservation()
                self._update(order)
                continue
            if found is None:
                break
            if reserve_next is not None and precedes(*reserve_next, *found):
                self._reserve_for(reserve_next)
                reserve_next = None
            self.jobs.serve(*found)
            self._drop_served_reservation()
            self.claims.changed[found[0]] = None
            offers.forget(self.claims.changed)
            self._update(order)
            if self.claims.offers_again:
                offers.renew()
            self.claims.offers_again = False
        return any_open

    def _update(self, order: QueueOrder) -> None:
        """Order the projects again whose use or queue a claim has changed."""
        for project in self.claims.changed:
            order.update(project)
        self.claims.changed.clear()

    def _drop_served_reservation(self) -> None:
        """Drop the backfill reservation of a job that has been served on other devices, or has its claim again."""
        reservation = self.backfill.current
        if reservation is not None and not reservation.queue.has(self.pool.waiting[reservation.job]):
            self.backfill.drop()

    def _close_classes_without_room(self, project: QuotaState) -> None:
        """Close the job classes that could start on idle devices only and fit on none; their jobs are not sorted.

        Without preemptions room only shrinks during a cycle; after preemptions all classes are tried once more.
        """
        for queue in project.queue.open_classes():
            if project.entitlement(queue.size) is not Entitlement.SURPLUS or self._may_preempt(project, queue):
                continue
            if self.jobs.fits_nowhere(queue) and not self.jobs.is_behind_overdue_job(project, queue):
                at_limit = project.at_limit(queue.size)
                code = ReasonCode.ABOVE_LIMIT if at_limit else ReasonCode.ABOVE_FAIR_SHARE
                forbidden = reasons.why_forbidden(self.pool, project, queue, Entitlement.SURPLUS)
                queue.blocked = forbidden or no_room(project, queue.size, code)

    def _may_preempt(self, project: QuotaState, queue: ClassQueue) -> bool:
        if self.jobs.claims_ended:
            return False
        return own_project_suffices(self.pool, project, queue.job_class.priority, queue.size)

    def _reserve_for(self, blocked: tuple[QuotaState, ClassQueue] | None) -> None:
        while self.backfill.current is None and blocked is not None and self.backfill.tries_left > 0:
            self.backfill.reserve_for(*blocked)
            refused, blocked = blocked, self._next_for_reservation()
            if blocked == refused:
                break

    def _minimize_victims(self) -> None:
        """Restore the victims that are not needed; one may continue on devices of the backfill reservation."""
        self.backfill.end_at_limit()
        reservation = self.backfill.current
        reserved = (reservation.pieces, reservation.job) if reservation else ((), "")
        for one in minimize_victims(self.pool, self.builder.claims_and_starts, *reserved):
            self.builder.cancel(one)
            self.jobs.whole_nodes = None
            self.claims.return_to_queue(one)
            self.backfill.return_to(one.preemptor.id)
        self._drop_served_reservation()
        self.jobs.overdue_jobs.forget()

    def _verify_backfill(self) -> None:
        """Plan the backfill reservation again where it must be; what it no longer needs is free for others."""
        before = self.backfill.current
        self.backfill.verify()
        now = self.backfill.current
        if before is not None and (now is None or now.pieces != before.pieces):
            self._serve_freed()

    def _serve_freed(self) -> None:
        """Serve jobs on free devices that are no longer reserved, or that victims free beside what a claim needs."""
        self.jobs.claims_ended = True
        for project in self.pool.projects.values():
            project.queue.reopen()
            self._close_classes_without_room(project)
        self._serve_in_order(Entitlement.SURPLUS)
