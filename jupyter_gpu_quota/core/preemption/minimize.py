"""None too many: whoever a later pick of the same plan made unnecessary runs on."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence

from ..model import WHOLE_DEVICE
from ..placement.place import Fit, Piece, Request, place, promise, rank_pieces
from ..queue.pool_state import Pool, rows_of
from ..queue.quota_state import Holder, Right, Standing
from .accounting import leave, restart_in_place
from .search import Claimed

MOST_MOVED = 12
"""Up to so many claims are placed anew to spare a victim."""
MOST_TRIES = 500
"""So many places are tried for them before the victim is given up."""
MOST_RANKS = 100
"""Claims with more ranks than this stay where they are."""


def trim(pool: Pool, claims: Sequence[Claimed]) -> None:
    """Put back every victim without whom all claims of the plan still find room on what leaves.

    Judged on the whole plan: only room that is left over on devices that drain can replace a victim's. A victim
    whose own project claims in the same plan stays out: with it back, that claim would have less right. So does one
    without whose loss a claim of its department could not reach into others. Work that is moved uses as much where it
    is as where it goes, so it may stay whoever claims.
    """
    for claimed in claims:
        for moved in list(claimed.moved):
            if _fits_without(pool, claims, (moved.holder,), moved.pieces):
                pool.room_came_back = True  # where it was to go
                claimed.moved.remove(moved)
                _line_up(pool, moved.holder)
    claimers = {claimed.asker.standing for claimed in claims}
    for number, claimed in enumerate(claims):
        for victims in [one for one in _by_job(claimed) if one[0].project not in claimers]:
            standing, size = victims[0].project, sum(one.size for one in victims)
            has_room = pool.ledger.all_after(lent=True) >= _on_devices(victims) and _may_fit(pool, victims)
            if not has_room or not standing.may_stay(size, victims[0].user):
                continue
            let_out = _let_out_by(standing, claims[number:])
            if all(other.leeway_milli >= size for other in let_out) and _fits_without(pool, claims, victims):
                for victim in victims:
                    claimed.victims.remove(victim)
                _count_in(pool, victims)
                for other in let_out:
                    other.leeway_milli -= size


Victims = tuple[Holder, ...]
"""Who can be put back together only: one, or an elastic job's minimum and what it has above."""


def _by_job(claimed: Claimed) -> list[Victims]:
    """The victims of a claim that run, in order."""
    runs = [one for one in claimed.victims if not one.promised and one.base not in claimed.victims]
    return [(one,) if one.above is None else (one, one.above) for one in runs]


def _let_out_by(standing: Standing, claims: Sequence[Claimed]) -> list[Claimed]:
    """Claims of a victim's department that reach into others: what the victim loses may be what lets them out."""
    department = standing.parent
    if department is None:
        return []
    return [
        claimed
        for claimed in claims
        if claimed.asker.standing.parent is department
        and any(one.project.parent is not department for one in claimed.victims)
    ]


def _may_fit(pool: Pool, victims: Victims) -> bool:
    """Whether enough is left over to replace what they free; no more than a guess."""
    return pool.room_came_back or _left_over(pool) >= _on_devices(victims)


def _on_devices(victims: Victims) -> int:
    """What they free of the devices that can be given out."""
    return sum([piece.gpu_milli for victim in victims for piece in victim.pieces])


def _left_over(pool: Pool) -> int:
    return sum(pool.ledger.lendable_after(at) for at in pool.ledger.draining)


def _fits_without(pool: Pool, claims: Sequence[Claimed], victims: Victims, elsewhere: tuple[Piece, ...] = ()) -> bool:
    """Whether the claims fit with victims back: first moving only those on their devices, then all, largest first.

    ``elsewhere``: the place that was promised to one, where it was to be moved.
    """
    devices = {piece.device for victim in victims for piece in victim.pieces}
    touched = [claimed for claimed in claims if not devices.isdisjoint(piece.device for piece in claimed.pieces)]
    if _Settling(pool, touched).succeeds_with(victims, elsewhere):
        return True
    everybody = sorted(claims, key=lambda claimed: -claimed.asker.request.gpu_milli)
    return len(claims) <= MOST_MOVED and _Settling(pool, everybody).succeeds_with(victims, elsewhere)


