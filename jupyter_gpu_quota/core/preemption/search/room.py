"""The room test: whether a claim, and the work that moves for it, find devices when other work has left.

Ranks are placed one after the other, the largest first, with backtracking. In a small pool every distinct place is
tried, so that the answer is exact within :data:`MAX_PLACES_OF_FEW`; in a large one the claim's slots are given, and
work that moves tries the devices that are freed, then the place that the placement would choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ...placement.place import Piece, Request, rank_pieces
from ...queue.pool_state import PoolState
from ...queue.quota_state import Victim
from ..result import Move
from ..rules import Preemptor
from ..slots import room_after
from .ledger_rooms import LedgerRooms
from .node_rooms import Claimant, NodeRooms

SMALL_POOL = 64
"""Up to this many devices all are tried."""
MAX_PLACES = 400
"""Places that one test tries."""
FEW_RANKS, MAX_PLACES_OF_FEW = 64, 10_000
"""The same in a small pool for so few ranks: enough that hardly any test ends without an answer."""
PLACES_PER_TEST = 20
"""So many places count as one more test in the work of a search."""
DEVICES_PER_PLACE = 4
"""So many devices that work leaves count as one more place in a large pool, where each place reads all of them."""


class Found(NamedTuple):
    """The pieces of the claim's ranks, and the moves that make room for them."""

    pieces: tuple[Piece, ...]
    moves: tuple[Move, ...]


class _Rank(NamedTuple):
    """One rank to place; ``owner`` 0 is the claim, others are the work that moves."""

    owner: int
    rank: int
    request: Request

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.request, self.owner == 0)


_Question = tuple[frozenset[Victim], tuple[Victim, ...]]
"""What leaves, and what moves."""


class Rooms(Protocol):
    """Rooms that work leaves and takes, on the ledger or beside it."""

    def leave(self, victims: Iterable[Victim]) -> None:
        """Let work leave."""

    def take(self, pieces: Iterable[Piece]) -> None:
        """Let pieces come."""

    def mark(self) -> Any:
        """A point that :meth:`undo` can go back to."""

    def undo(self, mark: Any) -> None:
        """Undo every change since the mark."""

    def places(self, claimant: Claimant) -> list[list[int]]:
        """The distinct places for a rank, those with least room left over first."""


