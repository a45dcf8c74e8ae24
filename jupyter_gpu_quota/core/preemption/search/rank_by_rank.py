"""The search in a large pool: the ranks of a claim are placed one after the other.

The search walks the candidates in the order of R39, and examines the sets on the slots where those seen free enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from ...placement.place import Fit, place, rank_pieces
from ...queue.quota_state import Victim
from ..department_rules import is_department_full, sibling_victims
from ..movable import may_move_for, movable_on, slots_to_clear
from ..operations import Cost, Kind, Operation, cost_of, kind_without_pause, ways_to_shrink
from ..slots import Slots
from .attempt import Attempt
from .cheapest import CheapestSet, LegalSet, Options
from .room import Found

MAX_CANDIDATES = 12
"""On one slot: with more, those that suffice are taken in order."""
MAX_WORK = 200
"""Work of the search on one slot: room tests, and the places tried in them."""
LOOK_AHEAD = 32
"""After a slot that needs several pauses, so many further candidates are seen for one that needs fewer."""


def place_rank_by_rank(attempt: Attempt) -> bool:
    """Place all ranks; first as it is, then with the victims that a limit or a department needs."""
    mark = attempt.ledger.mark()
    if _RankByRank(attempt).run():
        return True
    attempt.ledger.undo(mark)
    if not (attempt.is_limited or is_department_full(attempt.pool, attempt.preemptor)):
        return False
    attempt.begin_again()
    return _pick_first(attempt) and _RankByRank(attempt).run()


def _pick_first(attempt: Attempt) -> bool:
    """Pick the fewest victims, in order, that bring a limit or the department's entitlement within reach."""
    candidates = chain(attempt.candidates.without_pause(), attempt.candidates.to_pause())
    rules, own = attempt.rules, attempt.preemptor.project
    if is_department_full(attempt.pool, attempt.preemptor):
        siblings = (one for one in candidates if rules.is_sibling(one.project) and one.project is not own)
        chosen = sibling_victims(rules, siblings)
    else:
        chosen = _for_limit(attempt, candidates)
    for at, victim in enumerate(chosen or ()):
        attempt.pick(victim)
        attempt.operations.append(Operation(Kind.PAUSE, victim, at))
    return chosen is not None


def _for_limit(attempt: Attempt, candidates: Iterator[Victim]) -> list[Victim] | None:
    chosen = list[Victim]()
    for victim in candidates:
        if attempt.rules.is_allowed([*chosen, victim]):
            chosen.append(victim)
        if attempt.is_within_bounds(chosen):
            break
    else:
        return None
    for victim in reversed(chosen[:-1]):
        without = [one for one in chosen if one is not victim]
        if attempt.is_within_bounds(without) and attempt.rules.is_allowed(without):
            chosen = without
    return chosen


class _Examined(NamedTuple):
    """The result on one slot, and when it was computed; ``found`` None: no set there is legal and makes room."""

    found: LegalSet | None
    seen: int
    """The number of candidates that had been seen on the slot."""
    chosen: int
    """The number of victims that had been picked."""
    changes: int
    """The changes of the ledger until then."""
    may_move: bool


