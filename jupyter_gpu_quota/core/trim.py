"""None too many: whoever a later pick of the same plan made unnecessary runs on."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence

from .leaving import leave, restart_in_place
from .model import WHOLE_DEVICE
from .placement import Fit, Piece, Request, place, promise, rank_pieces
from .pool import Pool, rows_of
from .reclaim import Claimed
from .standing import Holder, Right

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
            if _fits_without(pool, claims, moved.holder, moved.pieces):
                pool.room_came_back = True  # where it was to go
                claimed.moved.remove(moved)
                insort(rows_of(pool, moved.holder), moved.holder, key=lambda holder: holder.order)
    claimers = {claimed.asker.standing for claimed in claims}
    for number, claimed in enumerate(claims):
        for victim in [one for one in claimed.victims if _may_stay(one) and one.project not in claimers]:
            has_room = pool.ledger.all_after(lent=True) >= _on_devices(victim) and _may_fit(pool, victim)
            if not has_room or not victim.project.may_stay(victim.size, victim.user):
                continue
            let_out = _let_out_by(victim, claims[number:])
            if all(other.leeway_milli >= victim.size for other in let_out) and _fits_without(pool, claims, victim):
                claimed.victims.remove(victim)
                _count_in(pool, victim)
                for other in let_out:
                    other.leeway_milli -= victim.size


def _let_out_by(victim: Holder, claims: Sequence[Claimed]) -> list[Claimed]:
    """Claims of a victim's department that reach into others: what the victim loses may be what lets them out."""
    department = victim.project.parent
    if department is None:
        return []
    return [
        claimed
        for claimed in claims
        if claimed.asker.standing.parent is department
        and any(one.project.parent is not department for one in claimed.victims)
    ]


def _may_stay(victim: Holder) -> bool:
    """Whether it can be put back: it runs, and is no elastic job that leaves as a whole."""
    return not victim.promised and victim.above is None


def _may_fit(pool: Pool, victim: Holder) -> bool:
    """Whether enough is left over to replace what it frees; no more than a guess."""
    return pool.room_came_back or _left_over(pool) >= _on_devices(victim)


def _on_devices(victim: Holder) -> int:
    """What it frees of the devices that can be given out."""
    return sum([piece.gpu_milli for piece in victim.pieces])


def _left_over(pool: Pool) -> int:
    return sum(pool.ledger.lendable_after(at) for at in pool.ledger.draining)


def _fits_without(pool: Pool, claims: Sequence[Claimed], victim: Holder, elsewhere: tuple[Piece, ...] = ()) -> bool:
    """Whether the claims fit with a victim back: first moving only those on its devices, then all, largest first.

    ``elsewhere``: the place that was promised to it, where it was to be moved.
    """
    devices = {piece.device for piece in victim.pieces}
    touched = [claimed for claimed in claims if not devices.isdisjoint(piece.device for piece in claimed.pieces)]
    if _Settling(pool, touched).succeeds_with(victim, elsewhere):
        return True
    everybody = sorted(claims, key=lambda claimed: -claimed.asker.request.gpu_milli)
    return len(claims) <= MOST_MOVED and _Settling(pool, everybody).succeeds_with(victim, elsewhere)


class _Settling:
    """Places claims anew on what is free or leaves, rank by rank, going back where one does not fit."""

    def __init__(self, pool: Pool, claims: Sequence[Claimed]) -> None:
        self.pool, self.ledger, self.claims = pool, pool.ledger, claims
        self.ranks = [(claimed, rank) for claimed in claims for rank in range(claimed.asker.request.ranks)]
        self.pieces: dict[str, list[Piece]] = {claimed.asker.id: [] for claimed in claims}
        self.tries = MOST_TRIES

    def succeeds_with(self, victim: Holder, elsewhere: tuple[Piece, ...]) -> bool:
        """Whether all fit with the victim back; then they are where they fit, else nothing has changed."""
        if len(self.ranks) > MOST_RANKS:
            return False
        mark = self.ledger.mark()
        leave(self.pool, victim, sign=-1)
        if victim.base is not None:
            restart_in_place(self.pool, victim.base, sign=-1)
        promise(self.ledger, elsewhere, lent=False, sign=-1)
        for claimed in self.claims:
            promise(self.ledger, claimed.pieces, lent=claimed.lent, sign=-1)
        is_taken = any(self.ledger.lendable_after(piece.device) < 0 for piece in victim.pieces)
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


def _count_in(pool: Pool, victim: Holder) -> None:
    if victim.base is not None:
        _count_in_again(pool, victim, victim.base)
        return
    insort(rows_of(pool, victim), victim, key=lambda holder: holder.order)
    victim.project.stays_after_all(victim.size, victim.user)


def _count_in_again(pool: Pool, above: Holder, base: Holder) -> None:
    """An elastic job keeps what it has above its minimum."""
    base.above = above
    for holder in (above, base):
        insort(rows_of(pool, holder), holder, key=lambda one: one.order)
    above.project.keeps_all(above.size, above.user)
