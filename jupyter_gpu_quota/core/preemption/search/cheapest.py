"""The cheapest legal set of operations on a few candidates, by examining every set in the order of its cost.

Rules R40 and R47 in docs/scheduling.md. The candidates are all the work of a small pool, or the work on one slot of a
large one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice
from typing import NamedTuple, Protocol

from ...queue.quota_state import Victim
from ..operations import Cost, Kind, Operation, cost_of
from ..rules import PreemptionRules
from .mild_sets import Cached, mild_sets
from .room import Found, RoomTest

MAX_WORK = 12_000
"""Room tests of one search, and :data:`.PLACES_PER_TEST` places each; docs/scheduling.md calls this its bound."""
MAX_MILD = 4096
"""Sets of mild operations that are tried beside one set of pauses."""
MAX_OVERBOOKED = 3
"""Of so much work on devices that are promised to other work, every choice of what moves is tried at once."""


@dataclass(slots=True, kw_only=True, eq=False)
class Options:
    """What may be done. ``mild``: for each candidate its ways to make room that pause and move no job."""

    pauses: Sequence[Operation]
    mild: Sequence[Sequence[Operation]]
    moves: Sequence[Operation]


@dataclass(slots=True, kw_only=True, eq=False)
class LegalSet:
    """The result: operations, and where everything goes."""

    operations: tuple[Operation, ...]
    found: Found
    cost: Cost


class WithinBounds(Protocol):
    """Whether limits hold after this work has left, and the claim may move work (``moves``)."""

    def __call__(self, leaving: Sequence[Victim], *, moves: bool = False) -> bool: ...


class _Leaving(NamedTuple):
    """A legal set without moves: its operations, and all parts of the work that leaves."""

    operations: tuple[Operation, ...]
    victims: list[Victim]
    protected: int


class CheapestSet:
    """One search among a few candidates."""

    def __init__(
        self, options: Options, rules: PreemptionRules, room: RoomTest, is_within_bounds: WithinBounds, *,
        work: int = MAX_WORK,
    ) -> None:  # fmt: skip
        self.options, self.rules, self.room, self.is_within_bounds = options, rules, room, is_within_bounds
        self.most_work, self.short = room.work + work, 0
        self._freed_by_pause = {one.victim.key: self._freed_by([one]) for one in options.pauses}
        self._most_freed_mildly = sum(max(self._freed_by([one]) for one in rows) for rows in options.mild)
        self._is_undecided = False
        """The room of a legal set was not decided."""
        self._sets: dict[frozenset[str], Cached[tuple[Operation, ...]]] = {}
        """The sets of mild operations of all candidates but these."""

    @property
    def ended_early(self) -> bool:
        """Whether a bound ended a part of the search."""
        return self._is_spent() or self._is_undecided or any(sets.ended_early for sets in self._sets.values())

    def _is_spent(self) -> bool:
        return self.room.work >= self.most_work

    def run(self) -> LegalSet | None:
        """The cheapest legal set, None where none makes room or the bound ended the search before one was found."""
        if not (self.options.pauses or self.options.mild or self.options.moves):
            return self._with_nothing()
        if not self._could_fit():
            return None
        self.short = self.room.short_milli() - self._freed_by_moves()
        first = (rows[0] for rows in self.options.mild)
        most = sum(one.victim.protected for one in (*self.options.pauses, *self.options.moves, *first))
        for protected in range(most + 1):
            for count in range(self._fewest_pauses(), len(self.options.pauses) + 1):
                best = self._with_pauses(count, protected)
                if best is not None or self._is_spent():
                    return best
        return None

    def _with_pauses(self, count: int, protected: int) -> LegalSet | None:
        """The cheapest set with so many pauses: those without moves are tried first, since the others cost more."""
        best: LegalSet | None = None
        for moves in (False, True) if self.options.moves else (False,):
            for paused in by_position(self.options.pauses, count):
                best = self._better(paused, protected, best, moves=moves)
                if self._is_spent() or (best is not None and best.cost.only_pauses):
                    return best
            if best is not None:
                return best
        return None

    # -- bounds --------------------------------------------------------------------------------------------------

    def _with_nothing(self) -> LegalSet | None:
        """The empty set, where there is room without any operation."""
        found = self.room.find(()) if self.is_within_bounds(()) else None
        return None if found is None else LegalSet(operations=(), found=found, cost=cost_of(()))

    def _freed_by_moves(self) -> int:
        """What moves free at most where the ranks may go; in a whole pool they take as much elsewhere."""
        is_whole = self.room.devices is None and not self.room.preemptor.request.gpu_models
        return 0 if is_whole else self.room.freed_milli([one.victim for one in self.options.moves])

    def _fewest_pauses(self) -> int:
        """A lower bound of the pauses of any set that makes room."""
        freed, count = self._most_freed_mildly, 0
        for milli in sorted(self._freed_by_pause.values(), reverse=True):
            if freed >= self.short:
                break
            freed, count = freed + milli, count + 1
        return count

    def _freed_by(self, operations: Sequence[Operation]) -> int:
        return self.room.freed_milli(self.rules.with_surplus([one.victim for one in operations]))

    def _could_fit(self) -> bool:
        """Whether the claim fits if everything that may leave leaves: without moves, or with all of them."""
        gone = [one.victim for one in self.options.pauses]
        kept = {victim.id for victim in gone}
        gone += [part for rows in self.options.mild if rows[0].victim.id not in kept for part in most_of(rows)]
        movable = [one for one in self.options.moves if one.victim.id not in kept]
        return self._fits_with_moves(self.rules.with_surplus(gone), movable)

    def _fits_with_moves(self, leaving: Sequence[Victim], movable: Sequence[Operation]) -> bool:
        """Whether the claim fits if all of this work leaves, and some of the other moves; True where the work is spent.

        If some can move, all can: what stays moves to where it is. Not so on a device that is promised to other work.
        """
        movers = [one.victim for one in movable]
        bound = [one for one in movers if self.room.is_overbooked(one)]
        counts = range(len(bound) + 1) if len(bound) <= MAX_OVERBOOKED else (0, 1, len(bound))
        subsets = (combinations(bound, count) for count in counts)
        staying = [tuple(movers), *chain.from_iterable(subsets)]
        return any(
            self._is_spent() or self.room.may_fit(leaving, [one for one in movers if one not in stays])
            for stays in staying
        )

    # -- one set of pauses ---------------------------------------------------------------------------------------

    def _better(
        self, paused: Sequence[Operation], protected: int, best: LegalSet | None, *, moves: bool
    ) -> LegalSet | None:
        """The cheaper of ``best`` and the cheapest set with exactly these pauses and so many protected jobs.

        ``moves``: it moves work, too; else it moves none.
        """
        victims = [one.victim for one in paused]
        freed = sum([self._freed_by_pause[victim.key] for victim in victims])
        if freed + self._most_freed_mildly < self.short or sum([victim.protected for victim in victims]) > protected:
            return best
        if victims and not self.rules.may_be_allowed(victims):
            return best
        gone = frozenset(victim.id for victim in victims)
        legal = Cached(self._legal_sets(paused, gone, freed), MAX_MILD)
        if not moves:
            found = self._cheapest_of(legal, (), protected)
            return best if found is None or (best is not None and best.cost < found.cost) else found
        movable = [one for one in self.options.moves if one.victim.id not in gone]
        if not movable:
            return best
        helped = Cached((one for one in legal if self._may_be_helped(one, movable)), MAX_MILD)
        if next(iter(helped), None) is None:
            return best
        return self._with_moves(helped, movable, protected, best)

    def _with_moves(
        self, legal: Cached[_Leaving], movable: Sequence[Operation], protected: int, best: LegalSet | None
    ) -> LegalSet | None:
        """The cheaper of ``best`` and the cheapest set with moves, the fewest first."""
        needed = self._needed(legal, movable)
        others = [one for one in movable if one not in needed]
        for count in range(max(1, len(needed)), len(movable) + 1):
            if best is not None and best.cost.moves < count:
                return best
            for more in by_position(others, count - len(needed)):
                found = self._cheapest_of(legal, (*needed, *more), protected)
                if found is not None and (best is None or found.cost < best.cost):
                    best = found
                if self._is_spent():
                    return best
        return best

    def _needed(self, legal: Cached[_Leaving], movable: Sequence[Operation]) -> list[Operation]:
        """The work without whose move nothing makes room; only where one set leaves besides."""
        rows = list(islice(legal, 2))
        if len(rows) > 1:
            return []
        leaving = rows[0].victims
        others = ((one, [other for other in movable if other is not one]) for one in movable)
        return [one for one, rest in others if not self._fits_with_moves(leaving, rest)]

    def _may_be_helped(self, one: _Leaving, movable: Sequence[Operation]) -> bool:
        """Whether moves could make room beside this."""
        return self.is_within_bounds(one.victims, moves=True) and self._fits_with_moves(one.victims, movable)

    def _legal_sets(self, paused: Sequence[Operation], gone: frozenset[str], freed: int) -> Iterator[_Leaving]:
        """The legal sets with exactly these pauses that free enough, the cheapest first. The pauses free ``freed``."""
        for chosen in self._mild_without(gone):
            if freed + self._freed_by(chosen) < self.short:
                continue
            operations = (*paused, *chosen)
            leaving = [one.victim for one in operations]
            if leaving and not self.rules.is_allowed(leaving):
                continue
            leaving = list(self.rules.with_surplus(leaving))
            if self.is_within_bounds(leaving):
                yield _Leaving(operations, leaving, sum(one.victim.protected for one in operations))

    def _mild_without(self, gone: frozenset[str]) -> Cached[tuple[Operation, ...]]:
        mild = [rows for rows in self.options.mild if rows[0].victim.id not in gone]
        ids = frozenset(rows[0].victim.id for rows in mild)
        if ids not in self._sets:
            self._sets[ids] = Cached(mild_sets(mild), MAX_MILD)
        return self._sets[ids]

    def _cheapest_of(self, legal: Cached[_Leaving], moved: tuple[Operation, ...], protected: int) -> LegalSet | None:
        """The first of the legal sets that makes room with these moves, and touches exactly so many protected jobs."""
        moving = [one.victim for one in moved]
        left = protected - sum(victim.protected for victim in moving)
        for one in legal:
            if one.protected != left:
                continue
            found = self.room.find(one.victims, moving)
            if found is not None and _takes_over_for_itself(one.operations, found):
                operations = (*one.operations, *moved)
                return LegalSet(operations=operations, found=found, cost=cost_of(operations))
            self._is_undecided |= found is None and self.room.is_undecided(one.victims, moving)
            if self._is_spent():
                return None
        return None


def _takes_over_for_itself(operations: Sequence[Operation], found: Found) -> bool:
    """Whether every reservation that is taken over has a device that the claim gets: none is for work that moves."""
    if not found.moves:
        return True
    devices = {piece.device for piece in found.pieces}
    taken = (one.victim for one in operations if one.kind is Kind.TAKE_OVER)
    return all(any(piece.device in devices for piece in victim.pieces) for victim in taken)


def most_of(ways: Sequence[Operation]) -> tuple[Victim, ...]:
    """More than any of these ways frees: all ranks of an elastic job, because each shrink frees other devices."""
    victim = ways[0].victim
    return (victim,) if victim.base is None else (victim, victim.base)


def by_position(operations: Sequence[Operation], count: int) -> Iterator[tuple[Operation, ...]]:
    """The sets of so many operations, those whose last places are first before others."""
    rows = sorted(operations, key=lambda one: one.position)
    for chosen in sorted(combinations(range(len(rows)), count), key=lambda one: one[::-1]):
        yield tuple(rows[at] for at in chosen)
