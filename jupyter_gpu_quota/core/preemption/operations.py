"""The operations of a preemption, and their cost.

A claim makes room by pausing, shrinking and moving work, and by taking over reserved devices. The cost of a set of
operations is one tuple, compared from the left; docs/scheduling.md, section 4, states it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import combinations
from typing import NamedTuple

from ..placement.place import Piece
from ..queue.quota_state import Victim

MAX_SHRINKS = 64
"""Ways to shrink one elastic job that are tried."""


class Kind(IntEnum):
    """The operations, the mildest first."""

    TAKE_OVER = 0
    """It waits, and loses devices that are reserved for it."""
    END_BORROWING = 1
    SHRINK = 2
    MOVE = 3
    PAUSE = 4


class Operation(NamedTuple):
    """One operation. ``position``: that of its work in the order of R39, 0 first.

    The victim of a shrink is the part that leaves; its ``base`` is the part that stays.
    """

    kind: Kind
    victim: Victim
    position: int

    @property
    def ranks(self) -> int:
        """The ranks that an elastic job gives up by a shrink."""
        return len({piece.rank for piece in self.victim.pieces}) if self.kind is Kind.SHRINK else 0


class Cost(NamedTuple):
    """The cost of a set, compared from the first field: how often each happens, then which work it is."""

    protected: int
    """The protected jobs among those that pause or move."""
    pauses: int
    moves: int
    ranks: int
    """The ranks that elastic jobs give up."""
    borrowers: int
    take_overs: int
    positions: tuple[int, ...]
    """The positions of the operations, the last first."""
    keys: tuple[str, ...]
    """The keys of the victims, in their order."""

    @property
    def only_pauses(self) -> bool:
        """Whether nothing moves, shrinks or leaves without a pause."""
        return not (self.moves or self.ranks or self.borrowers or self.take_overs)

    @property
    def before_keys(self) -> tuple[object, ...]:
        """All but the keys."""
        return self[:-1]


def cost_of(operations: Iterable[Operation]) -> Cost:
    """The cost of a set of operations; which projects end below their quota is compared before (R47)."""
    rows = list(operations)
    kinds = [one.kind for one in rows]
    return Cost(
        sum([one.victim.protected for one in rows]),
        kinds.count(Kind.PAUSE),
        kinds.count(Kind.MOVE),
        sum([one.ranks for one in rows]),
        kinds.count(Kind.END_BORROWING),
        kinds.count(Kind.TAKE_OVER),
        tuple(sorted([one.position for one in rows], reverse=True)),
        tuple(sorted([one.victim.key for one in rows])),
    )


def kind_without_pause(victim: Victim) -> Kind:
    """The operation on work that makes room without a pause."""
    if victim.base is not None:
        return Kind.SHRINK
    return Kind.TAKE_OVER if victim.reserved else Kind.END_BORROWING


def ways_to_shrink(one: Operation) -> list[Operation]:
    """For the part of an elastic job above its minimum the shrinks that are possible, else the operation itself."""
    if one.victim.base is None:
        return [one]
    return [one._replace(victim=part) for part in shrinks_of(one.victim.base)] or [one]


def shrinks_of(base: Victim) -> Iterator[Victim]:
    """The ways to shrink an elastic job: any ranks above its minimum, few first; each the part that leaves.

    ``base``: its minimum, with the part above.
    """
    if base.above is None:
        return
    pieces = sorted((*base.pieces, *base.above.pieces))
    ranks = sorted({piece.rank for piece in pieces})
    most = len({piece.rank for piece in base.above.pieces})
    left = MAX_SHRINKS
    for count in range(1, most + 1):
        for gone in combinations(reversed(ranks), count):
            yield split(base, pieces, frozenset(gone))
            left -= 1
            if not left:
                return


def split(base: Victim, pieces: Iterable[Piece], gone: frozenset[int]) -> Victim:
    """The part of an elastic job with these ranks; its ``base`` is the rest of the job."""
    stays = tuple(piece for piece in pieces if piece.rank not in gone)
    goes = tuple(piece for piece in pieces if piece.rank in gone)
    rest = _part(base, stays)
    above = _part(base, goes)
    above.base, rest.above = rest, above
    if (whole := base.above) is not None:
        above.restarting, above.first_shrink = whole.restarting, whole.first_shrink
    return above


def _part(base: Victim, pieces: tuple[Piece, ...]) -> Victim:
    return Victim(
        id=base.id,
        project=base.project,
        user=base.user,
        size=sum(piece.gpu_milli for piece in pieces),
        pieces=pieces,
        request=base.request,
        preemptible=base.preemptible,
        priority=base.priority,
        lost_ms=base.lost_ms,
        started_at=base.started_at,
        submitted_at=base.submitted_at,
        paused_at=base.paused_at,
        elastic=True,
        borrower=base.borrower,
        protected=base.protected,
    )
