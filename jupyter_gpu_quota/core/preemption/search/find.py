"""The search of a preemption: the cheapest legal set of operations that it finds for a claim.

In a small pool, :class:`.CheapestSet` examines every set for all ranks of the claim at once; in a large one the ranks
are placed one after the other (:mod:`.rank_by_rank`). Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from ...placement.place import reserve
from ...queue.pool_state import PoolState, remove_victim
from ...queue.quota_state import NO_LIMIT, Entitlement, Victim
from ..accounting import mark_leaving, subtract_use
from ..department_rules import department_slack, is_department_full
from ..feasibility import is_feasible
from ..movable import may_move_for, movable_work
from ..operations import Kind, Operation, kind_without_pause, ways_to_shrink
from ..result import Preemption
from ..rules import Preemptor
from ..shrinking import replace_parts, shrink
from ..victims import has_protected
from .attempt import Attempt
from .cheapest import CheapestSet, Options
from .first_candidate import find_first_candidate
from .rank_by_rank import place_rank_by_rank
from .room import Found, RoomTest
from .unneeded import drop_unneeded

MAX_EXHAUSTIVE = 12
"""Up to this many candidates every set is examined."""


def find_preemption(pool: PoolState, preemptor: Preemptor) -> Preemption | None:
    """Find room for the whole request on devices that drain already and on those that a legal set of operations frees.

    If found, the pool is changed: the victims' use is subtracted, the pieces are reserved for the preemptor. Returns
    None, and changes nothing, if no legal set was found.
    Rule R41.
    """
    if (found := find_first_candidate(pool, preemptor)) is not None:
        return found
    if not is_feasible(pool, preemptor):
        return None
    for search in _searches(pool, preemptor, include_protected=False):
        if (found := search.run()) is not None:
            return found
    if preemptor.entitlement <= Entitlement.GUARANTEE and has_protected(pool):
        return _of_fewest_protected(_searches(pool, preemptor, include_protected=True))
    return None


def _searches(pool: PoolState, preemptor: Preemptor, *, include_protected: bool) -> Iterator[_Search]:
    """The searches to run in turn: where a quota stopped the one before, more projects may end below theirs."""
    for most_below in (0, 1, NO_LIMIT):
        stopped_at_guarantee = False
        for claim in _scopes(pool, preemptor):
            yield (search := _Search(pool, claim, include_protected, most_below))
            stopped_at_guarantee |= search.attempt.rules.stopped_at_guarantee
        if not stopped_at_guarantee:
            return


def _of_fewest_protected(searches: Iterator[_Search]) -> Preemption | None:
    """The first result with the fewest protected jobs: their number is compared before what ends below its quota."""
    best, least = None, NO_LIMIT
    for search in searches:
        if (count := search.count_protected()) is not None and count < least:
            best, least = search.again(), count
        if least <= 1:
            break
    return best.run() if best is not None else None


def _scopes(pool: PoolState, preemptor: Preemptor) -> Iterator[Preemptor]:
    """The claim with victims under its limit only, then, where its department is full, with any others beside them."""
    yield preemptor
    if preemptor.within is not None and is_department_full(pool, preemptor):
        yield preemptor._replace(within=None)


def find_shrinks(pool: PoolState, preemptor: Preemptor) -> Preemption | None:
    """Find room for a rank of an elastic job within its project's guarantee by shrinking elastic jobs of others alone.

    If found, the pool is changed as by :func:`find_preemption`.
    """
    return _Search(pool, preemptor, False, 0, only_shrinks=True).run()


def find_drain(pool: PoolState, preemptor: Preemptor) -> Preemption | None:
    """Reserve devices for the whole request that work is leaving already, and that nothing else needs.

    If found, the pool is changed as by :func:`find_preemption`.
    """
    return _Search(pool, preemptor, False, 0, only_drains=True).run() if pool.ledger.draining else None


def would_need_protected(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether a preemptor without victims would find some if no job were protected; changes nothing."""
    mark = pool.ledger.mark()
    found = _Search(pool, preemptor, True, NO_LIMIT).find()
    pool.ledger.undo(mark)
    return found is not None


