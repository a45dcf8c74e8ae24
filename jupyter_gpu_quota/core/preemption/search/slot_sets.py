"""The sets of operations on one slot of a large pool: the cheapest legal set that makes room for one rank there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from ...placement.place import rank_pieces
from ...queue.quota_state import Victim
from ..movable import may_move_for, movable_on, slots_to_clear
from ..operations import Cost, Kind, Operation, cost_of, kind_without_pause, ways_to_shrink
from ..slots import Slots
from .attempt import Attempt
from .cheapest import CheapestSet, LegalSet, Options
from .room import Found

MAX_CANDIDATES = 12
"""On one slot: with more, those that suffice are taken in order."""
MAX_WORK_ON_SLOT = 200
"""Work of the search on one slot: room tests, and the places tried in them."""
MAX_CHOICES = 500
"""Choices of whole devices that are tried in one walk, on nodes where the search of the cheapest set takes too long."""


class SlotSets:
    """The candidates seen so far, by slot, and what is chosen among them."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.pool, self.ledger = attempt, attempt.pool, attempt.ledger
        self.preemptor, self.rules = attempt.preemptor, attempt.rules
        self.slots = Slots(self.ledger, self.preemptor, can_borrow=attempt.can_borrow)
        self.seen_at: dict[int, list[Operation]] = defaultdict(list)
        self.frees_at: dict[int, list[int]] = defaultdict(list)
        """The amount that each candidate seen at a slot frees there, in milli-GPU."""
        self.seen = 0
        self.choices_left = MAX_CHOICES
        self.was_cut_short = False
        """The bound on its work ended the last search on a slot."""

    def see(self, victim: Victim, *, is_pause: bool) -> list[int]:
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

    def least_cost(self, slot: int) -> Cost | None:
        """A lower bound of the cost on a slot: the fewest pauses that free enough, of the first candidates there.

        None where it is not known: if work may move, or an elastic job be paused as a whole.
        """
        left = [row for row in zip(self.seen_at[slot], self.frees_at[slot], strict=True) if self._is_open(row[0])]
        pauses = [(one, milli) for one, milli in left if one.kind is Kind.PAUSE]
        if self.may_move() or any(one.victim.above is not None for one, _ in pauses):
            return None
        short, count = self.slots.per_rank * self.slots.need - self.slots.freed[slot], 0
        short += sum(milli for _, milli in pauses)
        for milli in sorted((milli for _, milli in pauses), reverse=True):
            if short <= 0:
                break
            short, count = short - milli, count + 1
        positions = sorted(one.position for one, _ in pauses)[:count]
        return Cost(0, count, 0, 0, 0, 0, positions=tuple(reversed(positions)), keys=())

    def cheapest_on(self, slot: int) -> LegalSet | None:
        """The cheapest legal set of the operations seen on a slot that makes room for one rank there."""
        seen = list(filter(self._is_open, self.seen_at[slot]))
        room = self.slots.room(slot, self.rules.with_surplus([one.victim for one in seen]))
        if len(room) < self.slots.per_rank:
            return None
        if len(seen) == 1 and seen[0].kind is not Kind.SHRINK:
            return self._single(seen[0], room)
        few = self._in_order(slot, seen) if len(seen) > MAX_CANDIDATES else seen
        found = self._among_few(slot, few) if len(few) <= MAX_CANDIDATES else None
        if found is None and (len(few) > MAX_CANDIDATES or self.was_cut_short):
            found = self._all_of(slot, self._in_order(slot, seen))
        if found is None and (len(seen) > MAX_CANDIDATES or self.was_cut_short) and self.slots.per_rank > 1:
            found = self._on_whole_devices(slot, seen, room)
        return found

    def may_apply(self, operations: Sequence[Operation]) -> bool:
        """Whether nothing of these operations was chosen for another rank meanwhile, and they are legal."""
        return all(map(self._is_open, operations)) and self.is_legal(operations)

    def is_legal(self, operations: Sequence[Operation]) -> bool:
        """Whether the rules and the limits allow these operations beside those chosen."""
        leaving = [one.victim for one in operations]
        return self.rules.is_allowed(leaving) and self.attempt.is_within_bounds(self.rules.with_surplus(leaving))

    def may_move(self) -> bool:
        """Whether work may move for the claim, and room is free elsewhere."""
        may_move = bool(self.pool.searches_left) and may_move_for(self.preemptor)
        return may_move and self.ledger.all_after(borrowed=False) > 0

    def by_moves(self) -> LegalSet | None:
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

    def _is_open(self, one: Operation) -> bool:
        return not self.attempt.is_chosen(one.victim)

    def _among_few(self, slot: int, seen: Sequence[Operation]) -> LegalSet | None:
        devices = [slot] if self.slots.per_rank == 1 else self.ledger.on_node[slot]
        pauses = [one for one in seen if one.kind is Kind.PAUSE]
        mild = [ways_to_shrink(one) for one in seen if one.kind is not Kind.PAUSE]
        options = Options(pauses=pauses, mild=mild, moves=self._moves_on(devices, len(seen)) if pauses else ())
        return self._search(options, devices)

    def _all_of(self, slot: int, chosen: Sequence[Operation]) -> LegalSet | None:
        """All of these operations, where the search of a cheaper set among them would take too long."""
        if not self.is_legal(chosen):
            return None
        room = self.slots.room(slot, self.rules.with_surplus([one.victim for one in chosen]))
        if len(room) < self.slots.per_rank:
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

    def _on_whole_devices(self, slot: int, seen: Sequence[Operation], usable: Sequence[int]) -> LegalSet | None:
        """All the candidates on as many devices as the rank needs, those with the fewest first.

        ``usable``: the devices of the node with room when all candidates have left.
        """
        there = {at: [one for one in seen if _is_on(one.victim, at)] for at in usable}
        fewest = sorted(usable, key=lambda at: (len(there[at]), sum(one.victim.size for one in there[at]), at))
        for devices in _last_ones_last(fewest, self.slots.per_rank):
            if not self.choices_left:
                return None
            self.choices_left -= 1
            chosen = {id(one): one for at in devices for one in there[at]}
            if (found := self._all_of(slot, list(chosen.values()))) is not None:
                return found
        return None

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
            search = CheapestSet(options, self.rules, room, self.attempt.is_within_bounds, work=MAX_WORK_ON_SLOT)
            found = search.run()
        self.was_cut_short = search.ended_early
        self.attempt.ended_early |= search.ended_early
        return found

    def _moves_on(self, devices: Sequence[int], known: int) -> list[Operation]:
        """Work on these devices that may move."""
        if not self.may_move():
            return []
        work = movable_on(self.pool, devices, protected=self.attempt.include_protected)
        rows = [one for one in work if not self.attempt.is_chosen(one)][: max(0, MAX_CANDIDATES - known)]
        return [Operation(Kind.MOVE, one, self.seen + at) for at, one in enumerate(rows, 1)]


def _last_ones_last(devices: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """The choices of so many devices; the later a device, the later all choices with it."""
    for last in range(count - 1, len(devices)):
        for others in combinations(devices[:last], count - 1):
            yield (*others, devices[last])


def _is_on(victim: Victim, device: int) -> bool:
    return any(piece.device == device for piece in victim.pieces)
