"""The backfill reservation while a plan is made: read from the snapshot, reserved in the ledger, lifted, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..model import Job, Reservation
from ..placement.ledger import ANY_MODEL
from ..placement.place import Fit, Piece, Refusal, Request, is_refused, place, reserve, with_cpu_memory
from ..preemption.accounting import mark_leaving, subtract_use
from ..preemption.result import Preemption
from ..queue.job_class import queue_of
from ..queue.job_queue import ClassQueue, JobClass
from ..queue.order import turn_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState, Running, Victim
from .planning import devices_short_at, grace_ms, has_room_at, is_taken, plan_backfill, room_beside
from .reservation import BackfillReservation, first_blocked, first_waiting, may_hold

MAX_JOBS_TRIED = 4
"""The number of jobs of a pool that are tried for the reservation in one plan."""


class BackfillState:
    """The reservation of one pool; at most one at any time.

    ``future_work``: see :func:`.planning.future_work`, for the plan as it is now.
    """

    def __init__(self, pool: PoolState, future_work: Callable[[], Sequence[Running]]) -> None:
        self.pool, self.ledger, self.future_work = pool, pool.ledger, future_work
        self.current: BackfillReservation | None = None
        self.dropped = False
        """It was given up after jobs had been kept from its devices."""
        self.leaving: list[tuple[BackfillReservation, Victim]] = []
        """The borrowers that have to leave now, with the reservation that they leave for."""
        self.ended_claims: list[Job] = []
        """The jobs whose claims have ended because they would borrow its devices, and leave at once."""
        self.tries_left = MAX_JOBS_TRIED
        self.unplanned: list[ClassQueue] = []
        """The classes for whose first job no devices were found, not even when all work has ended."""
        self.passed: BackfillReservation | None = None
        """The one that another job took over in this plan."""
        self.served: dict[str, BackfillReservation] = {}
        """Those whose jobs this plan gave devices, by job."""
        self._gains_without: dict[tuple[int, tuple[Piece, ...]], int] = {}
        """The number of the last gain of room while the reservation is lifted, by that before it and by its pieces."""
        self._idle: tuple[tuple[int, tuple[Piece, ...]], int, int] = (-1, ()), 0, 0
        """The most that is free now on one reserved device, and the sum of the idle reserved amounts, and for which
        changes and pieces these were computed."""
        self.is_lifted = False
        """Whether its devices are released for a claim or a start, see :meth:`lifted`."""
        self.recorded: tuple[BackfillReservation, ...] = ()
        """The one with which this plan began, and before that the recorded one if it is another."""
        self.not_begun: frozenset[str] = frozenset()
        """Work that had devices before this plan, and has not begun: its end moves with the clock."""

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Reserve the recorded devices again, where the job may still have them. Rule R28."""
        restarting = (job.id for job, _, _ in self.pool.restarting)
        self.not_begun = frozenset(
            [*self.pool.running_before.starting, *restarting, *(one.id for one in self.pool.reserved)]
        )
        recorded = self.pool.backfill
        reservation = None if recorded is None else self._held(recorded)
        if reservation is None:
            return
        now = self._verified(reservation, self.future_work())
        if now is not None:
            self.recorded = (now, reservation)
            self._set(now)
            self._stop_borrowers(now)

    def verify(self) -> None:
        """Plan again if work was moved, resized or started elsewhere after the reservation was made."""
        if self.end_at_limit() or self.current is None:
            return
        reservation = self.current
        self._set(None)
        work = self.future_work()
        self._set(self._verified(self._or_recorded(reservation, work), work))

    def end_at_limit(self) -> bool:
        """End the reservation if its job waits for a limit now, since victims were spared or a claim came first."""
        reservation = self.current
        if reservation is None or self._may_keep(
            self.pool.waiting[reservation.job], reservation.project, reservation.queue
        ):
            return False
        self._set(None)
        self.dropped = self.pool.room_came_back = True
        self._set(self._passed_back())
        return True

    def _or_recorded(self, reservation: BackfillReservation, work: Sequence[Running]) -> BackfillReservation:
        """The reservation, or one with which this plan began where that starts earlier and nothing has its devices."""
        earlier = [
            one for one in self.recorded if one.job == reservation.job and one.starts_at <= reservation.starts_at
        ]
        for before in earlier:
            if before.starts_at > reservation.starts_at or not self._is_sound(before, work):
                continue  # other work has its devices
            if before.starts_at < reservation.starts_at or not self._is_sound(reservation, work):
                reservation = before
        return reservation

    def _verified(self, reservation: BackfillReservation, work: Sequence[Running]) -> BackfillReservation | None:
        """The reservation, or a new plan for its job where that is earlier or the devices are not free in time."""
        is_sound, job = self._is_sound(reservation, work), self.pool.waiting[reservation.job]
        before = reservation.starts_at if is_sound else None
        planned = plan_backfill(
            self.pool, reservation.project, reservation.queue, job, work, before=before, recorded=reservation
        )
        if not is_sound or (planned is not None and planned.starts_at < reservation.starts_at):
            return planned
        return reservation

    def _is_sound(self, reservation: BackfillReservation, work: Sequence[Running]) -> bool:
        """Whether the devices are free in time. Work that has not begun counts as if it ended then."""
        recorded = self.pool.backfill
        if recorded is not None and recorded.workload == reservation.job:
            work = [one for one in work if one.job.id not in self.not_begun] + list(
                self._begun_in_time(reservation, work)
            )
        return self._is_whole(reservation) and has_room_at(self.pool, reservation.pieces, reservation.starts_at, work)

    def _begun_in_time(self, reservation: BackfillReservation, work: Sequence[Running]) -> Iterator[Running]:
        last = reservation.starts_at - grace_ms(self.pool)
        for one in work:
            if one.job.id in self.not_begun:
                yield one._replace(ends_at=min(one.ends_at, last))

    def plan(self, project: QuotaState, queue: ClassQueue, job: Job) -> BackfillReservation | None:
        """Plan devices and a start for a waiting job beside all that this plan has decided.

        The job with the reservation starts as planned and runs to its time limit.
        """
        reservation, work = self.current, self.future_work()
        if reservation is None:
            return plan_backfill(self.pool, project, queue, job, work)
        other = self.pool.waiting[reservation.job]
        work = [
            *work,
            Running.of(
                other, reservation.pieces, reservation.queue.size, other.ends_at(reservation.starts_at), borrower=False
            ),
        ]
        reservation.project.add(reservation.queue.size, other.user, preemptible=other.preemptible)
        planned = plan_backfill(self.pool, project, queue, job, work)
        reservation.project.remove(reservation.queue.size, other.user, preemptible=other.preemptible)
        return planned

    def _held(self, recorded: Reservation) -> BackfillReservation | None:
        """The recorded reservation; None if its job has left the queue or may not have it any more."""
        job = self.pool.waiting.get(recorded.workload)
        project = None if job is None else self.pool.project(job.project)
        queue = None if job is None else queue_of(self.pool, job)
        if job is None or project is None or queue is None:
            return None
        if not self._may_keep(job, project, queue):
            return None
        pieces = self._pieces(recorded, job)
        starts_at = recorded.starts_at
        assert starts_at is not None, "a backfill reservation has a planned start"
        return BackfillReservation(job=job.id, project=project, queue=queue, pieces=pieces, starts_at=starts_at)

    def _pieces(self, recorded: Reservation, job: Job) -> tuple[Piece, ...]:
        """The recorded pieces on devices that are schedulable now."""
        number = self.ledger.number
        found = [
            Piece(part.rank, number[part.device], part.gpu_milli)
            for part in recorded.placements
            if part.device in number
        ]
        return tuple(with_cpu_memory(found, job.cpu_milli, job.memory_mib))

    def _is_whole(self, reservation: BackfillReservation) -> bool:
        """Whether no reserved device has failed, and the job does not start later than planned."""
        whole = sum(piece.gpu_milli for piece in reservation.pieces) == reservation.queue.size
        return whole and reservation.starts_at > self.pool.now

    def _stop_borrowers(self, reservation: BackfillReservation) -> None:
        """Stop the borrowers that the reservation needs to leave, one grace before the planned start. Rule R31."""
        if reservation.starts_at - grace_ms(self.pool) > self.pool.now:
            return
        devices = {piece.device for piece in reservation.pieces}
        borrowers = [*self.pool.borrowers, *(one for one in self.pool.reserved if one.borrower)]
        there = [one for one in borrowers if any(piece.device in devices for piece in one.pieces)]
        if not there:
            return
        reserve(self.ledger, reservation.pieces, borrowed=False, sign=-1)
        work = self.future_work()
        for victim in sorted(there, key=lambda one: (not one.reserved, one.order)):
            short = devices_short_at(self.pool, reservation.pieces, reservation.starts_at, work, borrowers_leave=False)
            if any(piece.device in short for piece in victim.pieces):
                if victim.reserved:
                    self.ended_claims.append(self.pool.waiting[victim.id])
                else:
                    self.leaving.append((reservation, victim))
                mark_leaving(self.pool, victim)
                subtract_use(self.pool, victim)
        reserve(self.ledger, reservation.pieces, borrowed=False)

    def pass_on(self) -> bool:
        """Pass the reservation to a job that precedes it, while none of its devices is idle for it.

        Returns False where the first job of the order is still to be served: it may be that job.
        Rule R29.
        """
        reservation = self.current
        if reservation is None or self._has_idle_devices(reservation) or not self._may_pass(reservation):
            return True
        first = first_waiting(self.pool, self.unplanned)
        if first is None or not self._precedes(*first, reservation) or self._keeps_out_any(reservation):
            return True
        if first[1].blocked is None:
            return False
        self._replace(*first)
        return True

    def first_blocked(self) -> tuple[QuotaState, ClassQueue] | None:
        """The first job that waits for devices only, and for which devices can be planned."""
        return first_blocked(self.pool, self.unplanned)

    def _may_pass(self, reservation: BackfillReservation) -> bool:
        """Whether any job takes the reservation if it is the first of the order."""
        if reservation.entitlement is Entitlement.SURPLUS:
            turn = turn_of(reservation.project)
            if any(turn_of(one) < turn for one in self.pool.projects.values() if one is not reservation.project):
                return True
        own = reservation.project.queue.classes.values()
        return any(one.first_key() is not None and self._precedes(reservation.project, one, reservation) for one in own)

    def _precedes(self, project: QuotaState, queue: ClassQueue, reservation: BackfillReservation) -> bool:
        """Whether a job takes the reservation: of another project by past use, of the same one by its order."""
        entitlement = project.entitlement(queue.size)
        if project is reservation.project:
            return reservation.gives_way_to(self.pool, project, queue, entitlement)
        is_above = reservation.entitlement is entitlement is Entitlement.SURPLUS
        return is_above and turn_of(project) < turn_of(reservation.project)

    def _has_idle_devices(self, reservation: BackfillReservation) -> bool:
        return any(self.ledger.free_now(piece.device) >= piece.gpu_milli for piece in reservation.pieces)

    def _keeps_out_any(self, reservation: BackfillReservation) -> bool:
        """Whether a job that may start now finds a place only in a part of a reserved device."""
        if not self.has_room():
            return False
        open_classes = (queue for project in self.pool.projects.values() for queue in project.queue.open_classes())
        requests = {queue.job_class.request for queue in open_classes if queue is not reservation.queue}
        kept_out = [one for one in requests if isinstance(place(self.ledger, one), Refusal)]
        with self.lifted(plans_again=False):
            return any(isinstance(place(self.ledger, one), Fit) for one in kept_out)

    # -- during the plan -----------------------------------------------------------------------------------------

    def reserve_for(self, project: QuotaState, queue: ClassQueue) -> None:
        """Reserve devices for the first job of a class that could not start.

        Another job keeps the reservation, unless this one would be let in to its devices and lacks devices still.
        """
        reservation = self.current
        if self.tries_left <= 0 or queue.is_preceded:
            return
        if reservation is not None and not reservation.gives_way_to(
            self.pool, project, queue, project.entitlement(queue.size)
        ):
            return
        if may_hold(self.pool, project, queue):
            self._replace(project, queue)

    def _replace(self, project: QuotaState, queue: ClassQueue) -> None:
        self.tries_left -= 1
        reservation = self.current
        self._set(None)
        planned = self.plan(project, queue, queue.first())
        if planned is None:
            self.unplanned.append(queue)
        elif reservation is not None:
            self.dropped, self.passed = True, reservation
        self.pool.room_came_back |= self.dropped
        self._set(planned or reservation)

    def plan_again(self) -> None:
        """Plan for the same job after another job with a better right has started on its devices."""
        reservation = self.current
        if reservation is None:
            return
        self._set(None)
        self.dropped = self.pool.room_came_back = True
        work = self.future_work()
        planned = plan_backfill(
            self.pool, reservation.project, reservation.queue, self.pool.waiting[reservation.job], work
        )
        self._set(None if planned is None else self._or_recorded(planned, work))

    def give_up_new(self, claim: Preemption) -> None:
        """Give up a reservation of this plan where a claim frees its devices: they are offered from the top (R42)."""
        reservation = self.current
        if reservation is None or reservation.job == claim.preemptor.id or not self.is_freed_by(claim):
            return
        if reservation.job not in {one.job for one in self.recorded}:
            self._set(None)
            self.dropped = self.pool.room_came_back = True

    def drop(self) -> None:
        """Give the reservation up, or back to the job that it passed from if that waits still."""
        if self.current is not None:
            self.served[self.current.job] = self.current
        self._set(None)
        self.dropped = self.pool.room_came_back = True
        self._set(self._passed_back())

    def return_to(self, job: str) -> None:
        """Plan again for a job that had the reservation, and whose claim has been taken out of the plan."""
        served, reservation = self.served.pop(job, None), self.current
        if served is None or not self._is_waiting(served):
            return
        self._set(None)
        self._set(self._verified(served, self.future_work()) or reservation)

    def _passed_back(self) -> BackfillReservation | None:
        """A plan for the job that it passed from in this plan, if that waits still."""
        passed, self.passed = self.passed, None
        return self._verified(passed, self.future_work()) if passed is not None and self._is_waiting(passed) else None

    def _is_waiting(self, reservation: BackfillReservation) -> bool:
        """Whether its job is queued and may have it still."""
        job = self.pool.waiting[reservation.job]
        return reservation.queue.has(job) and self._may_keep(job, reservation.project, reservation.queue)

    def _may_keep(self, job: Job, project: QuotaState, queue: ClassQueue) -> bool:
        """Whether a job waits for devices only when the work that is being stopped has ended."""
        return project.fits_user_later(queue.size, job.user) and may_hold(self.pool, project, queue)

    def _set(self, reservation: BackfillReservation | None) -> None:
        before = self.current.pieces if self.current else ()
        reserve(self.ledger, before, borrowed=False, sign=-1)
        self.current = reservation
        reserve(self.ledger, reservation.pieces if reservation else (), borrowed=False)

    def holds(self, queue: ClassQueue) -> bool:
        """Whether the first job of a class has the reservation."""
        return self.current is not None and queue.first().id == self.current.job

    def lends_to(self, project: QuotaState, job_class: JobClass) -> bool:
        """Whether jobs of a class may borrow the reserved devices: none that its job could pause at once."""
        reservation = self.current
        if (
            reservation is None
            or not job_class.preemptible
            or job_class.exhausted
            or reservation.longest_time_limit_s(self.pool) <= 0
        ):
            return False
        return project is not reservation.project or job_class.priority >= reservation.queue.job_class.priority

    def is_freed_by(self, claim: Preemption) -> bool:
        """Whether a victim of a claim leaves a reserved device."""
        if self.current is None:
            return False
        reserved = {one.device for one in self.current.pieces}
        return any(piece.device in reserved for victim in claim.victims for piece in victim.pieces)

    def has_room(self, milli: int = 1) -> bool:
        """Whether so much is free now on one reserved device."""
        return self._idle_now()[0] >= milli

    def could_make_room(self, size: int) -> bool:
        """Whether a request of this size may find room while the reservation is lifted: an upper bound."""
        room = self.ledger.free_devices(ANY_MODEL, borrowed=True)
        return room is not None and room.total + self._idle_now()[1] >= size

    def _idle_now(self) -> tuple[int, int]:
        """The most that is free now on one reserved device, and the sum of the reserved amounts that are idle."""
        key = self.ledger.changes, self.current.pieces if self.current else ()
        if self._idle[0] != key:
            free = [self.ledger.free_now(one.device) for one in key[1]]
            idle = [min(milli, one.gpu_milli) for milli, one in zip(free, key[1], strict=True) if milli > 0]
            self._idle = key, max(free, default=0), sum(idle)
        return self._idle[1:]

    def is_refused(self, request: Request, *, borrowed: bool) -> bool:
        """Whether a request found no room while the reservation was lifted, and no room was freed since."""
        gains = self._gains_without.get((self.ledger.gains, self.current.pieces if self.current else ()))
        return gains is not None and is_refused(self.ledger, request, gains, borrowed=borrowed)

    def note_claim(self, claim: Preemption) -> None:
        """Note on a new claim whether it is kept from the reserved devices, or has the right to the recorded ones."""
        reservation, recorded = self.current, self.pool.backfill
        if reservation is None or reservation.job == claim.preemptor.id:
            return
        if not self.is_lifted:
            claim.kept_for, claim.kept_from = reservation.job, reservation.pieces
        else:
            claim.has_right = recorded is not None and recorded.workload == reservation.job

    @contextmanager
    def lifted(self, *, plans_again: bool) -> Iterator[None]:
        """Release the reservation inside the block.

        ``plans_again``: plan it anew if the block used its devices.
        """
        ledger, pieces = self.ledger, self.current.pieces if self.current else ()
        before = [room_beside(ledger, piece) for piece in pieces if plans_again]
        gains = ledger.gains
        reserve(ledger, pieces, borrowed=False, sign=-1)
        ledger.gains = self._gains_without.setdefault((gains, pieces), ledger.gains)
        mark, self.is_lifted = ledger.mark(), True
        yield
        self.is_lifted = False
        is_changed = ledger.mark() != mark
        reserve(ledger, pieces, borrowed=False)
        if not is_changed:
            ledger.gains = gains
        elif plans_again and any(is_taken(ledger, *row) for row in zip(pieces, before, strict=True)):
            self.plan_again()
