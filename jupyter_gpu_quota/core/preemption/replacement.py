"""Preemptions of a plan that are placed again, on the devices that drain already, so that a victim can be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..placement.ledger import Ledger
from ..placement.place import Fit, Piece, Request, place, rank_pieces, reserve
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, Victim
from .accounting import mark_leaving, restart_in_place
from .result import Preemption
from .slots import room_after

MAX_SLOTS_TRIED = 500
"""Slots that are tried to spare a victim; then it is paused."""
MAX_RANKS = 100
"""Preemptions with more ranks in sum are not placed again."""

Victims = tuple[Victim, ...]
"""Victims that are restored together: one, or an elastic job's minimum and what it has above."""
Amounts = Mapping[int, int]
"""Milli-GPU by device."""


@contextmanager
def beside(ledger: Ledger, pieces: Sequence[Piece]) -> Iterator[None]:
    """Reserve pieces inside the block."""
    reserve(ledger, pieces, borrowed=False)
    yield
    reserve(ledger, pieces, borrowed=False, sign=-1)


@contextmanager
def lifted(ledger: Ledger, pieces: Sequence[Piece]) -> Iterator[None]:
    """Release reserved pieces inside the block."""
    reserve(ledger, pieces, borrowed=False, sign=-1)
    yield
    reserve(ledger, pieces, borrowed=False)


class Replacement:
    """Places preemptions again on free and draining devices, rank by rank, with backtracking.

    ``reserved``: what the backfill reservation has, which is released.
    """

    def __init__(self, pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts) -> None:
        self.reserved = reserved
        self.pool, self.ledger, self.preemptions = pool, pool.ledger, preemptions
        self.ranks = [
            (preemption, rank) for preemption in preemptions for rank in range(preemption.preemptor.request.ranks)
        ]
        self.pieces: dict[str, list[Piece]] = {preemption.preemptor.id: [] for preemption in preemptions}
        self.tries = MAX_SLOTS_TRIED
        self.taken_over: list[tuple[Preemption, set[int]]] = []

    def succeeds_with(self, victims: Victims, elsewhere: tuple[Piece, ...]) -> bool:
        """Whether all fit with the victims restored; they then have their new pieces, otherwise nothing changes."""
        if len(self.ranks) > MAX_RANKS:
            return False
        mark = self.ledger.mark()
        for victim in victims:
            mark_leaving(self.pool, victim, sign=-1)
        if (base := victims[0].base) is not None:
            restart_in_place(self.pool, base, sign=-1)
        reserve(self.ledger, elsewhere, borrowed=False, sign=-1)
        for preemption in self.preemptions:
            reserve(self.ledger, preemption.pieces, borrowed=preemption.borrowed, sign=-1)
        self.taken_over = [(one, at) for one in self.preemptions for at in _taken_over(one, victims)]
        is_taken = any(self._is_overfull(piece.device) for victim in victims for piece in victim.pieces)
        if is_taken or not self.succeeds():
            self.ledger.undo(mark)
            return False
        return True

    def succeeds(self) -> bool:
        """Whether all fit; they then have their new pieces, otherwise nothing changes."""
        if not self._place_from(0):
            return False
        for preemption in self.preemptions:
            preemption.pieces = tuple(self.pieces[preemption.preemptor.id])
        return True

    def _is_overfull(self, at: int) -> bool:
        return self.ledger.lendable_after(at) < 0 or self.ledger.is_overfull(self.ledger.node_of[at])

    def _place_from(self, at: int) -> bool:
        if at == len(self.ranks):
            return all(
                any(piece.device in of for piece in self.pieces[one.preemptor.id]) for one, of in self.taken_over
            )
        preemption, rank = self.ranks[at]
        mark = self.ledger.mark()
        for slot in self._slots_beside_reservation(preemption):
            self.tries -= 1
            if self.tries < 0:
                return False
            found = rank_pieces(rank, slot, preemption.preemptor.request)
            reserve(self.ledger, found, borrowed=preemption.borrowed)
            self.pieces[preemption.preemptor.id] += found
            if self._place_from(at + 1):
                return True
            del self.pieces[preemption.preemptor.id][-len(found) :]
            self.ledger.undo(mark)
        return False

    def _slots_beside_reservation(self, preemption: Preemption) -> Iterable[list[int]]:
        """The slots of a preemptor, without what the backfill reservation kept from it."""
        if not preemption.kept_from:
            return self._slots(preemption)
        with beside(self.ledger, preemption.kept_from):
            return list(self._slots(preemption))

    def _slots(self, preemption: Preemption) -> Iterator[list[int]]:
        """Slots for one rank: draining devices, the tightest first and each amount of room once, then free ones.

        A claim with the right to the devices of the backfill reservation takes them last (R32).
        """
        request, only = preemption.preemptor.request, preemption.preemptor.only
        entitlement = preemption.preemptor.entitlement
        borrowed = preemption.borrowed or entitlement is Entitlement.NOTEBOOK
        after = room_after(self.ledger, entitlement, can_borrow=borrowed)
        seen = set[tuple[int, int]]()
        reserved = self.reserved if preemption.has_right else {}
        for needed, left, slot in sorted(self._draining(request, after, reserved)):
            room = needed, left
            if room not in seen and (only is None or all(at in only for at in slot)):
                seen.add(room)
                yield slot
        fit = place(self.ledger, request._replace(ranks=1), borrowed=borrowed)
        free = [piece.device for piece in fit.pieces] if isinstance(fit, Fit) else []
        need = request.per_device
        if free and all((only is None or at in only) and after(at) >= need for at in free):
            yield free

    def _draining(
        self, request: Request, after: Callable[[int], int], reserved: Amounts
    ) -> Iterator[tuple[int, int, list[int]]]:
        """For each slot on draining devices how many of them the reservation needs, the room left, and the devices."""
        ledger, per_rank = self.ledger, request.devices_per_rank
        need = request.per_device
        nodes = {ledger.node_of[at] for at in ledger.draining}
        slots = [ledger.on_node[node] for node in nodes] if per_rank > 1 else [[at] for at in ledger.draining]
        for slot in slots:
            room = [at for at in slot if request.accepts(ledger.model[at]) and after(at) >= need]
            if len(room) >= per_rank and ledger.node_resources.after(ledger.node_of[room[0]]).covers(
                request.cpu_memory
            ):
                left = sum(after(at) for at in room) - per_rank * need
                is_needed: Callable[[int], bool] = lambda at: after(at) - need < reserved.get(at, 0)  # noqa: E731
                devices = sorted(room, key=is_needed)[:per_rank] if reserved else room[:per_rank]
                yield sum(map(is_needed, devices)), left, devices


def _taken_over(preemption: Preemption, restored: Victims) -> Iterator[set[int]]:
    """The devices of each reservation that a claim has taken over and uses."""
    for victim in preemption.victims:
        devices = {piece.device for piece in victim.pieces} if victim.reserved and victim not in restored else ()
        if devices and any(piece.device in devices for piece in preemption.pieces):
            yield set(devices)
