"""The scheduling cycle of one pool: notebooks, reservations, division, then the queue until nothing changes."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ..model import MS_PER_S, Job, Notebook, NotebookState
from ..placement.place import Fit, Piece, Refusal, Request, is_free_now, occupy, place, request_of, reserve
from ..plan import Release
from ..preemption.feasibility import own_project_suffices
from ..preemption.minimize import minimize_victims
from ..preemption.rules import Preemptor, preemptor_of
from ..preemption.search import Preemption, find_preemption
from ..preemption.victims import victim_scope
from ..queue.division import divide_pool
from ..queue.job_queue import ClassQueue, MakeReason
from ..queue.order import QueueOrder, comes_before
from ..queue.pool_state import PoolState
from ..queue.quota_state import NO_LIMIT, Entitlement, QuotaState, Running, Victim
from ..reason_codes import ReasonCode
from . import reasons
from .backfill import BackfillReservation, first_blocked, is_taken, may_reserve_backfill, plan_backfill, room_beside
from .elastic import grow
from .lending import is_waking, lend_and_release
from .notebook_slices import (
    admit,
    end_loan,
    find_slice,
    find_slice_anywhere,
    release_unbooked,
    reserve_lent,
    reserve_unbooked,
    slice_devices,
)
from .plan_builder import PlanBuilder
from .reservations import mark_borrowers, read_reservations

MAX_BACKFILL_TRIES = 4
"""The number of jobs of a pool that are tried for the backfill reservation."""


class SchedulingCycle:
    """Makes the plan of one pool. It changes the pool state, so a cycle runs once."""

    def __init__(self, pool: PoolState) -> None:
        self.pool, self.ledger = pool, pool.ledger
        self.builder = PlanBuilder(pool)
        self.slices: list[Notebook] = []
        """The slices that need a device: admitted in this plan, or lent and waking."""
        self.lent: list[Notebook] = []
        self.reserved_slices: list[tuple[Notebook, Piece]] = []
        self.may_claim = True
        self.backfill_tries_left = MAX_BACKFILL_TRIES
        self.backfill_dropped = False
        self.backfill: BackfillReservation | None = None
        """For the first job that cannot start; reserved in the ledger while other jobs are served."""

    def run(self) -> PlanBuilder:
        """Run all steps in order. Returns the plan builder with the decisions."""
        self._admit_notebooks()
        self.slices, self.reserved_slices = read_reservations(self.pool, self.builder, self.slices)
        for project in (*self.pool.projects.values(), *self.pool.departments.values()):
            project.record_use_before()
        self._reserve_notebook_quota()
        self._divide()
        mark_borrowers(self.pool)
        for notebook, piece in self.reserved_slices:
            self._start_reserved_slice(notebook, piece)
        for notebook in self.slices:
            self._place_slice(notebook)
        self._start_reserved(Entitlement.GUARANTEE)
        self._serve_queue()
        if self.builder.preemptions:
            self._minimize_victims()
            self._serve_freed_by_preemption()
        grow(self.pool, self.builder)
        self.builder.backfill = self.backfill
        return self.builder

    # -- notebooks and reservations ---------------------------------------------------------------------------

    def _admit_notebooks(self) -> None:
        pool, policy = self.pool, self.pool.policy
        admitted, self.builder.refused = admit(pool)
        waking = sorted((one for one in pool.slices if is_waking(one, policy)), key=lambda one: one.id)
        self.slices = [*waking, *admitted]
        self.lent = [one for one in pool.slices if one.state is NotebookState.LENT and one not in waking]
        self.builder.lent_or_released = lend_and_release(pool.slices, policy, pool.now)

    def _reserve_notebook_quota(self) -> None:
        booked = [(project, project.booked) for project in self.pool.projects.values()]
        waking = [one for one in self.slices if one.state is NotebookState.LENT]
        released = {one.workload for one in self.builder.lent_or_released if isinstance(one, Release)}
        unplaced = reserve_lent(self.pool, [*self.lent, *waking], released)
        requested = [one for one in self.slices if one.state is not NotebookState.LENT]
        waiting = [(self.pool.project(notebook.project), -notebook.gpu_milli) for notebook in (*requested, *unplaced)]
        reserve_unbooked(self.pool, [*booked, *waiting])

    def _divide(self) -> None:
        """Divide what healthy devices have, less foreign use and the slices that are booked and not lent. Rule R13."""
        pool = self.pool
        requested = sum(notebook.gpu_milli for notebook in self.slices)
        requested += sum(notebook.gpu_milli for notebook, _ in self.reserved_slices)
        amount = max(0, sum(self.ledger.capacity) - pool.booked_milli - requested)
        unused = sum(max(0, one.notebook_quota - one.booked) for one in pool.projects.values())
        unused += sum(notebook.gpu_milli for notebook in self.lent)
        divide_pool(pool, amount, amount - unused)

    def _place_slice(self, notebook: Notebook) -> None:
        """Place a slice on a device of slices, where room is free or can be freed by preemption; else on any device.

        Slices on one more device would take a device from the guarantees.
        """
        pool, milli = self.pool, notebook.gpu_milli
        if self._return_lent_slice(notebook):
            return
        found = find_slice(pool, milli)
        if found is None:
            if self._claim_slice(notebook, only=slice_devices(pool)):
                return
            found = find_slice_anywhere(pool, milli)
        if found is not None:
            self._start_slice(notebook, found)
        elif not self._claim_slice(notebook):
            project = pool.project(notebook.project)
            self.builder.wait(notebook.id, reasons.no_room(project, milli, ReasonCode.NO_FREE_GPU, project.use))

    def _return_lent_slice(self, notebook: Notebook) -> bool:
        """Return a lent slice to its device, now or when its borrowers have left. Rule R50."""
        at = self.ledger.number.get(notebook.device or "")
        if at is None:
            return False
        end_loan(self.ledger, at, notebook)
        if self.ledger.slice_now(at) < notebook.gpu_milli:
            return self._claim_slice(notebook, only={at})
        self._start_slice(notebook, Piece(0, at, notebook.gpu_milli))
        return True

    def _start_reserved_slice(self, notebook: Notebook, piece: Piece) -> None:
        if self.ledger.free_now(piece.device) < piece.gpu_milli:
            self.builder.wait(notebook.id, reasons.waits_for_drain(self.pool.name, notebook.gpu_milli, ()))
            return
        reserve(self.ledger, [piece], borrowed=False, sign=-1)
        self._start_slice(notebook, piece, is_unbooked=False)

    def _start_slice(self, notebook: Notebook, piece: Piece, *, is_unbooked: bool = True) -> None:
        """Start a slice. ``is_unbooked``: room is still reserved for its notebook quota, on this or another device."""
        occupy(self.ledger, [piece], borrowed=False)
        if is_unbooked:
            release_unbooked(self.ledger, piece.device, piece.gpu_milli)
        self.pool.slice_devices.add(piece.device)
        self.builder.start(notebook, (piece,), borrowed=False, reason=reasons.slice_started(self.pool, notebook))

    def _claim_slice(self, notebook: Notebook, *, only: Container[int] | None = None) -> bool:
        preemptor = Preemptor(
            id=notebook.id,
            project=self.pool.project(notebook.project),
            user=notebook.user,
            request=Request(notebook.gpu_milli),
            entitlement=Entitlement.NOTEBOOK,
            only=only,
        )
        preemption = find_preemption(self.pool, preemptor)
        if preemption is None:
            return False
        release_unbooked(self.ledger, preemption.pieces[0].device, notebook.gpu_milli)
        self._add_preemption(preemption)
        return True

    def _preempt_or_start(self, preemption: Preemption, job: Job) -> None:
        """Start the job now if it only takes over reserved devices that are free; else plan the preemption."""
        project = preemption.preemptor.project
        any_stops = bool(preemption.moves) or not all(victim.reserved for victim in preemption.victims)
        if any_stops or project.at_limit(0):
            self._add_preemption(preemption)
            return
        mark = self.ledger.mark()
        reserve(self.ledger, preemption.pieces, borrowed=preemption.borrowed, sign=-1)
        if not is_free_now(self.ledger, preemption.pieces):
            self.ledger.undo(mark)
            self._add_preemption(preemption)
            return
        occupy(self.ledger, preemption.pieces, borrowed=preemption.borrowed)
        size = preemption.preemptor.request.size
        reason = reasons.started(project, size, 0, preemption.preemptor.entitlement, borrowed=preemption.borrowed)
        self.builder.take_over(preemption)
        self._reorder_users(preemption)
        self.builder.start(job, preemption.pieces, borrowed=preemption.borrowed, reason=reason)

    def _add_preemption(self, preemption: Preemption) -> None:
        self.builder.preempt(preemption)
        self._reorder_users(preemption)

    def _reorder_users(self, preemption: Preemption) -> None:
        """Reorder the users of the victims in their queues; they may have room under a ceiling again."""
        for victim in preemption.victims:
            department = victim.project.parent
            shared = department is not None and department.user_ceiling != NO_LIMIT
            for project in self.pool.projects.values() if shared else (victim.project,):
                if project is victim.project or project.parent is department:
                    project.queue.reorder(victim.user)

    def _start_reserved(self, weakest: Entitlement) -> None:
        for victim in sorted(self.pool.reserved, key=lambda one: one.id):
            if victim.project.entitlement(0) <= weakest:
                self._start_reserved_job(victim)

    def _start_reserved_job(self, victim: Victim) -> None:
        """Start a job on its reserved devices when all of them are free, or on others that are free sooner."""
        job, project = self.pool.waiting[victim.id], victim.project
        mark = self.ledger.mark()
        reserve(self.ledger, victim.pieces, borrowed=victim.borrower, sign=-1)
        pieces, borrowed = victim.pieces, victim.borrower
        if not is_free_now(self.ledger, pieces) and job.min_ranks is not None:
            pieces = ()
        elif not is_free_now(self.ledger, pieces):
            fit = place(self.ledger, request_of(job, job.ranks))
            pieces, borrowed = (fit.pieces, False) if isinstance(fit, Fit) else ((), False)
        may_start = (victim.preemptible or project.fixed_fits(0)) and not project.at_limit(0)
        if not pieces or not may_start:
            self.ledger.undo(mark)
            self.builder.wait(job.id, reasons.waits_for_drain(self.pool.name, victim.size, ()))
            return
        occupy(self.ledger, pieces, borrowed=borrowed)
        self.pool.reserved.remove(victim)
        reason = reasons.started(project, victim.size, 0, project.entitlement(0), borrowed=borrowed)
        self.builder.start(job, pieces, borrowed=borrowed, reason=reason)

    # -- the queue

    def _serve_queue(self) -> None:
        """Serve claims within guarantee, then reservations above guarantee, then all other jobs."""
        self._serve_in_order(Entitlement.GUARANTEE)
        self._start_reserved(Entitlement.SURPLUS)
        self._serve_the_rest()
        while self.backfill_dropped:
            self.backfill_dropped = False
            for project in self.pool.projects.values():
                project.queue.reopen()
            self._serve_the_rest()

    def _serve_the_rest(self) -> None:
        for project in self.pool.projects.values():
            self._close_classes_without_room(project)
        if any(one.queue.open_classes() for one in self.pool.projects.values()):
            self._reserve_backfill(first_blocked(self.pool))
        self._serve_in_order(Entitlement.SURPLUS)

    def _serve_in_order(self, weakest: Entitlement) -> None:
        """Serve the first job of all projects, down to this entitlement, until no job class is open."""
        projects = self.pool.projects.values()
        order = QueueOrder(filter(_may_use_guarantee, projects) if weakest is Entitlement.GUARANTEE else projects)
        while (found := order.first(weakest)) is not None:
            self._serve(*found)
            if self.backfill is not None and self.builder.serves(self.backfill.job):  # on other devices
                self._drop_backfill()
            order.renew()

    def _close_classes_without_room(self, project: QuotaState) -> None:
        """Close the job classes that could start on idle devices only and fit on none; their jobs are not sorted.

        Without preemptions room only shrinks during a cycle; after preemptions all classes are tried once more.
        """
        for queue in project.queue.open_classes():
            if project.entitlement(queue.size) is not Entitlement.SURPLUS or self._may_preempt(project, queue):
                continue
            if self._fits_nowhere(queue):
                at_limit = project.at_limit(queue.size)
                code = ReasonCode.ABOVE_LIMIT if at_limit else ReasonCode.ABOVE_FAIR_SHARE
                forbidden = reasons.why_forbidden(self.pool, project, queue, Entitlement.SURPLUS)
                queue.blocked = forbidden or self._no_room(project, queue.size, code)

    def _fits_nowhere(self, queue: ClassQueue) -> bool:
        """Whether a class has no room, not even on the reserved devices: a job that ends in time may run there."""
        request, borrowed = queue.job_class.request, queue.job_class.preemptible
        is_refused = isinstance(place(self.ledger, request, borrowed=borrowed), Refusal)
        if not is_refused or self.backfill is None or not self._backfill_has_room():
            return is_refused
        with self._without_backfill(drop_if_taken=False):
            return isinstance(place(self.ledger, request, borrowed=borrowed), Refusal)

    def _backfill_has_room(self) -> bool:
        """Whether a device of the backfill reservation has free room now."""
        pieces, free_now = self.backfill.pieces if self.backfill else (), self.ledger.free_now
        return any(free_now(one.device) > 0 for one in pieces)

    def _may_preempt(self, project: QuotaState, queue: ClassQueue) -> bool:
        if not self.may_claim:
            return False
        if project.lowest_priority < queue.job_class.priority or project.preemptible_use.has_elastic:
            return True
        return any(victim.project is project for victim in self.pool.borrowers)

    def _serve_freed_by_preemption(self) -> None:
        """Serve jobs on free devices that are no longer reserved: victims may free more than their preemptor needs."""
        self.may_claim = False
        for project in self.pool.projects.values():
            project.queue.reopen()
            self._close_classes_without_room(project)
        self._serve_in_order(Entitlement.SURPLUS)

    def _serve(self, project: QuotaState, queue: ClassQueue) -> None:
        entitlement = project.entitlement(queue.size)
        if (forbidden := reasons.why_forbidden(self.pool, project, queue, entitlement)) is not None:
            queue.blocked = forbidden
            return
        at_limit = project.at_limit(queue.size)
        if at_limit and not project.over_limit(queue.size):  # it fits under the limit when the stopping work is gone
            queue.blocked = self._no_room(project, queue.size, ReasonCode.ABOVE_LIMIT)
            return
        can_borrow = queue.job_class.preemptible and entitlement is not Entitlement.GUARANTEE
        precedes = self._precedes_backfill(project, queue, entitlement)
        if not at_limit and self._start_beside_backfill(
            project, queue, entitlement, precedes=precedes, can_borrow=can_borrow
        ):
            return
        within = victim_scope(project, queue, entitlement)
        preemption = self._claim(project, queue, entitlement, within, precedes=precedes)
        if preemption is not None:
            self._preempt_or_start(preemption, queue.take())
            return
        may_borrow = queue.job_class.preemptible and not queue.job_class.exhausted and not at_limit
        precedes = self.backfill is not None  # within its guarantee a job comes before any reservation
        if (
            may_borrow
            and entitlement is Entitlement.GUARANTEE
            and self._start_beside_backfill(project, queue, entitlement, precedes=precedes, can_borrow=True)
        ):
            return
        queue.blocked = self._why_blocked(project, queue, entitlement, within, at_limit=at_limit)
        if entitlement <= Entitlement.FAIR and not at_limit:
            self._reserve_backfill((project, queue))

    def _claim(
        self,
        project: QuotaState,
        queue: ClassQueue,
        entitlement: Entitlement,
        within: QuotaState | None,
        *,
        precedes: bool,
    ) -> Preemption | None:
        """Find a preemption. ``precedes``: the backfill reservation does not block this claim."""
        if not self.may_claim:
            return None
        if within is project and not own_project_suffices(self.pool, project, queue.job_class.priority, queue.size):
            return None
        preemptor = preemptor_of(project, queue, entitlement, within)
        if not precedes:
            return find_preemption(self.pool, preemptor)
        with self._without_backfill():
            return find_preemption(self.pool, preemptor)

    def _start_beside_backfill(
        self, project: QuotaState, queue: ClassQueue, entitlement: Entitlement, *, precedes: bool, can_borrow: bool
    ) -> bool:
        """Start a job beside the backfill reservation, or on its devices where the job may overtake it."""
        if not precedes and self._start_free(project, queue, entitlement, can_borrow=can_borrow):
            return True
        backfill = self.backfill
        if backfill is None or not (self._backfill_has_room() or backfill.takes_cpu_or_memory):
            return precedes and self._start_free(project, queue, entitlement, can_borrow=can_borrow)
        job = None
        if not precedes and not backfill.may_be_overtaken(self.pool, project, queue, queue.first().time_limit_s):
            job = queue.first_within((backfill.starts_at - self.pool.now) // MS_PER_S)  # ends before the planned start
            if job is None:
                return False
        with self._without_backfill(drop_if_taken=precedes):
            return self._start_free(project, queue, entitlement, can_borrow=can_borrow, job=job)

    def _precedes_backfill(self, project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> bool:
        """Whether the backfill reservation is the job's own, or does not block it."""
        if self.backfill is None:
            return False
        if entitlement is Entitlement.GUARANTEE or queue is self.backfill.queue:
            return True
        return comes_before(project, queue, self.backfill.project, self.backfill.queue)

    @contextmanager
    def _without_backfill(self, *, drop_if_taken: bool = True, only: Container[int] | None = None) -> Iterator[None]:
        """Release the backfill reservation inside the block (``only``: on these devices).

        ``drop_if_taken``: give the reservation up if the block used its devices.
        """
        reserved = self.backfill.pieces if self.backfill else ()
        pieces = [piece for piece in reserved if only is None or piece.device in only]
        before = [room_beside(self.ledger, piece) for piece in pieces if drop_if_taken]
        reserve(self.ledger, pieces, borrowed=False, sign=-1)
        mark = self.ledger.mark()
        yield
        drop_if_taken = drop_if_taken and self.ledger.mark() != mark
        reserve(self.ledger, pieces, borrowed=False)
        if drop_if_taken and any(is_taken(self.ledger, *row) for row in zip(pieces, before, strict=True)):
            self._drop_backfill()

    def _drop_backfill(self) -> None:
        reserve(self.ledger, self.backfill.pieces if self.backfill else (), borrowed=False, sign=-1)
        self.backfill = None
        self.backfill_dropped = self.pool.room_came_back = True

    def _minimize_victims(self) -> None:
        """Restore the victims that are not needed.

        A restored victim may keep a slot that a later reservation planned to use. No preemptor takes over that slot.
        """
        preemptions = self.builder.preemptions
        leaving = {
            piece.device
            for preemption in preemptions
            for victim in (*preemption.victims, *(move.victim for move in preemption.moves))
            for piece in victim.pieces
        }
        with self._without_backfill(only=leaving):
            minimize_victims(self.pool, preemptions)
        if self.backfill_dropped:
            minimize_victims(self.pool, preemptions)  # with the room of the dropped reservation
            self._reserve_backfill(first_blocked(self.pool))

    def _reserve_backfill(self, blocked: tuple[QuotaState, ClassQueue] | None) -> None:
        """Reserve devices for the first job of a class, unless the reservation is for a job that comes before it."""
        backfill = self.backfill
        if blocked is None or not self.backfill_tries_left or not may_reserve_backfill(*blocked):
            return
        if backfill is not None and not comes_before(*blocked, backfill.project, backfill.queue):
            return
        self.backfill_tries_left -= 1
        reserve(self.ledger, backfill.pieces if backfill else (), borrowed=False, sign=-1)
        planned = plan_backfill(self.pool, *blocked)
        self.backfill_dropped |= backfill is not None and planned is not None
        self.pool.room_came_back |= self.backfill_dropped
        self.backfill = planned or backfill
        reserve(self.ledger, self.backfill.pieces if self.backfill else (), borrowed=False)

    def _start_free(
        self,
        project: QuotaState,
        queue: ClassQueue,
        entitlement: Entitlement,
        *,
        can_borrow: bool,
        job: Job | None = None,
    ) -> bool:
        """Start the first job of a class, or the given one, on devices that are free now."""
        for borrowed in (False, True) if can_borrow and self.ledger.has_unused_quota else (False,):
            fit = place(self.ledger, queue.job_class.request, borrowed=borrowed)
            if isinstance(fit, Fit):
                job = queue.take() if job is None else queue.pick(job)
                reason = reasons.started(project, queue.size, queue.size, entitlement, borrowed=borrowed)
                occupy(self.ledger, fit.pieces, borrowed=borrowed)
                project.add(queue.size, job.user, fixed=not job.preemptible)
                self.builder.start(job, fit.pieces, borrowed=borrowed, reason=reason)
                begins = job if job.started_at is None else replace(job, started_at=None)
                self.pool.running.append(Running(begins, fit.pieces, project, queue.size))
                return True
        return False

    def _why_blocked(
        self,
        project: QuotaState,
        queue: ClassQueue,
        entitlement: Entitlement,
        within: QuotaState | None,
        *,
        at_limit: bool,
    ) -> MakeReason:
        code = ReasonCode.NO_FREE_GPU
        if at_limit:
            code = ReasonCode.ABOVE_LIMIT
        elif entitlement is Entitlement.SURPLUS:
            code = ReasonCode.ABOVE_FAIR_SHARE
        elif entitlement is Entitlement.FAIR and within is not project:
            self.builder.failed.append(preemptor_of(project, queue, entitlement, within))
        return self._no_room(project, queue.size, code)

    @staticmethod
    def _no_room(project: QuotaState, size: int, code: ReasonCode) -> MakeReason:
        """The reason with the present use of the project; it is made only when it is read."""
        return partial(reasons.no_room, project, size, code, project.use)


def _may_use_guarantee(project: QuotaState) -> bool:
    """Whether any job of the project could start within its guarantee."""
    left = project.guarantee - project.use
    return left > 0 and any(queue.size <= left for queue in project.queue.open_classes())
