"""The scheduling cycle of one pool: reservations, slices, the division, and the queue until nothing changes."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ..model import Job, Notebook, NotebookState
from ..placement.place import Fit, Piece, Refusal, Request, node_needs, occupy, place, request_of, reserve
from ..preemption.feasibility import own_project_suffices
from ..preemption.minimize import minimize_victims
from ..preemption.rules import Preemptor
from ..preemption.search import Preemption, find_preemption
from ..queue.division import divide_pool
from ..queue.job_queue import ClassQueue, Why
from ..queue.order import QueueOrder, stands_before
from ..queue.pool_state import PoolState
from ..queue.quota_state import NO_LIMIT, SECOND, Entitlement, QuotaState, Running, Victim
from ..reasons import ReasonCode
from . import reasons
from .backfill import BackfillReservation, beside, first_blocked, is_taken, may_reserve_backfill, plan_backfill
from .elastic import grow
from .lending import is_waking, lend_and_release
from .notebook_slices import (
    admit,
    find_slice,
    find_slice_anywhere,
    hold_lent,
    hold_unbooked,
    homes_of_slices,
    release_hold,
)
from .plan_builder import PlanBuilder
from .reservations import read_reservations, sort_borrowers

MOST_BACKFILL_TRIES = 4
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
        self.backfill_tries_left = MOST_BACKFILL_TRIES
        self.backfill_dropped = False
        self.backfill: BackfillReservation | None = None
        """For the first job that cannot start; reserved in the ledger while other jobs are served."""

    def run(self) -> PlanBuilder:
        """Run all steps in order. Returns the plan builder with the decisions."""
        self._admit_notebooks()
        self.slices, self.reserved_slices = read_reservations(self.pool, self.builder, self.slices)
        for project in (*self.pool.projects.values(), *self.pool.departments.values()):
            project.begin()
        self._hold()
        self._divide()
        sort_borrowers(self.pool)
        self._place_slices()
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
        admission = admit(pool)
        waking = sorted((one for one in pool.slices if is_waking(one, policy)), key=lambda one: one.id)
        self.slices = [*waking, *admission.admitted]
        self.lent = [one for one in pool.slices if one.state is NotebookState.LENT and one not in waking]
        self.builder.refused = list(admission.refused)
        self.builder.lent_or_released = lend_and_release(pool.slices, policy, pool.now)

    def _hold(self) -> None:
        booked = [(project, project.booked) for project in self.pool.projects.values()]
        waking = [one for one in self.slices if one.state is NotebookState.LENT]
        homeless = hold_lent(self.pool, [*self.lent, *waking])
        asking = [one for one in self.slices if one.state is not NotebookState.LENT]
        waiting = [(self.pool.project(notebook.project), -notebook.gpu_milli) for notebook in (*asking, *homeless)]
        hold_unbooked(self.pool, [*booked, *waiting])

    def _divide(self) -> None:
        """Divide what healthy devices have, less foreign use and the slices that are booked and not lent. Rule R13."""
        pool = self.pool
        asked = sum(notebook.gpu_milli for notebook in self.slices)
        asked += sum(notebook.gpu_milli for notebook, _ in self.reserved_slices)
        amount = max(0, sum(self.ledger.capacity) - pool.booked_milli - asked)
        unused = sum(max(0, one.notebook_quota - one.booked) for one in pool.projects.values())
        unused += sum(notebook.gpu_milli for notebook in self.lent)
        divide_pool(pool, amount, amount - unused)

    def _place_slices(self) -> None:
        for notebook, piece in self.reserved_slices:
            self._start_reserved_slice(notebook, piece)
        for notebook in self.slices:
            self._place_slice(notebook)

    def _place_slice(self, notebook: Notebook) -> None:
        """Place a slice on a device of slices, where room is free or can be freed by preemption; else on any device.

        Slices on one more device would take a device from the guarantees.
        """
        pool, milli = self.pool, notebook.gpu_milli
        if self._return_lent_slice(notebook):
            return
        found = find_slice(pool, milli)
        if found is None:
            if self._claim_slice(notebook, only=homes_of_slices(pool)):
                return
            found = find_slice_anywhere(pool, milli)
        if found is not None:
            occupy(self.ledger, [found], borrowed=False)
            release_hold(self.ledger, found.device, milli)
            self._start_slice(notebook, found)
        elif not self._claim_slice(notebook):
            self.builder.wait(notebook.id, reasons.no_slice(pool, notebook))

    def _return_lent_slice(self, notebook: Notebook) -> bool:
        """Return a lent slice to its device, now or when its borrowers have left. Rule R50."""
        at = self.ledger.number.get(notebook.device or "")
        if at is None:
            return False
        if self.ledger.lendable_now(at) < notebook.gpu_milli:
            return self._claim_slice(notebook, only={at})
        piece = Piece(0, at, notebook.gpu_milli)
        occupy(self.ledger, [piece], borrowed=False)
        release_hold(self.ledger, at, notebook.gpu_milli)
        self._start_slice(notebook, piece)
        return True

    def _start_reserved_slice(self, notebook: Notebook, piece: Piece) -> None:
        if self.ledger.free_now(piece.device) < piece.gpu_milli:
            self.builder.wait(notebook.id, reasons.waits_for_drain(self.pool.name, notebook.gpu_milli, ()))
            return
        reserve(self.ledger, [piece], borrowed=False, sign=-1)
        occupy(self.ledger, [piece], borrowed=False)
        self._start_slice(notebook, piece)

    def _start_slice(self, notebook: Notebook, piece: Piece) -> None:
        self.pool.home.add(piece.device)
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
        release_hold(self.ledger, preemption.pieces[0].device, notebook.gpu_milli)
        self._add_preemption(preemption)
        return True

    def _preempt_or_start(self, preemption: Preemption, job: Job) -> None:
        """Start the job now if it only takes over reserved devices that are free; else plan the preemption."""
        project = preemption.preemptor.project
        somebody_leaves = bool(preemption.moves) or not all(victim.reserved for victim in preemption.victims)
        if somebody_leaves or project.at_limit(0):
            self._add_preemption(preemption)
            return
        mark = self.ledger.mark()
        reserve(self.ledger, preemption.pieces, borrowed=preemption.borrowed, sign=-1)
        if not self._is_free(preemption.pieces):
            self.ledger.undo(mark)
            self._add_preemption(preemption)
            return
        occupy(self.ledger, preemption.pieces, borrowed=preemption.borrowed)
        size = preemption.preemptor.request.size
        reason = reasons.started(project, size, 0, preemption.preemptor.entitlement, borrowed=preemption.borrowed)
        self.builder.take_over(preemption)
        self._move_users_up(preemption)
        self.builder.start(job, preemption.pieces, borrowed=preemption.borrowed, reason=reason)

    def _add_preemption(self, preemption: Preemption) -> None:
        self.builder.preempt(preemption)
        self._move_users_up(preemption)

    def _move_users_up(self, preemption: Preemption) -> None:
        """Put the users of the victims further ahead in their queues; they may have room under a ceiling again."""
        for victim in preemption.victims:
            department = victim.project.parent
            shared = department is not None and department.user_ceiling != NO_LIMIT
            for project in self.pool.projects.values() if shared else (victim.project,):
                if project is victim.project or project.parent is department:
                    project.queue.moved_up(victim.user)

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
        if not self._is_free(pieces) and job.min_ranks is not None:
            pieces = ()
        elif not self._is_free(pieces):
            fit = place(self.ledger, request_of(job, job.ranks))
            pieces, borrowed = (fit.pieces, False) if isinstance(fit, Fit) else ((), False)
        if not pieces or not self._may_start_reserved(project, victim):
            self.ledger.undo(mark)
            self.builder.wait(job.id, reasons.waits_for_drain(self.pool.name, victim.size, ()))
            return
        occupy(self.ledger, pieces, borrowed=borrowed)
        self.pool.reserved.remove(victim)
        reason = reasons.started(project, victim.size, 0, project.entitlement(0), borrowed=borrowed)
        self.builder.start(job, pieces, borrowed=borrowed, reason=reason)

    def _is_free(self, pieces: tuple[Piece, ...]) -> bool:
        wanted: dict[int, int] = {}
        for piece in pieces:
            wanted[piece.device] = wanted.get(piece.device, 0) + piece.gpu_milli
        hosts = node_needs(pieces, self.ledger)
        fits = all(self.ledger.node_resources.unoccupied(node).covers(host) for node, host in hosts.items())
        return fits and all(self.ledger.free_now(at) >= milli for at, milli in wanted.items())

    @staticmethod
    def _may_start_reserved(project: QuotaState, victim: Victim) -> bool:
        return (victim.preemptible or project.fixed_fits(0)) and not project.at_limit(0)

    # -- the queue -----------------------------------------------------------------------------------------------

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
        """Serve the first offer of all projects, down to this entitlement, until no job class is open."""
        projects = self.pool.projects.values()
        order = QueueOrder(filter(_may_use_guarantee, projects) if weakest is Entitlement.GUARANTEE else projects)
        while (found := order.first(weakest)) is not None:
            self._serve(*found)
            self._drop_backfill_of_served()
            order.renew()

    def _close_classes_without_room(self, project: QuotaState) -> None:
        """Close the job classes that could start on idle devices only and fit on none; their jobs are not sorted.

        Without preemptions room only shrinks during a cycle; after preemptions all classes are tried once more.
        """
        for queue in project.queue.open_classes():
            if project.entitlement(queue.size) is not Entitlement.SURPLUS or self._may_preempt(project, queue):
                continue
            if self._fits_nowhere(queue):
                forbidden = self._forbidden(project, queue, Entitlement.SURPLUS)
                queue.blocked = forbidden or self._no_room(project, queue.size, self._idle_code(project, queue))

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

    @staticmethod
    def _idle_code(project: QuotaState, queue: ClassQueue) -> ReasonCode:
        at_limit = project.at_limit(queue.size)
        return ReasonCode.ABOVE_LIMIT if at_limit else ReasonCode.ABOVE_FAIR_SHARE

    def _may_preempt(self, project: QuotaState, queue: ClassQueue) -> bool:
        if not self.may_claim:
            return False
        if project.lowest < queue.job_class.priority or project.movable.has_elastic:
            return True
        borrowers = self.pool.borrowers
        return bool(borrowers) and any(victim.project is project for victim in borrowers)

    def _serve_freed_by_preemption(self) -> None:
        """Serve jobs on free devices that are no longer reserved: victims may free more than their preemptor needs."""
        self.may_claim = False
        for project in self.pool.projects.values():
            project.queue.reopen()
            self._close_classes_without_room(project)
        self._serve_in_order(Entitlement.SURPLUS)

    def _serve(self, project: QuotaState, queue: ClassQueue) -> None:
        entitlement = project.entitlement(queue.size)
        if (forbidden := self._forbidden(project, queue, entitlement)) is not None:
            queue.blocked = forbidden
            return
        at_limit = project.at_limit(queue.size)
        if at_limit and not project.over_limit(queue.size):  # it fits under the limit when the leaving work is gone
            queue.blocked = self._no_room(project, queue.size, ReasonCode.ABOVE_LIMIT)
            return
        can_borrow = queue.job_class.preemptible and entitlement is not Entitlement.GUARANTEE
        before = self._goes_before(project, queue, entitlement)
        if not at_limit and self._start_beside_backfill(
            project, queue, entitlement, before=before, can_borrow=can_borrow
        ):
            return
        within = self._within(project, queue, entitlement)
        preemption = self._claim(project, queue, entitlement, within, before=before)
        if preemption is not None:
            self._preempt_or_start(preemption, queue.take())
            return
        may_borrow = queue.job_class.preemptible and not queue.job_class.exhausted and not at_limit
        before = self.backfill is not None  # within its guarantee a job comes before any reservation
        if (
            may_borrow
            and entitlement is Entitlement.GUARANTEE
            and self._start_beside_backfill(project, queue, entitlement, before=before, can_borrow=True)
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
        before: bool,
    ) -> Preemption | None:
        """Find a preemption. ``before``: the backfill reservation does not block this claim."""
        if not self.may_claim:
            return None
        if within is project and not own_project_suffices(self.pool, project, queue.job_class.priority, queue.size):
            return None
        preemptor = self._preemptor(project, queue, entitlement, within)
        if not before:
            return find_preemption(self.pool, preemptor)
        with self._without_backfill():
            return find_preemption(self.pool, preemptor)

    def _start_beside_backfill(
        self, project: QuotaState, queue: ClassQueue, entitlement: Entitlement, *, before: bool, can_borrow: bool
    ) -> bool:
        """Start a job beside the backfill reservation, or on its devices where the job may overtake it."""
        if not before and self._start_free(project, queue, entitlement, can_borrow=can_borrow):
            return True
        if self.backfill is None or not (
            self._backfill_has_room() or self.backfill.takes_cpu_or_memory
        ):  # releasing it would give nothing
            return before and self._start_free(project, queue, entitlement, can_borrow=can_borrow)
        job = None if before or self._may_overtake(project, queue) else queue.first_within(self._time_left_s())
        if not before and job is None and not self._may_overtake(project, queue):
            return False
        with self._without_backfill(drop_if_taken=before):
            return self._start_free(project, queue, entitlement, can_borrow=can_borrow, job=job)

    def _time_left_s(self) -> int:
        """How long a job may run on the reserved devices and still end before the planned start, in seconds."""
        return (self.backfill.starts_at - self.pool.now) // SECOND if self.backfill else 0

    def _goes_before(self, project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> bool:
        if self.backfill is None:
            return False
        if (
            entitlement is Entitlement.GUARANTEE or queue is self.backfill.queue
        ):  # the reservation is its own, or does not block it
            return True
        return stands_before(project, queue, self.backfill.project, self.backfill.queue)

    def _may_overtake(self, project: QuotaState, queue: ClassQueue) -> bool:
        """Whether the first job of a class may start on the devices of the backfill reservation."""
        assert self.backfill is not None, "there is a place to overtake in"
        return self.backfill.may_be_overtaken(self.pool, project, queue, queue.first().time_limit_s)

    @contextmanager
    def _without_backfill(self, *, drop_if_taken: bool = True, only: Container[int] | None = None) -> Iterator[None]:
        """Release the backfill reservation inside the block (``only``: on these devices).

        ``drop_if_taken``: give the reservation up if the block used its devices.
        """
        pieces = (
            [piece for piece in self.backfill.pieces if only is None or piece.device in only] if self.backfill else []
        )
        before = [beside(self.ledger, piece) for piece in pieces if drop_if_taken]
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

    def _drop_backfill_of_served(self) -> None:
        """Drop the backfill reservation if its job was given other devices."""
        if self.backfill is not None and self.builder.serves(self.backfill.job):
            self._drop_backfill()

    def _reserve_backfill(self, blocked: tuple[QuotaState, ClassQueue] | None) -> None:
        """Reserve devices for the first job of a class, unless the reservation is for a job that comes before it."""
        backfill = self.backfill
        if blocked is None or not self.backfill_tries_left or not may_reserve_backfill(*blocked):
            return
        if backfill is not None and not stands_before(*blocked, backfill.project, backfill.queue):
            return
        self.backfill_tries_left -= 1
        reserve(self.ledger, backfill.pieces if backfill else (), borrowed=False, sign=-1)
        planned = plan_backfill(self.pool, *blocked)
        self.backfill_dropped |= backfill is not None and planned is not None
        self.pool.room_came_back |= self.backfill_dropped
        self.backfill = planned or backfill
        reserve(self.ledger, self.backfill.pieces if self.backfill else (), borrowed=False)

    def _forbidden(self, project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> Why | None:
        """Why no job of a class may start: its training quota is used, or its pauses are used up above guarantee.

        Rule R43.
        """
        if not queue.job_class.preemptible and not project.fixed_fits(queue.size):
            return partial(reasons.above_training_quota, project, queue.size, project.fixed_use)
        if queue.job_class.exhausted and entitlement is not Entitlement.GUARANTEE:
            return partial(reasons.pauses_used_up, project, queue.size, project.use, self.pool.policy)
        return None

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
        for borrowed in (False, True) if can_borrow and self.ledger.has_unbooked else (False,):
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

    @staticmethod
    def _preemptor(
        project: QuotaState, queue: ClassQueue, entitlement: Entitlement, within: QuotaState | None
    ) -> Preemptor:
        job, job_class = queue.first(), queue.job_class
        return Preemptor(
            id=job.id,
            project=project,
            user=job.user,
            request=job_class.request,
            entitlement=entitlement,
            priority=job_class.priority,
            preemptible=job_class.preemptible,
            can_borrow=job_class.preemptible and entitlement is not Entitlement.GUARANTEE,
            spares=None if entitlement is Entitlement.GUARANTEE else job.paused_for,
            within=within,
        )

    @staticmethod
    def _within(project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> QuotaState | None:
        """The project or department that all victims must belong to; None for any.

        Above the fair share a job takes from its own project only, and so does a job of a project with weight 0 or a
        non-preemptible one above its guarantee. At a limit a job takes from the work under that limit only.
        """
        if entitlement is Entitlement.SURPLUS or (
            entitlement is Entitlement.FAIR and (project.weight == 0 or not queue.job_class.preemptible)
        ):
            return project
        return next((one for one in project.levels if one.use + one.leaving + queue.size > one.ceiling), None)

    def _why_blocked(
        self,
        project: QuotaState,
        queue: ClassQueue,
        entitlement: Entitlement,
        within: QuotaState | None,
        *,
        at_limit: bool,
    ) -> Why:
        code = ReasonCode.NO_FREE_GPU
        if at_limit:
            code = ReasonCode.ABOVE_LIMIT
        elif entitlement is Entitlement.SURPLUS:
            code = ReasonCode.ABOVE_FAIR_SHARE
        elif entitlement is Entitlement.FAIR and within is not project:
            self.builder.failed.append(self._preemptor(project, queue, entitlement, within))
        return self._no_room(project, queue.size, code)

    @staticmethod
    def _no_room(project: QuotaState, size: int, code: ReasonCode) -> Why:
        """The reason with the present use of the project; it is made only when it is read."""
        return partial(reasons.no_room, project, size, code, project.use)


def _may_use_guarantee(project: QuotaState) -> bool:
    """Whether any job of the project could start within its guarantee."""
    left = project.guarantee - project.use
    return left > 0 and any(queue.size <= left for queue in project.queue.open_classes())
