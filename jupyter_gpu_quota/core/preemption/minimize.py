"""Minimize the victims of a whole plan: a victim that later picks made unnecessary keeps running."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from ..model import WHOLE_DEVICE
from ..placement.place import Fit, Piece, Request, place, rank_pieces, reserve
from ..queue.pool_state import PoolState, victim_list
from ..queue.quota_state import Entitlement, QuotaState, Victim
from .accounting import mark_leaving, restart_in_place
from .search import Preemption
from .slots import room_after

MAX_REPLACED = 12
"""At most this many preemptions are placed again to spare a victim."""
MAX_TRIES = 500
"""Slots that are tried for them; then the victim is paused."""
MAX_RANKS = 100
"""Preemptions with more ranks in sum are not placed again."""


def minimize_victims(pool: PoolState, preemptions: Sequence[Preemption]) -> None:
    """Restore every victim without which all preemptions of the plan still find room.

    Only room that is left over on draining devices can replace a victim's. A victim stays out if its own project is a
    preemptor in the same plan (its entitlement would shrink), or if a preemptor of its department depends on its loss.
    Work that moves uses as much before as after, so it may stay in any case.
    Rule R33.
    """
    for preemption in preemptions:
        for move in list(preemption.moves):
            if _fits_without(pool, preemptions, (move.victim,), move.pieces):
                pool.room_came_back = True  # on the pieces reserved for the move
                preemption.moves.remove(move)
                _insert(pool, move.victim)
    preemptors = {preemption.preemptor.project for preemption in preemptions}
    for number, preemption in enumerate(preemptions):
        for victims in [one for one in _running_victims(preemption) if one[0].project not in preemptors]:
            project, size = victims[0].project, sum(one.size for one in victims)
            if not _may_fit(pool, victims) or not project.may_be_restored(size, victims[0].user):
                continue
            depending = _depending_on(project, preemptions[number:])
            if all(other.slack_milli >= size for other in depending) and _fits_without(pool, preemptions, victims):
                for victim in victims:
                    preemption.victims.remove(victim)
                _restore(pool, victims)
                for other in depending:
                    other.slack_milli -= size


Victims = tuple[Victim, ...]
"""Victims that are restored together: one, or an elastic job's minimum and what it has above."""


def _running_victims(preemption: Preemption) -> list[Victims]:
    runs = [one for one in preemption.victims if not one.reserved and one.base not in preemption.victims]
    return [(one,) if one.above is None else (one, one.above) for one in runs]


def _depending_on(project: QuotaState, preemptions: Sequence[Preemption]) -> list[Preemption]:
    """Preemptions of a victim's department with victims in other departments: they may depend on this victim's loss."""
    department = project.parent
    if department is None:
        return []
    return [
        preemption
        for preemption in preemptions
        if preemption.preemptor.project.parent is department
        and any(one.project.parent is not department for one in preemption.victims)
    ]


def _may_fit(pool: PoolState, victims: Victims) -> bool:
    """Whether enough may be left over to replace what they free on schedulable devices; an estimate."""
    milli, ledger = sum([piece.gpu_milli for victim in victims for piece in victim.pieces]), pool.ledger
    if ledger.all_after(borrowed=True) < milli:
        return False
    return pool.room_came_back or sum(ledger.lendable_after(at) for at in ledger.draining) >= milli


def _fits_without(
    pool: PoolState, preemptions: Sequence[Preemption], victims: Victims, elsewhere: tuple[Piece, ...] = ()
) -> bool:
    """Whether all preemptions fit with these victims restored: first those on their devices move, then all.

    ``elsewhere``: the pieces that were reserved for a victim that was to move.
    """
    devices = {piece.device for victim in victims for piece in victim.pieces}
    touched = [
        preemption for preemption in preemptions if not devices.isdisjoint(piece.device for piece in preemption.pieces)
    ]
    if _Replacement(pool, touched).succeeds_with(victims, elsewhere):
        return True
    largest_first = sorted(preemptions, key=lambda preemption: -preemption.preemptor.request.gpu_milli)
    return len(preemptions) <= MAX_REPLACED and _Replacement(pool, largest_first).succeeds_with(victims, elsewhere)


class _Replacement:
    """Places preemptions again on free and draining devices, rank by rank, with backtracking."""

    def __init__(self, pool: PoolState, preemptions: Sequence[Preemption]) -> None:
        self.pool, self.ledger, self.preemptions = pool, pool.ledger, preemptions
        self.ranks = [
            (preemption, rank) for preemption in preemptions for rank in range(preemption.preemptor.request.ranks)
        ]
        self.pieces: dict[str, list[Piece]] = {preemption.preemptor.id: [] for preemption in preemptions}
        self.tries = MAX_TRIES

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
        is_taken = any(self.ledger.lendable_after(one.device) < 0 for victim in victims for one in victim.pieces)
        if is_taken or not self._place_from(0):
            self.ledger.undo(mark)
            return False
        for preemption in self.preemptions:
            preemption.pieces = tuple(self.pieces[preemption.preemptor.id])
        return True

    def _place_from(self, at: int) -> bool:
        if at == len(self.ranks):
            return True
        preemption, rank = self.ranks[at]
        mark = self.ledger.mark()
        for slot in self._slots(preemption):
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

    def _slots(self, preemption: Preemption) -> Iterator[list[int]]:
        """Slots for one rank: draining devices, the tightest first and each amount of room once, then free ones."""
        request, only = preemption.preemptor.request, preemption.preemptor.only
        entitlement = preemption.preemptor.entitlement
        borrowed = preemption.borrowed or entitlement is Entitlement.NOTEBOOK
        after = room_after(self.ledger, entitlement, can_borrow=borrowed)
        seen = set[int]()
        for left, slot in sorted(self._draining(request, after)):
            if left not in seen and (only is None or all(at in only for at in slot)):
                seen.add(left)
                yield slot
        fit = place(self.ledger, request._replace(ranks=1), borrowed=borrowed)
        free = [piece.device for piece in fit.pieces] if isinstance(fit, Fit) else []
        need = min(request.gpu_milli, WHOLE_DEVICE)
        if free and all((only is None or at in only) and after(at) >= need for at in free):
            yield free

    def _draining(self, request: Request, after: Callable[[int], int]) -> Iterator[tuple[int, list[int]]]:
        ledger, per_rank = self.ledger, request.devices_per_rank
        need = min(request.gpu_milli, WHOLE_DEVICE)
        nodes = {ledger.node_of[at] for at in ledger.draining}
        slots = [ledger.on_node[node] for node in nodes] if per_rank > 1 else [[at] for at in ledger.draining]
        for slot in slots:
            room = [at for at in slot if request.accepts(ledger.model[at]) and after(at) >= need]
            if len(room) >= per_rank and ledger.node_resources.after(ledger.node_of[room[0]]).covers(
                request.cpu_memory
            ):
                yield sum(after(at) for at in room) - per_rank * need, room[:per_rank]


def _restore(pool: PoolState, victims: Victims) -> None:
    for victim in victims:
        _insert(pool, victim)
        if victim.base is None:
            victim.project.undo_pause(victim.size, victim.user)
        else:
            victim.project.undo_shrink(victim.size, victim.user)
    if (base := victims[0].base) is not None:
        base.above = victims[0]
        _insert(pool, base)


def _insert(pool: PoolState, victim: Victim) -> None:
    insort(victim_list(pool, victim), victim, key=lambda one: one.order)