class RoomTest:
    """Room for some ranks of one claim, for as long as the ledger does not change: a context manager.

    ``devices``: those that the claim may use; None for any that it accepts.
    """

    def __init__(
        self, pool: PoolState, preemptor: Preemptor, *, can_borrow: bool, ranks: range,
        devices: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.pool, self.preemptor, self.can_borrow = pool, preemptor, can_borrow
        self.ranks, self.devices = ranks, devices
        self.is_small = len(pool.ledger.devices) <= SMALL_POOL
        self._known: dict[_Question, Found | None] = {}
        self._undecided: set[_Question] = set()
        self.work = 0
        """Tests made, and the places tried in them."""

    def __enter__(self) -> RoomTest:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.search_work += self.work
        if "_node_rooms" in self.__dict__:
            self._node_rooms.release_references()

    @cached_property
    def _node_rooms(self) -> NodeRooms:
        """The nodes of the given devices; in a small pool all nodes."""
        ledger = self.pool.ledger
        usable = range(len(ledger.devices)) if self.devices is None else self.devices
        nodes = dict.fromkeys(ledger.node_of if self.is_small else (ledger.node_of[at] for at in usable))
        return NodeRooms(ledger, self.preemptor, usable, nodes, can_borrow=self.can_borrow)

    @cached_property
    def _ledger_rooms(self) -> LedgerRooms:
        return LedgerRooms(self.pool, self.preemptor, self.devices, can_borrow=self.can_borrow)

    def short_milli(self) -> int:
        """What the ranks lack on the devices that they may use, if any part of these would do; 0 or less: nothing."""
        ledger, request, only = self.pool.ledger, self.preemptor.request, self.preemptor.only
        after = room_after(ledger, self.preemptor.entitlement, can_borrow=self.can_borrow)
        devices = range(len(ledger.devices)) if self.devices is None else self.devices
        usable = (at for at in devices if request.accepts(ledger.model[at]) and (only is None or at in only))
        return len(self.ranks) * request.gpu_milli - sum(max(0, after(at)) for at in usable)

    def freed_milli(self, victims: Iterable[Victim]) -> int:
        """What these victims have on the devices that the ranks may use."""
        pieces = (piece for victim in victims for piece in victim.pieces)
        if self.devices is not None:
            pieces = (piece for piece in pieces if piece.device in self.devices)
        return sum(piece.gpu_milli for piece in pieces)

    def is_overbooked(self, victim: Victim) -> bool:
        """Whether more than fits is promised to other work where this work runs, so that it could not move there."""
        ledger = self.pool.ledger
        return any(
            ledger.plain_after(piece.device) < 0 or ledger.is_overfull(ledger.node_of[piece.device])
            for piece in victim.pieces
        )

    def find(self, leaving: Sequence[Victim], moving: Sequence[Victim] = ()) -> Found | None:
        """Where everything goes when this work has left; changes nothing. ``leaving``: all parts of elastic jobs."""
        key = frozenset(leaving), tuple(moving)
        if key not in self._known:
            self.work += 1
            self._known[key] = self._find(leaving, moving)
        return self._known[key]

    def may_fit(self, leaving: Sequence[Victim], moving: Sequence[Victim] = ()) -> bool:
        """Whether :meth:`find` finds devices, or its bound ended it."""
        return self.find(leaving, moving) is not None or self.is_undecided(leaving, moving)

    def is_undecided(self, leaving: Sequence[Victim], moving: Sequence[Victim]) -> bool:
        """Whether the bound ended :meth:`find` without an answer."""
        return (frozenset(leaving), tuple(moving)) in self._undecided

    def _find(self, leaving: Sequence[Victim], moving: Sequence[Victim]) -> Found | None:
        ranks = [_Rank(0, rank, self.preemptor.request) for rank in self.ranks]
        for owner, victim in enumerate(moving, 1):
            ranks += [_Rank(owner, rank, victim.request) for rank in sorted({piece.rank for piece in victim.pieces})]
        ranks.sort(key=lambda one: (-one.request.gpu_milli, one.owner, one.rank))
        rooms: Rooms = self._ledger_rooms
        if self.is_small or self.devices is not None:
            if len(ranks) > 1 and not self._could_hold(ranks, leaving, moving):
                return None
            rooms = self._node_rooms if self.is_small or not moving else rooms
        mark = rooms.mark()
        rooms.leave((*leaving, *moving))
        places = MAX_PLACES_OF_FEW if self.is_small and len(ranks) <= FEW_RANKS else MAX_PLACES
        placing = _Placing(rooms, ranks, len(moving) + 1, places)
        reads = len(self.pool.ledger.draining) if rooms is self._ledger_rooms else 0
        pieces = placing.run()
        rooms.undo(mark)
        self.work += (places - placing.places_left) * (1 + reads // DEVICES_PER_PLACE) // PLACES_PER_TEST
        if pieces is None:
            if placing.places_left < 0:
                self._undecided.add((frozenset(leaving), tuple(moving)))
            return None
        moves = (Move(victim, tuple(sorted(pieces[at]))) for at, victim in enumerate(moving, 1))
        return Found(tuple(sorted(pieces[0])), tuple(moves))

    def _could_hold(self, ranks: Sequence[_Rank], leaving: Sequence[Victim], moving: Sequence[Victim]) -> bool:
        """Whether there is room for the ranks of each request alone: an upper bound, without placing them."""
        rooms = self._node_rooms
        mark = rooms.mark()
        rooms.leave((*leaving, *moving))
        counted = Counter(one.claimant for one in ranks if self.is_small or one.owner == 0)
        could = all(rooms.slots(claimant) >= count for claimant, count in counted.items())
        rooms.undo(mark)
        return could


class _Placing:
    """Places ranks one after the other, with backtracking; ``owners``: the number of owners of the ranks.

    ``places``: the number of places that it tries at most.
    """

    def __init__(self, rooms: Rooms, ranks: Sequence[_Rank], owners: int, places: int) -> None:
        self.rooms, self.ranks = rooms, ranks
        self.pieces: list[list[Piece]] = [[] for _ in range(owners)]
        self.places_left = places

    def run(self) -> list[list[Piece]] | None:
        """The pieces of each owner."""
        return self.pieces if self._place_from(0) else None

    def _place_from(self, at: int) -> bool:
        if at == len(self.ranks):
            return True
        one = self.ranks[at]
        pieces = self.pieces[one.owner]
        for devices in self.rooms.places(one.claimant):
            self.places_left -= 1
            if self.places_left < 0:
                return False
            mark, found = self.rooms.mark(), rank_pieces(one.rank, devices, one.request)
            self.rooms.take(found)
            pieces += found
            if self._place_from(at + 1):
                return True
            del pieces[-len(found) :]
            self.rooms.undo(mark)
        return False
