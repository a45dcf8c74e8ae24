"""The place that is kept for the first job that cannot start, and who may overtake it there.

It is planned from the time limits of what runs, anew in each tick: it moves earlier when something ends early, and
needs no record. Source: docs/scheduling.md, section 3 (reservation and backfill).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model import WHOLE_DEVICE
from ..placement.hosts import Host
from ..placement.ledger import Ledger
from ..placement.place import Piece, Request, rank_pieces
from ..queue.job_queue import Line
from ..queue.pool_state import Pool
from ..queue.quota_state import SECOND, Right, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A place and the instant from which it is planned to be free."""

    job: str
    standing: Standing
    line: Line
    pieces: tuple[Piece, ...]
    starts_at: int

    @property
    def takes_host(self) -> bool:
        """Whether CPU or memory is kept, too."""
        return any(piece.cpu_milli or piece.memory_mib for piece in self.pieces)

    def may_be_overtaken(self, pool: Pool, standing: Standing, line: Line, time_limit_s: int) -> bool:
        """Whether another job may start in this place.

        It ends before the planned start, or would then be a legal victim: preemptible work that has run its minimum
        and is above its project's fair share, or of the same project and of lower job priority.
        """
        if pool.now + time_limit_s * SECOND <= self.starts_at:
            return True
        runs_its_minimum = pool.now + pool.policy.preemption.min_runtime_s * SECOND <= self.starts_at
        if not line.shape.preemptible or line.shape.exhausted or not runs_its_minimum:
            return False
        if standing is self.standing:
            return line.shape.priority < self.line.shape.priority
        return standing.right(line.size) is Right.SURPLUS


def may_be_kept(standing: Standing, line: Line) -> bool:
    """Whether a place may be kept for a line: its jobs can start within the fair share once others have ended."""
    fixed = line.shape.preemptible or standing.fixed_fits(line.size)
    return fixed and not line.shape.exhausted and all(line.size <= level.fair for level in standing.levels)


Beside = tuple[int, int, bool]
"""Of a kept place: the room beside it, what is promised to others there, and whether its node is overfull."""


def beside(ledger: Ledger, piece: Piece) -> Beside:
    """What a part of a kept place, promised in the ledger, has beside it."""
    at = piece.device
    promised = ledger.promised[at] + ledger.promised_lent[at]
    has_host = bool(piece.cpu_milli or piece.memory_mib)
    return ledger.plain_after(at), promised, has_host and ledger.is_overfull(ledger.node_of[at])


def is_taken(ledger: Ledger, piece: Piece, before: Beside) -> bool:
    """Whether others were given it; that who runs there runs on says nothing: the place is planned for later."""
    room, promised, overfull = beside(ledger, piece)
    return (overfull and not before[2]) or (room < 0 and (room < before[0] or promised > before[1]))


def keep(pool: Pool, standing: Standing, line: Line) -> Kept | None:
    """Plan the first job of a line: where and when, if nothing ends before its time limit. None: nowhere."""
    job = line.first()
    planned = _plan(pool, standing, line.shape.request)
    if planned is None:
        return None
    starts_at, pieces = planned
    return Kept(
        job=job.id,
        standing=standing,
        line=line,
        pieces=pieces,
        starts_at=starts_at,
    )


def _plan(pool: Pool, standing: Standing, request: Request) -> tuple[int, tuple[Piece, ...]] | None:
    """Let one piece of work end after the other until the request fits, in room and in right."""
    rooms = _Rooms(pool, request)
    use = {level: level.use + request.size for level in standing.levels}
    if rooms.fitting >= request.ranks and all(use[level] <= level.fair for level in use):
        return pool.now, rooms.places()
    for running in sorted(pool.running, key=lambda one: (one.ends_at(pool.now), one.pieces, one.standing.name)):
        for level in running.standing.levels:
            if level in use:
                use[level] -= running.size
        for piece in running.pieces:
            rooms.free(piece)
        if rooms.fitting >= request.ranks and all(use[level] <= level.fair for level in use):
            return running.ends_at(pool.now), rooms.places()
    return None