class _Settling:
    """Places claims anew on what is free or leaves, rank by rank, going back where one does not fit."""

    def __init__(self, pool: Pool, claims: Sequence[Claimed]) -> None:
        self.pool, self.ledger, self.claims = pool, pool.ledger, claims
        self.ranks = [(claimed, rank) for claimed in claims for rank in range(claimed.asker.request.ranks)]
        self.pieces: dict[str, list[Piece]] = {claimed.asker.id: [] for claimed in claims}
        self.tries = MOST_TRIES

    def succeeds_with(self, victims: Victims, elsewhere: tuple[Piece, ...]) -> bool:
        """Whether all fit with the victims back; then they are where they fit, else nothing has changed."""
        if len(self.ranks) > MOST_RANKS:
            return False
        mark = self.ledger.mark()
        for victim in victims:
            leave(self.pool, victim, sign=-1)
        if (base := victims[0].base) is not None:
            restart_in_place(self.pool, base, sign=-1)
        promise(self.ledger, elsewhere, lent=False, sign=-1)
        for claimed in self.claims:
            promise(self.ledger, claimed.pieces, lent=claimed.lent, sign=-1)
        is_taken = any(self.ledger.lendable_after(one.device) < 0 for victim in victims for one in victim.pieces)
        if is_taken or not self._settle(0):
            self.ledger.undo(mark)
            return False
        for claimed in self.claims:
            claimed.pieces = tuple(self.pieces[claimed.asker.id])
        return True

    def _settle(self, at: int) -> bool:
        if at == len(self.ranks):
            return True
        claimed, rank = self.ranks[at]
        mark = self.ledger.mark()
        for spot in self._spots(claimed):
            self.tries -= 1
            if self.tries < 0:
                return False
            found = rank_pieces(rank, spot, claimed.asker.request)
            promise(self.ledger, found, lent=claimed.lent)
            self.pieces[claimed.asker.id] += found
            if self._settle(at + 1):
                return True
            del self.pieces[claimed.asker.id][-len(found) :]
            self.ledger.undo(mark)
        return False

    def _spots(self, claimed: Claimed) -> Iterator[list[int]]:
        """Where one rank goes: what leaves, the tightest first and each amount of room once, then what is free."""
        request, only = claimed.asker.request, claimed.asker.only
        lent = claimed.lent or claimed.asker.right is Right.NOTEBOOK
        seen = set[int]()
        for left, spot in sorted(self._draining(request, lent=lent)):
            if left not in seen and (only is None or all(at in only for at in spot)):
                seen.add(left)
                yield spot
        fit = place(self.ledger, request._replace(ranks=1), lent=lent)
        if isinstance(fit, Fit) and (only is None or all(piece.device in only for piece in fit.pieces)):
            yield [piece.device for piece in fit.pieces]

    def _draining(self, request: Request, *, lent: bool) -> Iterator[tuple[int, list[int]]]:
        ledger, many = self.ledger, request.devices_per_rank
        after = ledger.lendable_after if lent else ledger.plain_after
        need = min(request.gpu_milli, WHOLE_DEVICE)
        nodes = {ledger.node_of[at] for at in ledger.draining}
        spots = [ledger.on_node[node] for node in nodes] if many > 1 else [[at] for at in ledger.draining]
        for spot in spots:
            room = [at for at in spot if request.takes(ledger.model[at]) and after(at) >= need]
            if len(room) >= many and ledger.hosts.after(ledger.node_of[room[0]]).covers(request.host):
                yield sum(after(at) for at in room) - many * need, room[:many]


def _count_in(pool: Pool, victims: Victims) -> None:
    """An elastic job keeps what it has above its minimum, with it or after it."""
    for victim in victims:
        _line_up(pool, victim)
        if victim.base is None:
            victim.project.stays_after_all(victim.size, victim.user)
        else:
            victim.project.keeps_all(victim.size, victim.user)
    if (base := victims[0].base) is not None:
        base.above = victims[0]
        _line_up(pool, base)


def _line_up(pool: Pool, holder: Holder) -> None:
    insort(rows_of(pool, holder), holder, key=lambda one: one.order)