class _Search:
    """One search with one set of rules. ``most_below``: the number of victims' projects that may end below quota.

    Rule R40.
    """

    def __init__(
        self,
        pool: PoolState,
        preemptor: Preemptor,
        include_protected: bool,
        most_below: int,
        *,
        only_shrinks: bool = False,
        only_drains: bool = False,
    ) -> None:
        self.only_shrinks, self.only_drains = only_shrinks, only_drains
        self.pool, self.preemptor, self.ledger = pool, preemptor, pool.ledger
        self.attempt = Attempt(pool, preemptor, include_protected=include_protected, most_below=most_below)

    def run(self) -> Preemption | None:
        """Search; apply the result to the pool."""
        mark = self.ledger.mark()
        found = self.find()
        if found is None:
            self.ledger.undo(mark)
            return None
        self.pool.room_came_back |= self.attempt.is_limited  # the limit kept free room from the preemptor
        concerned = (self.preemptor.project, *(victim.project for victim in found.victims))
        found.used = {level.key: level.use for project in concerned for level in project.levels}
        self._apply_to_pool(found)
        return found

    def count_protected(self) -> int | None:
        """The number of protected jobs of the set that it finds, None without any; changes nothing."""
        mark = self.ledger.mark()
        found = self.find()
        self.ledger.undo(mark)
        touched = () if found is None else (*found.victims, *(move.victim for move in found.moves))
        return None if found is None else len({victim.id for victim in touched if victim.protected})

    def again(self) -> _Search:
        """The same search, from its start."""
        return _Search(self.pool, self.preemptor, self.attempt.include_protected, self.attempt.most_below)

    def _apply_to_pool(self, found: Preemption) -> None:
        shrunk = [*found.shrunk, *found.shrunk_further]
        for victim in found.victims:
            if victim in shrunk:
                replace_parts(victim)
            subtract_use(self.pool, victim)
        for move in found.moves:
            remove_victim(self.pool, move.victim)
            self.pool.stopped.add(move.victim.key)
        for victim in shrunk:
            shrink(self.pool, victim)
        if not self.attempt.notebook:
            self.preemptor.project.add(
                self.preemptor.request.size, self.preemptor.user, preemptible=self.preemptor.preemptible
            )

    def find(self) -> Preemption | None:
        """Its reservations and victims stay in the ledger, found or not."""
        attempt, small, mark = self.attempt, self._options(), self.ledger.mark()
        is_found = small is not None and self._among_few(small)
        if small is None or (not is_found and self._was_cut_short()):
            is_found = self._among_many()
        if not is_found:
            return None
        borrowed = self._borrows() and not self._place_without_borrowing(mark)
        if borrowed:
            reserve(self.ledger, attempt.pieces, borrowed=False, sign=-1)
            reserve(self.ledger, attempt.pieces, borrowed=True)
        return Preemption(
            preemptor=self.preemptor,
            pieces=tuple(sorted(attempt.pieces)),
            victims=self._in_legal_order(),
            moves=attempt.moves,
            borrowed=borrowed,
            slack_milli=department_slack(attempt.rules),
            ended_early=attempt.ended_early,
        )

    def _borrows(self) -> bool:
        """Whether the claim uses unbooked notebook quota."""
        return self.preemptor.can_borrow and any(self.ledger.plain_after(one.device) < 0 for one in self.attempt.pieces)

    def _place_without_borrowing(self, mark: int) -> bool:
        """Place the claim and the work that moves again without notebook quota, with the same victims.

        ``mark``: of the ledger before the search. Returns whether everything fits.
        """
        attempt, leaving = self.attempt, list(self.attempt.rules.picked.values())
        before = Found(tuple(attempt.pieces), tuple(attempt.moves))
        moving = [move.victim for move in before.moves]
        self.ledger.undo(mark)
        with RoomTest(self.pool, self.preemptor, can_borrow=False, ranks=range(self.preemptor.request.ranks)) as room:
            found = room.find(leaving, moving)
            attempt.ended_early |= room.is_undecided(leaving, moving)
        for victim in leaving:
            mark_leaving(self.pool, victim)
        attempt.place_again(found or before)
        return found is not None

    def _in_legal_order(self) -> list[Victim]:
        """The victims in an order in which each is allowed after those before: the largest of a project last."""
        picked = list(self.attempt.rules.picked.values())
        if len(picked) < 2:
            return picked
        borrowers_first = self.preemptor.entitlement <= Entitlement.GUARANTEE
        total = Counter[str]()
        for one in picked:
            total[one.id] += one.size
        return sorted(picked, key=lambda one: (borrowers_first and not one.borrower, total[one.id], one.order))

    def _was_cut_short(self) -> bool:
        """Whether the bound ended the search among few; a claim does not starve by it."""
        return self.attempt.ended_early and not (self.only_shrinks or self.only_drains)

    def _among_many(self) -> bool:
        mark = self.ledger.mark()
        self.attempt.rules.own_may_lose = 0
        if not place_rank_by_rank(self.attempt):
            return False
        drop_unneeded(self.attempt, mark)
        return True

    # -- a small pool --------------------------------------------------------------------------------------------

    def _options(self) -> Options | None:
        """Everything that may be done, where the candidates are few."""
        candidates = self.attempt.candidates
        if self.only_shrinks or self.only_drains:
            surplus = [one for one in candidates.surplus_of_others() if not one.restarting] if self.only_shrinks else []
            surplus = surplus[:MAX_EXHAUSTIVE]
            return Options(pauses=(), mild=_mild(surplus), moves=())
        if len(self.pool.running) + len(self.pool.reserved) > 4 * MAX_EXHAUSTIVE:
            return None
        self.attempt.rules.own_may_lose = self._own_may_lose()
        mild = _mild(candidates.without_pause())
        pauses = list(islice(candidates.to_pause(), MAX_EXHAUSTIVE + 1))
        protected = self.attempt.include_protected
        moves = movable_work(self.pool, protected=protected) if self.preemptor.only is None else []
        if not may_move_for(self.preemptor) and not pauses and not mild:
            moves = []
        others = {one.id for one in pauses} | {rows[0].victim.id for rows in mild}
        if len(others | {one.id for one in moves}) > MAX_EXHAUSTIVE:
            if may_move_for(self.preemptor) or len(others) > MAX_EXHAUSTIVE:
                return None
            moves = []
        first = len(mild) + len(pauses)
        return Options(
            pauses=[Operation(Kind.PAUSE, one, len(mild) + at) for at, one in enumerate(pauses)],
            mild=mild,
            moves=[Operation(Kind.MOVE, one, first + at) for at, one in enumerate(moves)],
        )

    def _own_may_lose(self) -> int:
        if self.attempt.notebook:
            return 0
        own = self.preemptor.project
        return own.preemptible_use.below(self.preemptor.priority) + own.preemptible_use.elastic

    def _among_few(self, options: Options) -> bool:
        attempt = self.attempt
        with attempt.room_test(range(self.preemptor.request.ranks)) as room:
            search = CheapestSet(options, attempt.rules, room, attempt.is_within_bounds)
            found = search.run()
        attempt.ended_early |= search.ended_early
        if found is not None:
            attempt.apply(found)
        return found is not None


def _mild(victims: Iterable[Victim]) -> list[list[Operation]]:
    """For each victim that need not pause its ways to make room."""
    return [ways_to_shrink(Operation(kind_without_pause(one), one, at)) for at, one in enumerate(victims)]