class _Rooms:
    """How many ranks of one request fit while work ends, kept up to date piece by piece."""

    def __init__(self, pool: Pool, request: Request) -> None:
        self.ledger, self.request = pool.ledger, request
        self.need, self.many = min(request.gpu_milli, WHOLE_DEVICE), request.devices_per_rank
        self.needs_host = bool(request.cpu_milli or request.memory_mib)
        self.room = self.ledger.all_plain_after()
        self.slots = [0] * len(self.ledger.on_node)
        self.hosts = [self.ledger.hosts.after(node) for node in range(len(self.slots))]
        node_of, model, anything = self.ledger.node_of, self.ledger.model, not request.gpu_models
        for at, milli in enumerate(self.room):
            if milli >= self.need and (anything or request.takes(model[at])):
                self.slots[node_of[at]] += milli // self.need
        self.fitting = sum(map(self._ranks_on, range(len(self.slots))))

    def free(self, piece: Piece) -> None:
        """A piece of work has ended."""
        before = self.room[piece.device]
        self.room[piece.device] = before + piece.gpu_milli
        if piece.cpu_milli or piece.memory_mib:
            self._free_host(self.ledger.node_of[piece.device], piece)
        self._count(piece.device, before, before + piece.gpu_milli)

    def _count(self, at: int, before: int, after: int) -> None:
        if not self.request.takes(self.ledger.model[at]):
            return
        slots = max(0, after) // self.need - max(0, before) // self.need
        if slots:
            node = self.ledger.node_of[at]
            self.fitting -= self._ranks_on(node)
            self.slots[node] += slots
            self.fitting += self._ranks_on(node)

    def _free_host(self, node: int, piece: Piece) -> None:
        self.fitting -= self._ranks_on(node)
        cpu, memory = self.hosts[node]
        self.hosts[node] = Host(cpu + piece.cpu_milli, memory + piece.memory_mib)
        self.fitting += self._ranks_on(node)

    def _ranks_on(self, node: int) -> int:
        ranks = self.slots[node] // self.many
        return min(ranks, self.request.fit_beside(self.hosts[node])) if self.needs_host else ranks

    def places(self) -> tuple[Piece, ...]:
        """The fullest devices, or nodes, that take the ranks."""
        takes, model = self.request.takes, self.ledger.model
        fits = [at for at, milli in enumerate(self.room) if milli >= self.need and takes(model[at])]
        spots = self._on_nodes(fits) if self.many > 1 else self._on_devices(fits)
        taken = enumerate(self._beside_each_other(spots)[: self.request.ranks])
        return tuple(piece for rank, spot in taken for piece in rank_pieces(rank, spot, self.request))

    def _beside_each_other(self, spots: list[list[int]]) -> list[list[int]]:
        """The spots, as many of each node as its CPU and memory have room for."""
        left = [self._ranks_on(node) for node in range(len(self.slots))]
        chosen = []
        for spot in spots:
            node = self.ledger.node_of[spot[0]]
            left[node] -= 1
            if left[node] >= 0:
                chosen.append(spot)
        return chosen

    def _on_devices(self, fits: Sequence[int]) -> list[list[int]]:
        order = sorted(fits, key=lambda at: (self.room[at], at))
        return [[at] for at in order for _ in range(self.room[at] // self.need)]

    def _on_nodes(self, fits: Sequence[int]) -> list[list[int]]:
        rooms: dict[int, list[int]] = {}
        for at in fits:
            rooms.setdefault(self.ledger.node_of[at], []).append(at)
        order = sorted(rooms.items(), key=lambda row: (len(row[1]), row[0]))
        many = self.many
        return [row[first : first + many] for _, row in order for first in range(0, len(row) - many + 1, many)]
