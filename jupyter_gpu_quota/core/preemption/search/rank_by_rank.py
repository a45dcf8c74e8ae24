"""The search in a large pool: the ranks of a claim are placed one after the other.

The search walks the candidates in the order of R39, and examines the sets on the slots where those seen free enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from ...placement.place import Fit, place, rank_pieces
from ...queue.quota_state import Victim
from ..department_rules import is_department_full, sibling_victims
from ..operations import Cost, Kind, Operation
from .attempt import Attempt
from .cheapest import LegalSet
from .room import Found
from .slot_sets import SlotSets

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
        self.sets = SlotSets(attempt)
        self.slots = self.sets.slots
        self.examined: dict[int, _Examined] = {}
        self.ready: list[tuple[Cost, int]] = []
        """A heap of the unused slots that the walk has passed, with a lower bound of the cost there."""
        self.changed_at: dict[int, int] = {}
        """The number of changes of the ledger when a slot changed last."""
        self.read = self.ledger.changes
        self.room = list(self.ledger.nodes_after(borrowed=False))
        """The room of each node when the slots were looked at last."""

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
                best = self.sets.by_moves()
            for slot in self.sets.see(victim, is_pause=is_pause):
                least = None if best is None else self.sets.least_cost(slot)
                if best is not None and least is not None and least.before_keys >= best.cost.before_keys:
                    heappush(self.ready, (least, slot))
                elif (found := self._on_slot(slot)) is not None:
                    heappush(self.ready, (found.cost, slot))
                    best = found if best is None or found.cost < best.cost else best
            if best is not None and (best.cost.pauses <= 1 or ahead >= LOOK_AHEAD):
                break
            ahead += best is not None
        best = self.sets.by_moves() if best is None else best
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
        if not self._only_gets_dearer() or (self._has_new_room() and self.sets.may_move()):
            self.ready = []
        else:
            slots = dict.fromkeys(slot for slot in slots if slot in changed)
        for slot in slots:
            if (one := self._on_slot(slot)) is not None:
                heappush(self.ready, (one.cost, slot))

    def _has_new_room(self) -> bool:
        """Whether a node has more room than at the last look: work of another node may move there."""
        before, self.room = self.room, list(self.ledger.nodes_after(borrowed=False))
        return any(now > was for now, was in zip(self.room, before, strict=True))

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

    def _on_slot(self, slot: int) -> LegalSet | None:
        """:meth:`.SlotSets.cheapest_on`, computed again only where something has changed."""
        self._note_changes()
        known = self.examined.get(slot)
        if known is None or not self._is_current(slot, known):
            seen, chosen, may_move = len(self.sets.seen_at[slot]), len(self.rules.picked), self.sets.may_move()
            known = _Examined(self.sets.cheapest_on(slot), seen, chosen, self.ledger.changes, may_move)
            self.examined[slot] = known
        return known.found

    def _is_current(self, slot: int, known: _Examined) -> bool:
        if known.seen != len(self.sets.seen_at[slot]):
            return False
        if known.changes == self.ledger.changes and known.chosen == len(self.rules.picked):
            return True
        if self.changed_at.get(slot, 0) > known.changes or known.may_move or self.sets.may_move():
            return False
        return self._only_gets_dearer() and (known.found is None or self.sets.may_apply(known.found.operations))


def _for_rank(rank: int, chosen: LegalSet) -> LegalSet:
    """A set that was found for the first rank, for another one."""
    if not rank:
        return chosen
    pieces = tuple(piece._replace(rank=rank) for piece in chosen.found.pieces)
    return LegalSet(operations=chosen.operations, found=Found(pieces, chosen.found.moves), cost=chosen.cost)
