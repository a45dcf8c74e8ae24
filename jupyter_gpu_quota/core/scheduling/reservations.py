"""Reservations of earlier ticks: entered in the ledger again, or dropped if their job or their devices are gone.

Devices are reserved for a claim while its victims leave, and for a job that moves or changes its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Job, Notebook, Reservation
from ..placement.place import Piece, node_needs, request_of, reserve, with_cpu_memory
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
    Rule R23.
    """
    reading = _Reading(pool, builder, slices)
    reading.run()
    placed = {notebook.id for notebook, _ in reading.placed}
    return [notebook for notebook in slices if notebook.id not in placed], reading.placed


class _Reading:
    def __init__(self, pool: PoolState, builder: PlanBuilder, slices: Sequence[Notebook]) -> None:
        self.pool, self.ledger, self.builder = pool, pool.ledger, builder
        self.slices = {notebook.id: notebook for notebook in slices}
        self.placed: list[tuple[Notebook, Piece]] = []

    def run(self) -> None:
        slices = self.slices
        for reservation in self.pool.reservations:
            pieces = self._pieces(reservation)
            returning = self.pool.returning.get(reservation.workload)
            known = reservation.workload in slices or reservation.workload in self.pool.waiting or returning
            if not known:
                self.builder.drop(reservation.workload, ClaimEnded())
            elif pieces is None or not self._has_room(pieces):
                self.builder.drop(reservation.workload, ReservedDeviceLost())
                self._queue_again(reservation.workload)
            elif returning is not None:
                self._promise_returning(returning, pieces)
            elif reservation.workload in slices:
                reserve(self.ledger, pieces, borrowed=False)
                self.placed.append((slices[reservation.workload], pieces[0]))
            else:
                self._promise_job(reservation.workload, pieces)

    def _pieces(self, reservation: Reservation) -> tuple[Piece, ...] | None:
        number = self.ledger.number
        if not reservation.placements or any(part.device not in number for part in reservation.placements):
            return None
        pieces = [Piece(part.rank, number[part.device], part.gpu_milli) for part in reservation.placements]
        job = self.pool.waiting.get(reservation.workload) or self.pool.returning.get(reservation.workload)
        return tuple(with_cpu_memory(pieces, job.cpu_milli, job.memory_mib) if job else sorted(pieces))

    def _has_room(self, pieces: tuple[Piece, ...]) -> bool:
        wanted: dict[int, int] = {}
        for piece in pieces:
            wanted[piece.device] = wanted.get(piece.device, 0) + piece.gpu_milli
        hosts = node_needs(pieces, self.ledger)
        fits = all(self.ledger.node_resources.after(node).covers(host) for node, host in hosts.items())
        return fits and all(self.ledger.lendable_after(at) >= milli for at, milli in wanted.items())

    def _queue_again(self, workload: str) -> None:
        if workload in self.pool.waiting:
            enqueue(self.pool, self.pool.waiting[workload])

    def _promise_returning(self, job: Job, pieces: tuple[Piece, ...]) -> None:
        """Reserve for a job that is paused only to move or to change its size."""
        project = self.pool.project(job.project)
        reserve(self.ledger, pieces, borrowed=False)
        project.add(sum(piece.gpu_milli for piece in pieces), job.user, fixed=not job.preemptible)
        project.returning.remove(job.gpu_milli * job.least_ranks)
        for level in project.levels:  # what it leaves and what it returns to count once
            level.leaving -= min(job.held_milli, sum(piece.gpu_milli for piece in pieces))

    def _promise_job(self, workload: str, pieces: tuple[Piece, ...]) -> None:
        job = self.pool.waiting[workload]
        project = self.pool.project(job.project)
        size = sum(piece.gpu_milli for piece in pieces)
        over = not job.preemptible and not project.fixed_fits(size)
        if not project.known or over or project.over_limit(size):
            self.builder.drop(workload, ClaimEnded())
            self._queue_again(workload)
            return
        reserve(self.ledger, pieces, borrowed=False)
        project.add(size, job.user, fixed=not job.preemptible)
        project.want(job.gpu_milli * job.least_ranks, job.user, fixed=not job.preemptible)
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
                started_at=self.pool.now,
                reserved=True,
            )
        )


def sort_borrowers(pool: PoolState) -> None:
    """Make a job whose reservation reaches into held room a borrower, unless it is within its guarantee.

    Within a guarantee the reservation stays, and less room is held until other work drains.
    """
    for victim in sorted(pool.reserved, key=lambda one: one.id):
        short = [piece.device for piece in victim.pieces if pool.ledger.plain_after(piece.device) < 0]
        firm = not victim.preemptible or victim.project.use <= victim.project.guarantee
        if short and not firm:
            reserve(pool.ledger, victim.pieces, borrowed=False, sign=-1)
            reserve(pool.ledger, victim.pieces, borrowed=True)
            victim.borrower = True
    for at in {piece.device for victim in pool.reserved for piece in victim.pieces}:
        short_milli = -pool.ledger.plain_after(at)
        if short_milli > 0:
            pool.ledger.shift(pool.ledger.unbooked, at, -min(short_milli, pool.ledger.unbooked[at]))
