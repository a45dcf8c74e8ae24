"""Reservations of earlier ticks: entered in the ledger again, or dropped if their job or their devices are gone.

Devices are reserved for a claim while its victims stop, and for a job that moves or changes its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ..eviction.quarantine import kept_until
from ..model import Job, Notebook, Reservation
from ..placement.place import Piece, has_room_after_drains, request_of, reserve, with_cpu_memory
from ..queue.job_class import is_exhausted
from ..queue.pool_state import PoolState
from ..queue.quota_state import Victim
from ..reasons import ClaimEnded, ReservedDeviceLost
from .plan_builder import PlanBuilder
from .read_pool import enqueue


def read_reservations(
    pool: PoolState, builder: PlanBuilder, slices: Sequence[Notebook]
) -> tuple[list[Notebook], list[tuple[Notebook, Piece]]]:
    """Enter every valid reservation in the ledger, and drop the others; ``slices`` are those that need a device.

    Returns the slices without a reservation, and those with one, each with its piece.
    Rule R25.
    """
    reading = _ReservationReader(pool, builder, slices)
    reading.run()
    placed = {notebook.id for notebook, _ in reading.placed}
    return [notebook for notebook in slices if notebook.id not in placed], reading.placed


class _ReservationReader:
    def __init__(self, pool: PoolState, builder: PlanBuilder, slices: Sequence[Notebook]) -> None:
        self.pool, self.ledger, self.builder = pool, pool.ledger, builder
        self.slices = {notebook.id: notebook for notebook in slices}
        self.placed: list[tuple[Notebook, Piece]] = []

    def run(self) -> None:
        slices = self.slices
        for reservation in self.pool.more_backfill:
            self.builder.drop(reservation.workload, ClaimEnded())
        for reservation in self.pool.reservations:
            pieces = self._pieces(reservation)
            returning = self.pool.returning.get(reservation.workload)
            known = reservation.workload in slices or reservation.workload in self.pool.waiting or returning
            if not known:
                self.builder.drop(reservation.workload, ClaimEnded())
            elif pieces is None or not has_room_after_drains(self.ledger, pieces):
                self.builder.drop(reservation.workload, ReservedDeviceLost())
                self._queue_again(reservation.workload)
            elif returning is not None:
                self._reserve_returning(returning, reservation, pieces)
            elif reservation.workload in slices:
                reserve(self.ledger, pieces, borrowed=False)
                self.pool.slice_devices.add(pieces[0].device)
                self.placed.append((slices[reservation.workload], pieces[0]))
            else:
                self._reserve_waiting(reservation, pieces)

    def _pieces(self, reservation: Reservation) -> tuple[Piece, ...] | None:
        """The pieces on available devices; None if the reservation has lost devices and ends."""
        number, pool = self.ledger.number, self.pool
        job = pool.waiting.get(reservation.workload) or pool.returning.get(reservation.workload)
        devices = {part.device for part in reservation.placements}
        missing = devices - number.keys()
        if not devices or (missing and not self._is_kept(reservation, devices, missing)):
            return None
        if missing:
            pool.incomplete.add(reservation.workload)
        there = [part for part in reservation.placements if part.device not in missing]
        pieces = [Piece(part.rank, number[part.device], part.gpu_milli) for part in there]
        return tuple(with_cpu_memory(pieces, job.cpu_milli, job.memory_mib) if job else sorted(pieces))

    def _is_kept(self, reservation: Reservation, devices: AbstractSet[str], missing: AbstractSet[str]) -> bool:
        """Whether a reservation is kept without its quarantined devices: a claim of several devices, or a restart."""
        pool, name = self.pool, reservation.workload
        has_several = name in pool.waiting and len(devices) > 1
        in_time = pool.now < kept_until(reservation, pool.policy)
        return in_time and missing <= pool.quarantined and (has_several or name in pool.returning)

    def _queue_again(self, workload: str) -> None:
        if workload in self.pool.waiting:
            enqueue(self.pool, self.pool.waiting[workload])

    def _reserve_returning(self, job: Job, reservation: Reservation, pieces: tuple[Piece, ...]) -> None:
        """Reserve for a job that is paused only to move or to change its size; its old and new devices count once."""
        project, size = self.pool.project(job.project), _size(reservation)
        reserve(self.ledger, pieces, borrowed=False)
        self.pool.restarting.append((job, pieces, size))
        project.add(size, job.user, preemptible=job.preemptible)
        project.returning.remove(job.gpu_milli * job.least_ranks)
        project.add_leaving(-min(job.held_milli, size), job.user)

    def _reserve_waiting(self, reservation: Reservation, pieces: tuple[Piece, ...]) -> None:
        workload = reservation.workload
        job = self.pool.waiting[workload]
        project = self.pool.project(job.project)
        size = _size(reservation)
        over = not job.preemptible and not project.fits_non_preemptible(size)
        if not project.known or over or project.over_limit(size) or not project.fits_user_later(size, job.user):
            self.builder.drop(workload, ClaimEnded())
            self._queue_again(workload)
            return
        reserve(self.ledger, pieces, borrowed=False)
        project.add(size, job.user, preemptible=job.preemptible)
        project.add_demand(job.gpu_milli * job.least_ranks, job.user, preemptible=job.preemptible)
        self.pool.reserved.append(
            Victim(
                id=job.id,
                project=project,
                user=job.user,
                size=size,
                pieces=pieces,
                request=request_of(job, job.ranks),
                preemptible=job.preemptible,
                priority=job.priority,
                lost_ms=0,
                started_at=reservation.reserved_at,
                submitted_at=job.submitted_at,
                reserved=True,
            )
        )


def _size(reservation: Reservation) -> int:
    """The reserved milli-GPU, parts on quarantined devices included."""
    return sum(part.gpu_milli for part in reservation.placements)


def mark_borrowers(pool: PoolState) -> None:
    """Mark as borrowers the jobs whose reservations need unbooked notebook quota.

    Not so within their guarantee if their pauses are used up: less is reserved for notebook quota until work drains.
    """
    for victim in sorted(pool.reserved, key=lambda one: one.id):
        short = [piece.device for piece in victim.pieces if pool.ledger.plain_after(piece.device) < 0]
        firm = not victim.preemptible or (
            victim.project.use <= victim.project.guarantee
            and is_exhausted(pool.policy, pool.waiting[victim.id], pool.now)
        )
        if short and not firm:
            reserve(pool.ledger, victim.pieces, borrowed=False, sign=-1)
            reserve(pool.ledger, victim.pieces, borrowed=True)
            victim.borrower = True
    for at in {piece.device for victim in pool.reserved for piece in victim.pieces}:
        short_milli = -pool.ledger.plain_after(at)
        if short_milli > 0:
            pool.ledger.shift(pool.ledger.unused_quota, at, -min(short_milli, pool.ledger.unused_quota[at]))
