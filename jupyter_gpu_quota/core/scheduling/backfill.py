"""The backfill reservation: devices for the first job that cannot start, and which jobs may overtake it there.

It is planned from the time limits of running work, anew in each tick: it moves earlier when work ends early, and it is
not stored. Source: docs/scheduling.md, section 3 (reservation and backfill).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model import MS_PER_S, WHOLE_DEVICE
from ..placement.ledger import Ledger
from ..placement.node_resources import CpuMemory
from ..placement.place import Piece, Request, rank_pieces
from ..queue.job_queue import ClassQueue
from ..queue.order import first_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReservation:
    """Devices for one job, and the instant from which they are planned to be free."""

    job: str
    project: QuotaState
    queue: ClassQueue
    pieces: tuple[Piece, ...]
    starts_at: int

    @property
    def takes_cpu_or_memory(self) -> bool:
        """Whether CPU or memory is reserved, too."""
        return any(piece.cpu_milli or piece.memory_mib for piece in self.pieces)

    def may_be_overtaken(self, pool: PoolState, project: QuotaState, queue: ClassQueue, time_limit_s: int) -> bool:
        """Whether another job may start on these devices.

        It must end before the planned start, or then be a legal victim: preemptible work that has run its minimum and
        is above its project's fair share, or of the same project and of lower job priority.
        Rule R26.
        """
        if pool.now + time_limit_s * MS_PER_S <= self.starts_at:
            return True
        runs_its_minimum = pool.now + pool.policy.preemption.min_runtime_s * MS_PER_S <= self.starts_at
        if not queue.job_class.preemptible or queue.job_class.exhausted or not runs_its_minimum:
            return False
        if project is self.project:
            return queue.job_class.priority < self.queue.job_class.priority
        return project.entitlement(queue.size) is Entitlement.SURPLUS


def may_reserve_backfill(project: QuotaState, queue: ClassQueue) -> bool:
    """Whether a class may have the reservation: its jobs can start within the fair share when other work has ended."""
    fixed = queue.job_class.preemptible or project.fixed_fits(queue.size)
    return fixed and not queue.job_class.exhausted and all(queue.size <= level.fair for level in project.levels)


def first_blocked(pool: PoolState) -> tuple[QuotaState, ClassQueue] | None:
    """The project and class of the first job that cannot start and may have the reservation. Rule R25."""
    blocked = list[tuple[QuotaState, ClassQueue]]()
    for project in pool.projects.values():
        rows = [
            (key, queue)
            for queue in project.queue.classes.values()
            if queue.blocked is not None
            and may_reserve_backfill(project, queue)
            and (key := queue.first_key()) is not None
        ]
        if rows:
            _, queue = min(rows, key=lambda row: row[0])
            blocked.append((project, queue))
    return first_of(blocked)


RoomBeside = tuple[int, int, bool]
"""Of a reserved piece: the room beside it, the amount reserved for others there, and whether its node is overfull."""


def room_beside(ledger: Ledger, piece: Piece) -> RoomBeside:
    """The room beside a piece of the reservation, which is in the ledger."""
    at = piece.device
    reserved = ledger.reserved[at] + ledger.reserved_borrowed[at]
    has_host = bool(piece.cpu_milli or piece.memory_mib)
    return ledger.plain_after(at), reserved, has_host and ledger.is_overfull(ledger.node_of[at])


def is_taken(ledger: Ledger, piece: Piece, before: RoomBeside) -> bool:
    """Whether the piece was allocated to other work. Work that continues there does not count."""
    room, reserved, overfull = room_beside(ledger, piece)
    return (overfull and not before[2]) or (room < 0 and (room < before[0] or reserved > before[1]))


def plan_backfill(pool: PoolState, project: QuotaState, queue: ClassQueue) -> BackfillReservation | None:
    """Plan where and when the first job of a class starts if all work runs to its time limit; None: nowhere."""
    job, found = queue.first().id, _first_fit(pool, project, queue.job_class.request)
    if found is None:
        return None
    return BackfillReservation(job=job, project=project, queue=queue, pieces=found[1], starts_at=found[0])


def _first_fit(pool: PoolState, project: QuotaState, request: Request) -> tuple[int, tuple[Piece, ...]] | None:
    """End running work in the order of its time limits until the request fits, in room and in fair share."""
    room = _FutureRoom(pool, request)
    use = {level: level.use + request.size for level in project.levels}
    if room.fitting >= request.ranks and all(use[level] <= level.fair for level in use):
        return pool.now, room.pieces()
    for running in sorted(pool.running, key=lambda one: (one.ends_at(pool.now), one.pieces, one.project.name)):
        for level in running.project.levels:
            if level in use:
                use[level] -= running.size
        for piece in running.pieces:
            room.free(piece)
        if room.fitting >= request.ranks and all(use[level] <= level.fair for level in use):
            return running.ends_at(pool.now), room.pieces()
    return None


class _FutureRoom:
    """The number of ranks of one request that fit while work ends, updated piece by piece."""

    def __init__(self, pool: PoolState, request: Request) -> None:
        self.ledger, self.request = pool.ledger, request
        self.need, self.per_rank = min(request.gpu_milli, WHOLE_DEVICE), request.devices_per_rank
        self.needs_host = bool(request.cpu_milli or request.memory_mib)
        self.room = self.ledger.all_plain_after()
        self.slots = [0] * len(self.ledger.on_node)
        self.hosts = [self.ledger.node_resources.after(node) for node in range(len(self.slots))]
        node_of, model, anything = self.ledger.node_of, self.ledger.model, not request.gpu_models
        for at, milli in enumerate(self.room):
            if milli >= self.need and (anything or request.accepts(model[at])):
                self.slots[node_of[at]] += milli // self.need
        self.fitting = sum(map(self._ranks_on, range(len(self.slots))))

    def free(self, piece: Piece) -> None:
        """Free a piece of work that has ended."""
        at, before = piece.device, self.room[piece.device]
        after = self.room[at] = before + piece.gpu_milli
        slots = max(0, after) // self.need - max(0, before) // self.need
        frees_host = bool(piece.cpu_milli or piece.memory_mib)
        if not frees_host and not slots:
            return
        node = self.ledger.node_of[at]
        self.fitting -= self._ranks_on(node)
        if frees_host:
            cpu, memory = self.hosts[node]
            self.hosts[node] = CpuMemory(cpu + piece.cpu_milli, memory + piece.memory_mib)
        if self.request.accepts(self.ledger.model[at]):
            self.slots[node] += slots
        self.fitting += self._ranks_on(node)

    def _ranks_on(self, node: int) -> int:
        ranks = self.slots[node] // self.per_rank
        return min(ranks, self.request.ranks_within(self.hosts[node])) if self.needs_host else ranks

    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the ranks, on the fullest devices or nodes that take them."""
        accepts, model = self.request.accepts, self.ledger.model
        fits = [at for at, milli in enumerate(self.room) if milli >= self.need and accepts(model[at])]
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
