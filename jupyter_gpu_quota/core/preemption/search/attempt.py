"""One attempt of a search: what it has chosen so far, in the ledger and in the rules."""

from __future__ import annotations

from collections.abc import Sequence

from ...placement.place import Piece, reserve
from ...queue.pool_state import PoolState
from ...queue.quota_state import Entitlement, QuotaState, Victim
from ..accounting import mark_leaving
from ..candidates import Candidates
from ..operations import Kind, Operation
from ..result import Move
from ..rules import PreemptionRules, Preemptor
from .cheapest import LegalSet
from .room import Found, RoomTest


class Attempt:
    """``most_below``: the number of victims' projects that may end below their guarantee."""

    def __init__(self, pool: PoolState, preemptor: Preemptor, *, include_protected: bool, most_below: int) -> None:
        self.pool, self.preemptor, self.ledger = pool, preemptor, pool.ledger
        self.include_protected, self.most_below = include_protected, most_below
        self.notebook = preemptor.entitlement is Entitlement.NOTEBOOK
        self.can_borrow = preemptor.can_borrow or self.notebook
        self.ended_early = False
        """The bound on its work ended a part of the search."""
        self.begin()

    def begin(self) -> None:
        """Begin again with nothing chosen; the caller undoes the ledger."""
        self.rules = PreemptionRules(self.pool, self.preemptor, most_below=self.most_below)
        self.candidates = Candidates(self.pool, self.preemptor, self.rules, include_protected=self.include_protected)
        self.operations: list[Operation] = []
        self.pieces: list[Piece] = []
        self.moves: list[Move] = []
        self._moved: set[str] = set()
        self.is_limited = not self.is_within_bounds(())

    def begin_again(self) -> None:
        """:meth:`begin`, after choices that were stopped at a guarantee."""
        stopped = self.rules.stopped_at_guarantee
        self.begin()
        self.rules.stopped_at_guarantee |= stopped

    def is_chosen(self, victim: Victim) -> bool:
        """Whether a victim, or a part of it, stops or moves already."""
        if victim.above is not None and victim.above.key in self.rules.picked:
            return True
        return victim.key in self.rules.picked or victim.key in self._moved

    def room_test(self, ranks: range, devices: Sequence[int] | None = None) -> RoomTest:
        return RoomTest(self.pool, self.preemptor, can_borrow=self.can_borrow, ranks=ranks, devices=devices)

    def apply(self, chosen: LegalSet) -> None:
        """Choose a set: record it in the ledger and the rules."""
        self.operations += chosen.operations
        for one in chosen.operations:
            if one.kind is not Kind.MOVE:
                self.pick(one.victim)
        self.record(chosen.found)

    def pick(self, victim: Victim) -> None:
        """Let a victim stop; an elastic job as a whole with its minimum."""
        for part in self.rules.with_surplus([victim]):
            self.rules.pick(part)
            mark_leaving(self.pool, part)

    def record(self, found: Found) -> None:
        """Reserve what was found for the claim, and for the work that moves."""
        for move in found.moves:
            mark_leaving(self.pool, move.victim)
            reserve(self.ledger, move.pieces, borrowed=False)
        reserve(self.ledger, found.pieces, borrowed=False)
        self.pieces += found.pieces
        self.moves += found.moves
        self._moved.update(move.victim.key for move in found.moves)

    def place_again(self, found: Found) -> None:
        """Reserve other places for the claim and the work that moves; the caller undoes the ledger."""
        self.pieces, self.moves = [], []
        self.record(found)

    def is_within_bounds(self, leaving: Sequence[Victim], *, moves: bool = False) -> bool:
        """Whether limits hold; priority inside a project raises its use no further than it is entitled to.

        ``moves``: work moves for the claim, whose project enters only within its fair share.
        """
        if self.notebook:
            return True
        project, within = self.preemptor.project, self.preemptor.within
        enters = moves and self.preemptor.entitlement is Entitlement.SURPLUS
        for level in project.levels:
            is_bounded = level is within and bool(leaving)
            bound = min(level.ceiling, max(level.use, level.entitled)) if is_bounded else level.ceiling
            bound = min(bound, level.entitled) if enters and level is project else bound
            if not self._is_within(level, bound, leaving):
                return False
        return True

    def _is_within(self, level: QuotaState, bound: int, leaving: Sequence[Victim]) -> bool:
        """Whether the use with the claim, and without the victims, is within a bound."""
        after = level.use + self.preemptor.request.size
        if after <= bound:
            return True
        left = sum(victim.size for victim in (*self.rules.picked.values(), *leaving) if level in victim.project.levels)
        return after - left <= bound
