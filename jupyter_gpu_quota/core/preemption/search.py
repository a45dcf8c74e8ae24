"""The search for victims: the fewest workloads that have to stop so that a preemptor finds room.

Victims of one rank are on one slot (:mod:`.slots`). The search walks the candidates in the order of the contract and
takes the first slot on which an allowed set frees enough; the set is then cut to the victims that are needed.
Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice, product

from ..placement.place import Fit, Piece, place, rank_pieces, reserve
from ..queue.pool_state import PoolState, victim_list
from ..queue.quota_state import NO_LIMIT, Entitlement, QuotaState, Victim
from .accounting import mark_leaving, shrink_to_minimum, subtract_use
from .candidates import Candidates
from .defragmentation import Move, defragment
from .department_rules import department_slack, is_department_full, sibling_victims
from .feasibility import is_feasible
from .rules import PreemptionRules, Preemptor
from .slots import Slots
from .victims import has_protected

MAX_EXHAUSTIVE = 12
"""Up to this many candidates on one slot every subset is tried."""


@dataclass(slots=True, kw_only=True, eq=False)
class Preemption:
    """A result: the victims stop or lose a reserved slot, then the preemptor starts on the pieces."""

    preemptor: Preemptor
    pieces: tuple[Piece, ...]
    victims: list[Victim] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    borrowed: bool = False
    used: dict[str, int] = field(default_factory=dict)
    """The use of each project concerned before the preemption, by name."""
    slack_milli: int = NO_LIMIT
    """The additional use that the preemptor's department may have while all victims stay legal."""

    @property
    def shrunk(self) -> list[Victim]:
        """The victims that are the part of an elastic job above its minimum, where the minimum stays."""
        if not any(victim.base for victim in self.victims):
            return []
        gone = {victim.id for victim in self.victims if victim.base is None}
        return [victim for victim in self.victims if victim.base is not None and victim.id not in gone]


def find_preemption(pool: PoolState, preemptor: Preemptor) -> Preemption | None:
    """Find room for the whole request on devices that drain already and on those of the fewest victims.

    If found, the pool is changed: the victims' use is subtracted, the pieces are reserved for the preemptor. Returns
    None, and changes nothing, if no allowed set of victims frees enough.
    Rule R32.
    """
    if not is_feasible(pool, preemptor):
        return None
    for search in _searches(pool, preemptor):
        found = search.run()
        if found is not None:
            return found
    return None


_SEARCH_MODES = ((False, False), (False, True), (True, False))
"""(A project may end below its guarantee, sets are tried for all ranks together); rules are relaxed last."""


def _searches(pool: PoolState, preemptor: Preemptor) -> Iterator[_Search]:
    """The searches to try in turn, a wider one only where the earlier ones show that it may find more. Rule R37."""
    at_limit = preemptor.within is not None and preemptor.within.is_department
    protects = preemptor.entitlement <= Entitlement.GUARANTEE and has_protected(pool)
    guarantee_binds = False
    for include_protected, (below_guarantee, thorough) in product(
        (False, True) if protects else (False,), _SEARCH_MODES
    ):
        if thorough and not at_limit and not (guarantee_binds and preemptor.request.ranks > 1):
            continue
        if below_guarantee and not guarantee_binds:
            continue
        for siblings_first in (False, True) if is_department_full(pool, preemptor) else (False,):
            search = _Search(
                pool,
                replace(preemptor, within=None) if siblings_first else preemptor,
                include_protected,
                below_guarantee,
                siblings_first=siblings_first,
                thorough=thorough,
            )
            yield search
            guarantee_binds |= search.rules.stopped_at_guarantee or bool(search.moves)


