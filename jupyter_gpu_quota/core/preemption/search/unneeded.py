"""Drop what a search chose and does not need: its ranks were placed one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...queue.quota_state import Victim
from ..operations import Kind, Operation, cost_of
from .attempt import Attempt
from .cheapest import LegalSet
from .node_rooms import Claimant, NodeRooms
from .room import MAX_PLACES, Found, RoomTest


def drop_unneeded(attempt: Attempt, mark: int) -> None:
    """Drop each operation without which the claim still finds room and every rule holds, the costliest first.

    ``mark``: the ledger before the attempt.
    """
    if len(attempt.operations) < 2 or attempt.preemptor.request.ranks > MAX_PLACES:
        return
    kept, found = list(attempt.operations), Found(tuple(attempt.pieces), tuple(attempt.moves))
    attempt.ledger.undo(mark)
    attempt.begin()
    bound = _RankBound(attempt, kept)
    with attempt.room_test(range(attempt.preemptor.request.ranks)) as room:
        for one in sorted(kept, key=lambda one: cost_of([one]), reverse=True):
            if not bound.allows_without(one.victim):
                continue
            without = [other for other in kept if other is not one]
            again = _if_enough(attempt, room, without)
            if again is not None:
                kept, found = without, again
                bound.put_back(one.victim)
    bound.rooms.release_references()
    attempt.apply(LegalSet(operations=tuple(kept), found=found, cost=cost_of(kept)))


def _if_enough(attempt: Attempt, room: RoomTest, operations: Sequence[Operation]) -> Found | None:
    leaving = attempt.rules.with_surplus([one.victim for one in operations if one.kind is not Kind.MOVE])
    if not (attempt.rules.is_allowed(leaving) and attempt.is_within_bounds(leaving)):
        return None
    return room.find(leaving, [one.victim for one in operations if one.kind is Kind.MOVE])


class _RankBound:
    """An upper bound of the ranks that fit while this work is gone, on its nodes and on what is free elsewhere."""

    def __init__(self, attempt: Attempt, operations: Iterable[Operation]) -> None:
        ledger, request = attempt.ledger, attempt.preemptor.request
        victims = [part for one in operations for part in _parts(one.victim)]
        nodes = dict.fromkeys(ledger.node_of[piece.device] for one in victims for piece in one.pieces)
        devices = [at for node in nodes for at in ledger.on_node[node]]
        self.rooms = NodeRooms(ledger, attempt.preemptor, devices, nodes, can_borrow=attempt.can_borrow)
        self.rooms.leave(dict.fromkeys(victims))
        self.claimant, self.ranks = Claimant(request, is_claim=True), request.ranks
        milli, can_borrow = request.gpu_milli, attempt.can_borrow
        self.fitting = ledger.ranks_after(milli, borrowed=can_borrow)
        self.fitting -= sum(ledger.node_after(node, borrowed=can_borrow) // milli for node in nodes)
        self.fitting += self.rooms.slots(self.claimant)

    def allows_without(self, victim: Victim) -> bool:
        """Whether the ranks might fit if this victim stayed."""
        lost = self._slots_around(victim)
        self.rooms.leave(_parts(victim), sign=1)
        lost -= self._slots_around(victim)
        self.rooms.leave(_parts(victim))
        return self.fitting - lost >= self.ranks

    def put_back(self, victim: Victim) -> None:
        """Let a victim stay."""
        self.fitting -= self._slots_around(victim)
        self.rooms.leave(_parts(victim), sign=1)
        self.fitting += self._slots_around(victim)

    def _slots_around(self, victim: Victim) -> int:
        devices = [piece.device for part in _parts(victim) for piece in part.pieces]
        return self.rooms.slots_around(devices, self.claimant)


def _parts(victim: Victim) -> tuple[Victim, ...]:
    """A victim; an elastic job's minimum with the part above it."""
    return (victim,) if victim.above is None else (victim, victim.above)
