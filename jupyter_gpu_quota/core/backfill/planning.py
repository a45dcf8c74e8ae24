"""Planned starts: when a waiting job starts, and on which devices, if all work runs to its time limit.

Source: docs/scheduling.md, section 3.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

from ..model import MS_PER_S, Job
from ..placement.ledger import Ledger
from ..placement.node_resources import CpuMemory
from ..placement.place import Piece, Request, is_free_now, rank_pieces
from ..preemption.result import Preemption
from ..queue.job_queue import ClassQueue
from ..queue.pool_state import PoolState
from ..queue.quota_state import QuotaState, Running, Victim, by_end
from .reservation import BackfillReservation

RoomBeside = tuple[int, int, bool]
"""Of a reserved piece: the room beside it, the amount reserved for others there, and whether its node is overfull."""


def room_beside(ledger: Ledger, piece: Piece) -> RoomBeside:
    """The room beside a piece of the reservation, which is in the ledger."""
    at = piece.device
    reserved = ledger.reserved[at] + ledger.reserved_borrowed[at]
    has_cpu_memory = bool(piece.cpu_milli or piece.memory_mib)
    return ledger.plain_after(at), reserved, has_cpu_memory and ledger.is_overfull(ledger.node_of[at])


def is_taken(ledger: Ledger, piece: Piece, before: RoomBeside) -> bool:
    """Whether the piece was allocated to other work. Work that continues there does not count."""
    room, reserved, overfull = room_beside(ledger, piece)
    return (overfull and not before[2]) or (room < 0 and (room < before[0] or reserved > before[1]))


def future_work(
    pool: PoolState, preemptions: Sequence[Preemption], restarts: Mapping[str, tuple[Piece, ...]]
) -> list[Running]:
    """The work that continues, and the work that starts on reserved devices as soon as they are free.

    ``preemptions``: those of this plan. ``restarts``: the pieces of the jobs that it stops and starts again to grow.
    """
    gone = pool.stopped_jobs() | restarts.keys()
    continuing = dict(pool.running)
    for name in gone:
        continuing.pop(name, None)
    work = list(continuing.values())
    again = {**restarts, **dict(_again([one for one in preemptions if one.moves or pool.has_elastic]))}
    drained_at = pool.now + grace_ms(pool)
    for one in pool.reserved:
        begins = pool.now if _may_begin(pool, one) else drained_at
        ends_at = pool.waiting[one.id].ends_at(begins)
        work.append(Running.of(pool.waiting[one.id], one.pieces, one.size, ends_at, borrower=one.borrower))
    stopped = ((pool.preemptible_job(name), pieces) for name, pieces in again.items())
    rows = [(one.job, pieces, _size(pieces)) for one, pieces in stopped if one is not None]
    for preemption in preemptions:
        preemptor = preemption.preemptor
        if (job := pool.waiting.get(preemptor.id)) is not None:
            size, ends_at = preemptor.request.size, job.ends_at(drained_at)
            work.append(Running.of(job, preemption.pieces, size, ends_at, borrower=preemption.borrowed))
    return work + [
        Running.of(job, pieces, size, job.ends_at(drained_at), borrower=False)
        for job, pieces, size in (*pool.restarting, *rows)
    ]


def _may_begin(pool: PoolState, claim: Victim) -> bool:
    """Whether all devices that are reserved for a claim are there, and free now."""
    return claim.id not in pool.incomplete and is_free_now(pool.ledger, claim.pieces, borrowed=claim.borrower)


def _again(preemptions: Iterable[Preemption]) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    """The jobs that preemptions stop and start again, with their pieces then."""
    for preemption in preemptions:
        for move in preemption.moves:
            yield move.victim.id, move.pieces
        for one in preemption.shrunk:
            if one.base is not None:
                yield one.base.id, one.base.pieces


def _size(pieces: Iterable[Piece]) -> int:
    return sum([piece.gpu_milli for piece in pieces])


def plan_backfill(
    pool: PoolState,
    project: QuotaState,
    queue: ClassQueue,
    job: Job,
    work: Sequence[Running],
    *,
    before: int | None = None,
    recorded: BackfillReservation | None = None,
) -> BackfillReservation | None:
    """Plan where and when a job starts if all work runs to its time limit; None: nowhere. Rule R33.

    ``work``: of :func:`future_work`. ``before``: an instant; a later start is not looked for. ``recorded``: what the
    job has reserved already; the borrowers there leave for its planned start. A preemptible job is planned on unbooked
    notebook quota, as a borrower, if it fits nowhere else.
    """
    work = work if recorded is None else _with_borrowers_gone(pool, work, recorded)
    if before is not None:
        last = before - grace_ms(pool)
        work = [one for one in work if one.ends_at < last]
        if not _could_free(pool, work, queue.size):
            return None
    found = _first_fit(pool, project, queue.job_class.request, work)
    if found is None and before is None and queue.job_class.preemptible and pool.ledger.has_unused_quota:
        found = _first_fit(pool, project, queue.job_class.request, work, borrows=True)
    if found is None:
        return None
    return BackfillReservation(job=job.id, project=project, queue=queue, pieces=found[1], starts_at=found[0])


def _could_free(pool: PoolState, work: Iterable[Running], milli: int) -> bool:
    """Whether so much may be free after all drains when this work has ended: an upper bound."""
    room = pool.ledger.all_after(borrowed=False)
    return room + sum([piece.gpu_milli for one in work for piece in one.pieces]) >= milli


def _with_borrowers_gone(pool: PoolState, work: Sequence[Running], recorded: BackfillReservation) -> list[Running]:
    """The work, with the borrowers of a reservation that end one grace before its planned start."""
    devices = {piece.device for piece in recorded.pieces}
    last = max(pool.now, recorded.starts_at - grace_ms(pool))
    return [
        one._replace(ends_at=min(one.ends_at, last))
        if one.borrower and all(piece.device in devices for piece in one.pieces)
        else one
        for one in work
    ]


def has_room_at(pool: PoolState, pieces: Iterable[Piece], instant: int, work: Iterable[Running]) -> bool:
    """Whether the pieces have room at an instant if all work runs to its time limit, and borrowers have left."""
    return not devices_short_at(pool, pieces, instant, work, borrowers_leave=True)


def devices_short_at(
    pool: PoolState, pieces: Iterable[Piece], instant: int, work: Iterable[Running], *, borrowers_leave: bool
) -> set[int]:
    """The devices without room for the pieces at an instant if all work runs to its time limit."""
    ledger, last = pool.ledger, instant - grace_ms(pool)
    short = defaultdict[int, int](int)
    for piece in pieces:
        short[piece.device] += piece.gpu_milli
    for at in short:
        left = ledger.borrowed[at] + ledger.reserved_borrowed[at] if borrowers_leave else 0
        short[at] -= ledger.plain_after(at, borrowed_gone=left)
    if max(short.values(), default=0) <= 0:
        return set()
    for one in work:
        if not one.borrower and one.ends_at <= last:
            for piece in one.pieces:
                if piece.device in short:
                    short[piece.device] -= piece.gpu_milli
    return {at for at, milli in short.items() if milli > 0}


def grace_ms(pool: PoolState) -> int:
    """The grace of a paused job, in milliseconds."""
    return pool.policy.preemption.grace_s * MS_PER_S


def _first_fit(
    pool: PoolState, project: QuotaState, request: Request, work: Iterable[Running], *, borrows: bool = False
) -> tuple[int, tuple[Piece, ...]] | None:
    """End work in the order of its time limits, with its grace, until the request fits in room and limits."""
    room, drained_at = _FutureRoom(pool, request, borrows=borrows), pool.now + grace_ms(pool)
    use = {level: level.use + request.size for level in project.levels}
    levels_of = {one.name: [level for level in one.levels if level in use] for one in pool.projects.values()}
    if room.fitting >= request.ranks and all(use[level] <= level.ceiling for level in use):
        return drained_at, room.pieces()
    for running in _in_order(work):
        for level in levels_of[running.project]:
            use[level] -= running.size
        for piece in running.pieces:
            room.free(piece, borrowed=running.borrower and not borrows)
        if room.fitting >= request.ranks and all(use[level] <= level.ceiling for level in use):
            return max(drained_at, running.ends_at + grace_ms(pool)), room.pieces()
    return None


SORTED_AT_ONCE = 64
"""Rows; most searches end in the first ones, and the others are not sorted by their devices."""


def _in_order(work: Iterable[Running]) -> Iterator[Running]:
    """Work in the order of :class:`Running`, sorted by more than its end when it is reached.

    It is sorted in parts of SORTED_AT_ONCE rows or more; rows of one end stay together.
    """
    ordered, at = sorted(work, key=by_end), 0
    while at < len(ordered):
        to = min(at + SORTED_AT_ONCE, len(ordered))
        while to < len(ordered) and ordered[to].ends_at == ordered[to - 1].ends_at:
            to += 1
        yield from sorted(ordered[at:to])
        at = to


class _FutureRoom:
    """The number of ranks of one request that fit while work ends, updated piece by piece."""

    def __init__(self, pool: PoolState, request: Request, *, borrows: bool) -> None:
        """``borrows``: the request may use unbooked notebook quota."""
        self.ledger, self.request = pool.ledger, request
        self.need, self.per_rank = request.per_device, request.devices_per_rank
        self.needs_cpu_memory = bool(request.cpu_milli or request.memory_mib)
        self.room = self.ledger.all_plain_after()
        if borrows:
            self.room = [self.ledger.lendable_after(at) for at in range(len(self.room))]
        self.borrowed_gone = Counter[int]()
        self.slots = [0] * len(self.ledger.on_node)
        nodes = range(len(self.slots)) if self.needs_cpu_memory else ()
        self.cpu_memory = [self.ledger.node_resources.after(node) for node in nodes]
        self.node_of = node_of = self.ledger.node_of
        model, anything = self.ledger.model, not request.gpu_models
        for at in compress(range(len(self.room)), map(self.need.__le__, self.room)):
            if anything or request.accepts(model[at]):
                self.slots[node_of[at]] += self.room[at] // self.need
        self.fitting = sum(map(self._ranks_on, range(len(self.slots))))

    def free(self, piece: Piece, *, borrowed: bool) -> None:
        """Free a piece of work that has ended. Borrowers leave unbooked notebook quota, which stays reserved."""
        at, before, need = piece.device, self.room[piece.device], self.need
        after = self.room[at] = before + (self._freed_by_borrower(piece) if borrowed else piece.gpu_milli)
        slots = (after // need if after > 0 else 0) - (before // need if before > 0 else 0)
        if slots and self.request.gpu_models and not self.request.accepts(self.ledger.model[at]):
            slots = 0
        node = self.node_of[at]
        if self.needs_cpu_memory and (slots or piece.cpu_milli or piece.memory_mib):
            self.fitting -= self._ranks_on(node)
            cpu, memory = self.cpu_memory[node]
            self.cpu_memory[node] = CpuMemory(cpu + piece.cpu_milli, memory + piece.memory_mib)
            self.slots[node] += slots
            self.fitting += self._ranks_on(node)
        elif slots:
            had = self.slots[node]
            self.slots[node] = now = had + slots
            self.fitting += now // self.per_rank - had // self.per_rank

    def _freed_by_borrower(self, piece: Piece) -> int:
        at, ledger = piece.device, self.ledger
        before = ledger.plain_after(at, borrowed_gone=self.borrowed_gone[at])
        self.borrowed_gone[at] += piece.gpu_milli
        return ledger.plain_after(at, borrowed_gone=self.borrowed_gone[at]) - before

    def _ranks_on(self, node: int) -> int:
        ranks = self.slots[node] // self.per_rank
        return min(ranks, self.request.ranks_within(self.cpu_memory[node])) if self.needs_cpu_memory else ranks

    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the ranks, on the fullest devices or nodes that take them."""
        accepts, model, need = self.request.accepts, self.ledger.model, self.need
        fits = [at for at, milli in enumerate(self.room) if milli >= need]
        if self.request.gpu_models:
            fits = [at for at in fits if accepts(model[at])]
        if self.per_rank > 1:
            spots = self._on_nodes(fits)
        else:
            tightest = sorted(fits, key=lambda at: (self.room[at], at))
            spots = [[at] for at in tightest for _ in range(self.room[at] // self.need)]
        taken = enumerate(self._within_node_resources(spots)[: self.request.ranks])
        return tuple(piece for rank, spot in taken for piece in rank_pieces(rank, spot, self.request))

    def _within_node_resources(self, spots: list[list[int]]) -> list[list[int]]:
        """The spots, as many of each node as its CPU and memory have room for."""
        left = [self._ranks_on(node) for node in range(len(self.slots))]
        chosen = []
        for spot in spots:
            node = self.ledger.node_of[spot[0]]
            left[node] -= 1
            if left[node] >= 0:
                chosen.append(spot)
        return chosen

    def _on_nodes(self, fits: Sequence[int]) -> list[list[int]]:
        rooms: dict[int, list[int]] = {}
        for at in fits:
            rooms.setdefault(self.ledger.node_of[at], []).append(at)
        order = sorted(rooms.items(), key=lambda row: (len(row[1]), row[0]))
        per_rank = self.per_rank
        return [
            row[first : first + per_rank] for _, row in order for first in range(0, len(row) - per_rank + 1, per_rank)
        ]
