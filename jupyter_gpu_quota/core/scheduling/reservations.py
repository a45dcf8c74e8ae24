"""What earlier ticks reserved: promised again, or dropped where its job is gone or its devices are.

A reservation is what a claim was promised while others leave; of who only changes place or size, what it comes back to.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Job, Notebook, Reservation
from ..placement.place import Piece, host_needs, promise, request_of, with_host
from ..plan import ReasonCode
from ..queue.pool_state import Pool
from ..queue.quota_state import Holder
from .plan_builder import Draft
from .read_pool import enqueue


def read_reservations(
    pool: Pool, draft: Draft, slices: Sequence[Notebook]
) -> tuple[list[Notebook], list[tuple[Notebook, Piece]]]:
    """Promise every place that still holds, and drop the others; ``slices`` are those that are to have a device.

    Returns the slices that have no place, and those that have one with it.
    """
    reading = _Reading(pool, draft, slices)
    reading.run()
    placed = {notebook.id for notebook, _ in reading.placed}
    return [notebook for notebook in slices if notebook.id not in placed], reading.placed


class _Reading:
    def __init__(self, pool: Pool, draft: Draft, slices: Sequence[Notebook]) -> None:
        self.pool, self.ledger, self.draft = pool, pool.ledger, draft
        self.slices = {notebook.id: notebook for notebook in slices}
        self.placed: list[tuple[Notebook, Piece]] = []

    def run(self) -> None:
        slices = self.slices
        for reservation in self.pool.reservations:
            pieces = self._pieces(reservation)
            returning = self.pool.returning.get(reservation.workload)
            known = reservation.workload in slices or reservation.workload in self.pool.waiting or returning
            if not known:
                self.draft.drop(reservation.workload, ReasonCode.CLAIM_ENDED)
            elif pieces is None or not self._has_room(pieces):
                self.draft.drop(reservation.workload, ReasonCode.RESERVED_DEVICE_LOST)
                self._queue_again(reservation.workload)
            elif returning is not None:
                self._promise_returning(returning, pieces)
            elif reservation.workload in slices:
                promise(self.ledger, pieces, lent=False)
                self.placed.append((slices[reservation.workload], pieces[0]))
            else:
                self._promise_job(reservation.workload, pieces)

    def _pieces(self, reservation: Reservation) -> tuple[Piece, ...] | None:
        number = self.ledger.number
        if not reservation.placements or any(part.device not in number for part in reservation.placements):
            return None
        pieces = [Piece(part.rank, number[part.device], part.gpu_milli) for part in reservation.placements]
        job = self.pool.waiting.get(reservation.workload) or self.pool.returning.get(reservation.workload)
        return tuple(with_host(pieces, job.cpu_milli, job.memory_mib) if job else sorted(pieces))

    def _has_room(self, pieces: tuple[Piece, ...]) -> bool:
        wanted: dict[int, int] = {}
        for piece in pieces:
            wanted[piece.device] = wanted.get(piece.device, 0) + piece.gpu_milli
        hosts = host_needs(pieces, self.ledger)
        fits = all(self.ledger.hosts.after(node).covers(host) for node, host in hosts.items())
        return fits and all(self.ledger.lendable_after(at) >= milli for at, milli in wanted.items())

    def _queue_again(self, workload: str) -> None:
        if workload in self.pool.waiting:
            enqueue(self.pool, self.pool.waiting[workload])

    def _promise_returning(self, job: Job, pieces: tuple[Piece, ...]) -> None:
        """A job that is being paused only changes its place or size."""
        standing = self.pool.standing(job.project)
        promise(self.ledger, pieces, lent=False)
        standing.add(sum(piece.gpu_milli for piece in pieces), job.user, fixed=not job.preemptible)
        standing.returning.remove(job.gpu_milli * job.least_ranks)
        for level in standing.levels:  # what it leaves and comes back to counts once
            level.leaving -= min(job.held_milli, sum(piece.gpu_milli for piece in pieces))

    def _promise_job(self, workload: str, pieces: tuple[Piece, ...]) -> None:
        job = self.pool.waiting[workload]
        standing = self.pool.standing(job.project)
        size = sum(piece.gpu_milli for piece in pieces)
        over = not job.preemptible and not standing.fixed_fits(size)
        if not standing.known or over or standing.over_limit(size):
            self.draft.drop(workload, ReasonCode.CLAIM_ENDED)
            self._queue_again(workload)
            return
        promise(self.ledger, pieces, lent=False)
        standing.add(size, job.user, fixed=not job.preemptible)
        standing.want(job.gpu_milli * job.least_ranks, job.user, fixed=not job.preemptible)
        self.pool.promised.append(
            Holder(
                id=job.id,
                project=standing,
                user=job.user,
                size=size,
                pieces=pieces,
                request=request_of(job, job.ranks),
                preemptible=job.preemptible,
                priority=job.priority,
                lost_ms=0,
                started_at=self.pool.now,
                promised=True,
            )
        )


def sort_borrowers(pool: Pool) -> None:
    """A promised place that reaches into held room is a borrower's, unless a guarantee stands behind it.

    Then less is held until somebody drains: what was promised is kept.
    """
    for holder in sorted(pool.promised, key=lambda one: one.id):
        short = [piece.device for piece in holder.pieces if pool.ledger.plain_after(piece.device) < 0]
        firm = not holder.preemptible or holder.project.use <= holder.project.guarantee
        if short and not firm:
            promise(pool.ledger, holder.pieces, lent=False, sign=-1)
            promise(pool.ledger, holder.pieces, lent=True)
            holder.borrower = True
    for at in {piece.device for holder in pool.promised for piece in holder.pieces}:
        short_milli = -pool.ledger.plain_after(at)
        if short_milli > 0:
            pool.ledger.shift(pool.ledger.held, at, -min(short_milli, pool.ledger.held[at]))