def would_need_protected(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether a preemptor without victims would find some if no job were protected; changes nothing."""
    mark = pool.ledger.mark()
    found = _Search(pool, preemptor, True, True).find()
    pool.ledger.undo(mark)
    return found is not None


class _Search:
    """One walk over the candidates.

    ``below_guarantee``: a victim's project may end below its guarantee. ``siblings_first``: projects of the preemptor's
    department lose something first, until its entitlement holds against other departments, too. ``thorough``: sets are
    tried for all ranks together, for a limit; otherwise each rank takes the first slot that the order has for it.
    """

    def __init__(
        self,
        pool: PoolState,
        preemptor: Preemptor,
        include_protected: bool,
        below_guarantee: bool,
        *,
        siblings_first: bool = False,
        thorough: bool = False,
    ) -> None:
        self.pool, self.preemptor, self.ledger = pool, preemptor, pool.ledger
        self.include_protected, self.below_guarantee = include_protected, below_guarantee
        self.siblings_first, self.thorough = siblings_first, thorough
        self.notebook = preemptor.entitlement is Entitlement.NOTEBOOK
        self.can_borrow = preemptor.can_borrow or self.notebook
        self.slots = Slots(pool.ledger, preemptor, can_borrow=self.can_borrow)
        self.per_rank = self.slots.per_rank
        self.rules = PreemptionRules(pool, preemptor, below_guarantee=below_guarantee)
        self.candidates = Candidates(pool, preemptor, self.rules, include_protected=include_protected)
        self.picked = self.rules.picked
        self.pieces: list[Piece] = []
        self.moves: list[Move] = []
        self.moved = set[str]()
        """The keys of the work that moves."""
        self.rank = 0
        """The number of ranks that have a slot."""
        self.is_limited = not self._is_under_limits()
        self.seen_at: dict[int, list[Victim]] = defaultdict(list)
        """The candidates seen so far, by slot."""

    def run(self) -> Preemption | None:
        """Search; apply the result to the pool."""
        mark = self.ledger.mark()
        found = self.find()
        if found is None:
            self.ledger.undo(mark)
            return None
        self.pool.room_came_back |= self.is_limited  # the limit kept free room from the preemptor
        concerned = (self.preemptor.project, *(victim.project for victim in found.victims))
        found.used = {project.name: project.use for project in concerned}
        for victim in found.victims:
            subtract_use(self.pool, victim)
        for move in found.moves:
            victim_list(self.pool, move.victim).remove(move.victim)
        for victim in found.shrunk:
            assert victim.base is not None, "what is above a minimum has one"
            shrink_to_minimum(self.pool, victim.base)
        if not self.notebook:
            self.preemptor.project.add(self.preemptor.request.size, self.preemptor.user, fixed=self.preemptor.fixed)
        return found

    def find(self) -> Preemption | None:
        """Place the ranks one by one. Its reservations and picked victims stay in the ledger, found or not."""
        mark = self.ledger.mark()
        if self.siblings_first and not self._pick_siblings():
            return None
        while self._has_unplaced_ranks() and self._is_under_limits() and self._place_without_victims():
            pass
        if not self._has_unplaced_ranks() and self.preemptor.own_only and not self.notebook:
            return None  # without victims it waits for a drain, like any other job
        if self.thorough:
            self._pick_for_all_ranks()
        else:
            self._walk(self.candidates.before_defragmentation())
            self._defragment()
            self._walk(self.candidates.after_defragmentation())
        if self._has_unplaced_ranks():
            return None
        if self.is_limited and len(self.picked) > 1 and not (self.siblings_first or self.moves):
            self._restore_unneeded(mark)
        borrowed = self.preemptor.can_borrow and any(self.ledger.plain_after(piece.device) < 0 for piece in self.pieces)
        if borrowed:
            reserve(self.ledger, self.pieces, borrowed=False, sign=-1)
            reserve(self.ledger, self.pieces, borrowed=True)
        return Preemption(
            preemptor=self.preemptor,
            pieces=tuple(self.pieces),
            victims=self._in_legal_order(),
            moves=self.moves,
            borrowed=borrowed,
            slack_milli=department_slack(self.rules),
        )

    def _pick_siblings(self) -> bool:
        """Pick the fewest siblings, in order, that let the preemptor take from other departments."""
        siblings = (
            victim
            for victim in chain(self.candidates.before_defragmentation(), self.candidates.after_defragmentation())
            if self.rules.is_sibling(victim.project) and victim.project is not self.preemptor.project
        )
        chosen = sibling_victims(self.rules, siblings)
        self._pick(chosen or ())
        return chosen is not None

    def _in_legal_order(self) -> list[Victim]:
        """The victims in an order in which each is allowed after those before: the largest of a project last."""
        if len(self.picked) < 2:
            return list(self.picked.values())
        borrowers_first = self.preemptor.entitlement <= Entitlement.GUARANTEE
        total = Counter[str]()
        for one in self.picked.values():
            total[one.id] += one.size
        return sorted(
            self.picked.values(),
            key=lambda one: (borrowers_first and not one.borrower, total[one.id], one.order),
        )

    def _has_unplaced_ranks(self) -> bool:
        return self.rank < self.preemptor.request.ranks

    def _place_without_victims(self) -> bool:
        request = self.preemptor.request
        if request.ranks > 1 or self.thorough:
            fit = place(self.ledger, request._replace(ranks=1), borrowed=self.can_borrow)
            if isinstance(fit, Fit):
                self._reserve([piece.device for piece in fit.pieces])
                return True
        slots = self.slots
        for slot in sorted({slots.of(at) for at in self.ledger.draining if slots.accepts(at)}):
            room = slots.room(slot, ())
            if len(room) >= self.per_rank:
                self._reserve(room)
                return True
        return False

    def _defragment(self) -> None:
        """Clear slots by moving work, if the preemptor may take from any project."""
        may_move = (
            self.preemptor.within is None
            and self.preemptor.only is None
            and not self.include_protected
            and not self.below_guarantee
        )
        if not may_move or self.preemptor.request in self.pool.unmovable:
            return
        while self._has_unplaced_ranks() and self.pool.searches_left:
            self.pool.searches_left -= 1
            cleared = defragment(self.pool, self.preemptor.request, self.moved | self.picked.keys())
            if cleared is None:
                self.pool.unmovable.add(self.preemptor.request)
                return
            self.moves += cleared.moves
            self.moved |= {move.victim.key for move in cleared.moves}
            self._reserve(cleared.devices)

    def _walk(self, candidates: Iterator[Victim]) -> None:
        if not self._has_unplaced_ranks():
            return
        seen_at, freed, need = self.seen_at, self.slots.freed, self.per_rank * self.slots.need
        for victim in candidates:
            if self.moved and victim.key in self.moved:
                continue
            for slot, milli in self.slots.freed_by(victim):
                seen_at[slot].append(victim)
                freed[slot] += milli
                while freed[slot] >= need and self._has_unplaced_ranks() and self._place_with_victims(slot):
                    pass
            if not self._has_unplaced_ranks():
                return

    def _place_with_victims(self, slot: int) -> bool:
        """Place one rank on a slot if an allowed set of the candidates seen there frees enough."""
        candidates = [
            victim for victim in self.seen_at[slot] if victim.key not in self.picked and victim.key not in self.moved
        ]
        room = self._room(slot, candidates)
        if len(room) < self.per_rank:
            return False
        chosen: list[Victim] | None
        if len(candidates) == 1 and self.rules.is_allowed(candidates) and self._is_within_bounds(candidates):
            chosen = candidates
        else:
            chosen = self._in_order(slot, candidates)
            if chosen is None and len(candidates) <= MAX_EXHAUSTIVE:
                chosen = self._exhaustively(slot, candidates)
        if chosen is None:
            return False
        self._pick(chosen)
        self._reserve(room if chosen is candidates else self._room(slot, ()))
        return True

    def _in_order(self, slot: int, candidates: Sequence[Victim]) -> list[Victim] | None:
        """Add candidates in order until they suffice, then drop those that are not needed, the last first.

        A sibling may be a victim for the entitlement that its loss gives, and not for its room.
        """
        chosen: list[Victim] = []
        for victim in candidates:
            if self.rules.is_allowed([*chosen, victim]):
                chosen.append(victim)
                if self._suffices(slot, chosen):
                    break
        else:
            return None
        for victim in reversed(chosen[:-1]):
            without = [other for other in chosen if other is not victim]
            if self._suffices(slot, without) and self.rules.is_allowed(without):
                chosen = without
        return chosen

    def _exhaustively(self, slot: int, candidates: Sequence[Victim]) -> list[Victim] | None:
        """The smallest allowed subset that suffices; every such set contains the candidates in ``core``."""
        core = [
            victim
            for victim in candidates
            if not self._suffices(slot, [other for other in candidates if other is not victim])
        ]
        if core and not self.rules.is_allowed(core, assume_entitled=True):
            return None
        rest = [victim for victim in candidates if victim not in core]
        for count in range(len(rest) + 1):
            for more in combinations(rest, count):
                if self._suffices(slot, [*core, *more]) and self.rules.is_allowed([*core, *more]):
                    return [*core, *more]
        return None

    # -- sets for all ranks together -----------------------------------------------------------------------------

    def _pick_for_all_ranks(self) -> None:
        """Victims for several ranks at once: with few candidates every allowed set is tried, the first in order."""
        candidates = chain(self.candidates.before_defragmentation(), self.candidates.after_defragmentation())
        few = list(islice((one for one in candidates if one.key not in self.picked), MAX_EXHAUSTIVE + 1))
        if len(few) > MAX_EXHAUSTIVE or not self._makes_room(few):
            return
        chosen = self._first_set([], few)
        if chosen is not None:
            self._pick(self._only_needed(chosen))
            self._place_remaining_ranks()

    def _first_set(self, chosen: list[Victim], candidates: Sequence[Victim]) -> list[Victim] | None:
        for at, victim in enumerate(candidates):
            more = [*chosen, victim]
            if not self.rules.is_allowed(more):
                continue
            if self._makes_room(more):
                return more
            if (found := self._first_set(more, candidates[at + 1 :])) is not None:
                return found
        return None

    def _only_needed(self, chosen: Sequence[Victim]) -> Sequence[Victim]:
        """The chosen victims without those that are not needed, the last in order removed first."""
        for victim in reversed(chosen):
            without = [other for other in chosen if other is not victim]
            if self.rules.is_allowed(without) and self._makes_room(without):
                chosen = without
        return chosen

    def _restore_unneeded(self, mark: int) -> None:
        """Restore the victims that only this slot needs: a limit may need fewer, on other slots."""
        picked, pieces, rank = list(self.picked.values()), self.pieces, self.rank
        self.ledger.undo(mark)
        self.rules = PreemptionRules(self.pool, self.preemptor, below_guarantee=self.below_guarantee)
        self.picked, self.pieces, self.rank, self.thorough = self.rules.picked, [], 0, True
        fewer = self._only_needed(picked)
        self._pick(fewer)
        if len(fewer) < len(picked):
            self._place_remaining_ranks()
        else:
            reserve(self.ledger, pieces, borrowed=False)
            self.pieces, self.rank = pieces, rank

    def _makes_room(self, chosen: Sequence[Victim]) -> bool:
        """Whether all ranks find room after these victims have left; changes nothing."""
        leaving, request = self.rules.with_surplus(chosen), self.preemptor.request
        short = (request.ranks - self.rank) * request.gpu_milli - self.ledger.all_after(borrowed=True)
        if sum(one.size for one in leaving) < short:
            return False
        mark, pieces, rank = self.ledger.mark(), list(self.pieces), self.rank
        for victim in leaving:
            mark_leaving(self.pool, victim)
        self._place_remaining_ranks()
        fits = not self._has_unplaced_ranks() and self._is_within_bounds(leaving)
        self.ledger.undo(mark)
        self.pieces, self.rank = pieces, rank
        return fits

    def _place_remaining_ranks(self) -> None:
        while self._has_unplaced_ranks() and self._place_without_victims():
            pass

    # -- bounds --------------------------------------------------------------------------------------------------

    def _suffices(self, slot: int, leaving: Sequence[Victim]) -> bool:
        return len(self._room(slot, leaving)) >= self.per_rank and self._is_within_bounds(leaving)

    def _room(self, slot: int, leaving: Sequence[Victim]) -> list[int]:
        return self.slots.room(slot, self.rules.with_surplus(leaving))

    def _is_within_bounds(self, leaving: Sequence[Victim]) -> bool:
        """Whether limits hold; priority inside a project must not raise its use above the fair share either."""
        if self.notebook:
            return True
        bounds = [
            (level, min(level.ceiling, max(level.use, level.fair)) if level is self.preemptor.within else level.ceiling)
            for level in self.preemptor.project.levels
        ]
        return all(self._is_within(level, bound, leaving) for level, bound in bounds)

    def _is_under_limits(self) -> bool:
        levels = self.preemptor.project.levels
        return self.notebook or all(self._is_within(level, level.ceiling, ()) for level in levels)

    def _is_within(self, level: QuotaState, bound: int, leaving: Sequence[Victim]) -> bool:
        """Whether the use with the placed ranks and the next one, and without the victims, is within a bound."""
        request = self.preemptor.request
        after = level.use + min(self.rank + 1, request.ranks) * request.gpu_milli
        if after <= bound:
            return True
        left = sum(victim.size for victim in (*self.picked.values(), *leaving) if level in victim.project.levels)
        return after - left <= bound

    def _reserve(self, devices: Sequence[int]) -> None:
        """Reserve one rank on these devices."""
        pieces = rank_pieces(self.rank, devices[: self.per_rank], self.preemptor.request)
        reserve(self.ledger, pieces, borrowed=False)
        self.pieces += pieces
        self.rank += 1

    def _pick(self, chosen: Sequence[Victim]) -> None:
        """Pick these victims, elastic jobs with what they have above their minimum."""
        for victim in self.rules.with_surplus(chosen):
            self.rules.pick(victim)
            mark_leaving(self.pool, victim)