class _RankByRank:
    """One walk over the candidates."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.pool, self.ledger = attempt, attempt.pool, attempt.ledger
        self.preemptor, self.rules = attempt.preemptor, attempt.rules
        self.slots = Slots(self.ledger, self.preemptor, can_borrow=attempt.can_borrow)
        self.seen_at: dict[int, list[Operation]] = defaultdict(list)
        self.frees_at: dict[int, list[int]] = defaultdict(list)
        """What each candidate seen at a slot frees there, in milli-GPU."""
        self.seen = 0
        self.examined: dict[int, _Examined] = {}
        self.ready: list[tuple[Cost, int]] = []
        """A heap of the unused slots that the walk has passed, with a lower bound of the cost there."""
        self.changed_at: dict[int, int] = {}
        """The number of changes of the ledger when a slot changed last."""
        self.read = self.ledger.changes
        self.was_cut_short = False
        """The bound on its work ended the last search on a slot."""

    def run(self) -> bool:
        candidates = self.attempt.candidates
        mild, pauses = candidates.without_pause(), candidates.to_pause()
        walk = chain(((one, False) for one in mild), ((one, True) for one in pauses))
        return all(
            self._place_free(rank) or self._place_by_walk(rank, walk) for rank in range(self.preemptor.request.ranks)
        )

    def _place_free(self, rank: int) -> bool:
        """Place a rank without further operations, on devices that drain or, for a later rank, on free ones."""
        if not self.attempt.is_within_bounds(()):
            return False
        draining = self.ledger.draining
        for slot in sorted({self.slots.of(at) for at in draining if self.slots.accepts(at)}) if draining else ():
            room = self.slots.room(slot, ())[: self.slots.per_rank]
            if len(room) == self.slots.per_rank:
                self.attempt.record(Found(tuple(rank_pieces(rank, room, self.preemptor.request)), ()))
                return True
        if rank or self.attempt.operations or self.preemptor.request.ranks > 1:
            fit = place(self.ledger, self.preemptor.request._replace(ranks=1), borrowed=self.attempt.can_borrow)
            if isinstance(fit, Fit) and all(self.slots.accepts(piece.device) for piece in fit.pieces):
                return self._take(rank, [piece.device for piece in fit.pieces])
        return False

    def _take(self, rank: int, devices: Sequence[int]) -> bool:
        with self.attempt.room_test(range(rank, rank + 1), devices) as room:
            found = room.find(())
        if found is not None:
            self.attempt.record(found)
        return found is not None

    def _place_by_walk(self, rank: int, walk: Iterator[tuple[Victim, bool]]) -> bool:
        """Place a rank on the slot where the candidates seen so far, and a few more, make room at least cost."""
        best, ahead = self._cheapest_ready(), 0
        for victim, is_pause in walk:
            if is_pause and best is None:
                best = self._by_moves()
            for slot in self._see(victim, is_pause=is_pause):
                least = None if best is None else self._least_cost(slot)
                if best is not None and least is not None and least.before_keys >= best.cost.before_keys:
                    heappush(self.ready, (least, slot))
                elif (found := self._on_slot(slot)) is not None:
                    heappush(self.ready, (found.cost, slot))
                    best = found if best is None or found.cost < best.cost else best
            if best is not None and (best.cost.pauses <= 1 or ahead >= LOOK_AHEAD):
                break
            ahead += best is not None
        best = self._by_moves() if best is None else best
        if best is not None:
            self.attempt.apply(_for_rank(rank, best))
        return best is not None

    # -- the slots that were passed ------------------------------------------------------------------------------

    def _cheapest_ready(self) -> LegalSet | None:
        """The cheapest set on the unused slots that the walk has passed."""
        self._look_again()
        while self.ready:
            cost, slot = self.ready[0]
            one = self._on_slot(slot)
            if one is None:
                heappop(self.ready)
            elif one.cost == cost:
                return one
            else:
                heapreplace(self.ready, (one.cost, slot))
        return None

    def _look_again(self) -> None:
        """Examine the slots again whose sets may have become cheaper: those that changed, or all."""
        changed = self._note_changes()
        if not self.ready:
            return
        slots = dict.fromkeys(slot for _, slot in self.ready)
        if not self._only_gets_dearer() or self._may_move():
            self.ready = []
        else:
            slots = dict.fromkeys(slot for slot in slots if slot in changed)
        for slot in slots:
            if (one := self._on_slot(slot)) is not None:
                heappush(self.ready, (one.cost, slot))

    def _only_gets_dearer(self) -> bool:
        """Whether a further choice makes no set legal that was not."""
        own = self.preemptor.project
        return own.parent is None and own not in self.rules.losses_so_far and not self.attempt.is_limited

    def _note_changes(self) -> set[int]:
        """The slots that changed since the last call."""
        if self.read == self.ledger.changes:
            return set()
        changed = self.slots.changed_since(self.read)
        self.read = self.ledger.changes
        self.changed_at.update(dict.fromkeys(changed, self.read))
        return changed

    # -- one slot ------------------------------------------------------------------------------------------------

    def _see(self, victim: Victim, *, is_pause: bool) -> list[int]:
        """Note a candidate at its slots; the slots where enough may be free now."""
        self.seen += 1
        kind = Kind.PAUSE if is_pause else kind_without_pause(victim)
        need, slots = self.slots.per_rank * self.slots.need, list[int]()
        for slot, milli in self.slots.freed_by(victim):
            self.seen_at[slot].append(Operation(kind, victim, self.seen))
            self.frees_at[slot].append(milli)
            self.slots.freed[slot] += milli
            if self.slots.freed[slot] >= need:
                slots.append(slot)
        return slots

    def _on_slot(self, slot: int) -> LegalSet | None:
        """The cheapest set of the operations seen on one slot that makes room for one rank there."""
        self._note_changes()
        known = self.examined.get(slot)
        if known is None or not self._is_current(slot, known):
            seen, chosen, may_move = len(self.seen_at[slot]), len(self.rules.picked), self._may_move()
            known = _Examined(self._examine(slot), seen, chosen, self.ledger.changes, may_move)
            self.examined[slot] = known
        return known.found

    def _is_current(self, slot: int, known: _Examined) -> bool:
        if known.seen != len(self.seen_at[slot]):
            return False
        if known.changes == self.ledger.changes and known.chosen == len(self.rules.picked):
            return True
        if self.changed_at.get(slot, 0) > known.changes or known.may_move or self._may_move():
            return False
        return self._only_gets_dearer() and (known.found is None or self._is_legal(known.found.operations))

    def _is_legal(self, operations: Sequence[Operation]) -> bool:
        leaving = [one.victim for one in operations]
        return self.rules.is_allowed(leaving) and self.attempt.is_within_bounds(self.rules.with_surplus(leaving))

    def _least_cost(self, slot: int) -> Cost | None:
        """A lower bound of the cost on a slot: the fewest pauses that free enough, of the first candidates there.

        None where it is not known: if work may move, or an elastic job be paused as a whole.
        """
        left = [row for row in zip(self.seen_at[slot], self.frees_at[slot], strict=True) if self._is_open(row[0])]
        pauses = [(one, milli) for one, milli in left if one.kind is Kind.PAUSE]
        if self._may_move() or any(one.victim.above is not None for one, _ in pauses):
            return None
        short, count = self.slots.per_rank * self.slots.need - self.slots.freed[slot], 0
        short += sum(milli for _, milli in pauses)
        for milli in sorted((milli for _, milli in pauses), reverse=True):
            if short <= 0:
                break
            short, count = short - milli, count + 1
        positions = sorted(one.position for one, _ in pauses)[:count]
        return Cost(0, count, 0, 0, 0, 0, positions=tuple(reversed(positions)), keys=())

    def _is_open(self, one: Operation) -> bool:
        return not self.attempt.is_chosen(one.victim)

    def _examine(self, slot: int) -> LegalSet | None:
        seen = list(filter(self._is_open, self.seen_at[slot]))
        room = self.slots.room(slot, self.rules.with_surplus([one.victim for one in seen]))
        if len(room) < self.slots.per_rank:
            return None
        if len(seen) == 1 and seen[0].kind is not Kind.SHRINK:
            return self._single(seen[0], room)
        few = self._in_order(slot, seen) if len(seen) > MAX_CANDIDATES else seen
        found = self._cheapest_on(slot, few) if len(few) <= MAX_CANDIDATES else None
        if found is None and (len(few) > MAX_CANDIDATES or self.was_cut_short):
            found = self._all_of(slot, self._in_order(slot, seen))
        return found

    def _cheapest_on(self, slot: int, seen: Sequence[Operation]) -> LegalSet | None:
        devices = [slot] if self.slots.per_rank == 1 else self.ledger.on_node[slot]
        pauses = [one for one in seen if one.kind is Kind.PAUSE]
        mild = [ways_to_shrink(one) for one in seen if one.kind is not Kind.PAUSE]
        options = Options(pauses=pauses, mild=mild, moves=self._moves_on(devices, len(seen)) if pauses else ())
        return self._search(options, devices)

    def _all_of(self, slot: int, chosen: Sequence[Operation]) -> LegalSet | None:
        """All of these operations, where the search of a cheaper set among them would take too long."""
        leaving = self.rules.with_surplus([one.victim for one in chosen])
        room = self.slots.room(slot, leaving)
        if len(room) < self.slots.per_rank or not self._is_legal(chosen):
            return None
        pieces = rank_pieces(0, room[: self.slots.per_rank], self.preemptor.request)
        return LegalSet(operations=tuple(chosen), found=Found(tuple(pieces), ()), cost=cost_of(chosen))

    def _single(self, one: Operation, room: Sequence[int]) -> LegalSet | None:
        if not (self.rules.is_allowed([one.victim]) and self.attempt.is_within_bounds([one.victim])):
            return None
        pieces = rank_pieces(0, room[: self.slots.per_rank], self.preemptor.request)
        return LegalSet(operations=(one,), found=Found(tuple(pieces), ()), cost=cost_of([one]))

    def _in_order(self, slot: int, seen: Sequence[Operation]) -> list[Operation]:
        """Of many candidates on one slot those that suffice, taken in order."""
        chosen = self._until_enough(slot, seen, lambda _: True)
        if not self.rules.is_allowed([one.victim for one in chosen]):
            chosen = self._until_enough(slot, seen, self.rules.is_allowed)
        for one in reversed(chosen[:-1]):
            without = [other for other in chosen if other is not one]
            if self._is_enough(slot, without):
                chosen = without
        return chosen

    def _until_enough(
        self, slot: int, seen: Sequence[Operation], is_allowed: Callable[[Sequence[Victim]], bool]
    ) -> list[Operation]:
        chosen, victims = list[Operation](), list[Victim]()
        frees = dict(zip(map(id, self.seen_at[slot]), self.frees_at[slot], strict=True))
        free = self.slots.freed[slot] - sum(frees[id(one)] for one in seen)
        for one in seen:
            if is_allowed([*victims, one.victim]):
                chosen.append(one)
                victims.append(one.victim)
                free += frees[id(one)]
                if free >= self.slots.per_rank * self.slots.need and self._is_enough(slot, chosen):
                    break
        return chosen

    def _is_enough(self, slot: int, chosen: Sequence[Operation]) -> bool:
        leaving = self.rules.with_surplus([one.victim for one in chosen])
        return len(self.slots.room(slot, leaving)) >= self.slots.per_rank

    def _search(self, options: Options, devices: Sequence[int]) -> LegalSet | None:
        with self.attempt.room_test(range(1), devices) as room:
            search = CheapestSet(options, self.rules, room, self.attempt.is_within_bounds, work=MAX_WORK)
            found = search.run()
        self.was_cut_short = search.ended_early
        self.attempt.ended_early |= search.ended_early
        return found

    # -- moves ---------------------------------------------------------------------------------------------------

    def _may_move(self) -> bool:
        """Whether work may move for the claim, and room is free elsewhere."""
        may_move = bool(self.pool.searches_left) and may_move_for(self.preemptor)
        return may_move and self.ledger.all_after(borrowed=False) > 0

    def _moves_on(self, devices: Sequence[int], known: int) -> list[Operation]:
        """Work on these devices that may move."""
        if not self._may_move():
            return []
        work = movable_on(self.pool, devices, protected=self.attempt.include_protected)
        rows = [one for one in work if not self.attempt.is_chosen(one)][: max(0, MAX_CANDIDATES - known)]
        return [Operation(Kind.MOVE, one, self.seen + at) for at, one in enumerate(rows, 1)]

    def _by_moves(self) -> LegalSet | None:
        """Room for one rank by moves alone, on one of the slots that need to move least."""
        request, protected = self.preemptor.request, self.attempt.include_protected
        if not self.pool.searches_left or not may_move_for(self.preemptor) or request in self.pool.unmovable:
            return None
        self.pool.searches_left -= 1
        for devices in slots_to_clear(self.pool, request, protected=protected):
            found = self._search(Options(pauses=(), mild=(), moves=self._moves_on(devices, 0)), devices)
            if found is not None:
                return found
        if not protected:
            self.pool.unmovable.add(request)
        return None


def _for_rank(rank: int, chosen: LegalSet) -> LegalSet:
    """A set that was found for the first rank, for another one."""
    if not rank:
        return chosen
    pieces = tuple(piece._replace(rank=rank) for piece in chosen.found.pieces)
    return LegalSet(operations=chosen.operations, found=Found(pieces, chosen.found.moves), cost=chosen.cost)
