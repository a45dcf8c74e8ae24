"""None too many: whoever a later pick of the same plan made unnecessary runs on."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from .model import WHOLE_DEVICE
from .placement import Fit, Piece, Request, place, promise
from .pool import Holder, Pool, Right, rows_of
from .reclaim import Claimed, leave

MOST_MOVED = 12
"""Up to so many claims are placed anew to spare a victim."""


def trim(pool: Pool, claims: Sequence[Claimed]) -> None:
    """Put back every victim without whom all claims of the plan still find room on what leaves.

    Judged on the whole plan: only room that is left over on devices that drain can replace a victim's. A victim
    whose own project claims in the same plan stays out: with it back, that claim would have less right.
    """
    claimers = {claimed.asker.standing for claimed in claims}
    for claimed in claims:
        for victim in [one for one in claimed.victims if not one.promised and one.project not in claimers]:
            if _left_over(pool) >= victim.size and _fits_without(pool, claims, victim):
                claimed.victims.remove(victim)
                _count_in(pool, victim)


def _left_over(pool: Pool) -> int:
    return sum(pool.ledger.lendable_after(at) for at in pool.ledger.draining)


def _fits_without(pool: Pool, claims: Sequence[Claimed], victim: Holder) -> bool:
    """Whether the claims fit with a victim back: first moving only those on its devices, then all, largest first."""
    devices = {piece.device for piece in victim.pieces}
    touched = [claimed for claimed in claims if not devices.isdisjoint(piece.device for piece in claimed.pieces)]
    if _resettle(pool, touched, victim):
        return True
    everybody = sorted(claims, key=lambda claimed: -claimed.asker.request.gpu_milli)
    return len(claims) <= MOST_MOVED and _resettle(pool, everybody, victim)


def _resettle(pool: Pool, claims: Sequence[Claimed], victim: Holder) -> bool:
    ledger, mark = pool.ledger, pool.ledger.mark()
    leave(pool, victim, sign=-1)
    for claimed in claims:
        promise(ledger, claimed.pieces, lent=claimed.lent, sign=-1)
    settled: list[tuple[Piece, ...]] = []
    for claimed in claims:
        pieces = _settle(pool, claimed)
        if pieces is None:
            ledger.undo(mark)
            return False
        settled.append(pieces)
    for claimed, pieces in zip(claims, settled, strict=True):
        claimed.pieces = pieces
    return True


def _settle(pool: Pool, claimed: Claimed) -> tuple[Piece, ...] | None:
    """Find room for a whole claim on what is free or leaves, and promise it."""
    pieces: list[Piece] = []
    for rank in range(claimed.asker.request.ranks):
        found = _settle_rank(pool, claimed, rank)
        if found is None:
            return None
        promise(pool.ledger, found, lent=claimed.lent)
        pieces += found
    return tuple(pieces)


def _settle_rank(pool: Pool, claimed: Claimed, rank: int) -> list[Piece] | None:
    request, ledger = claimed.asker.request, pool.ledger
    notebook = claimed.asker.right is Right.NOTEBOOK
    fit = place(ledger, Request(request.gpu_milli, 1, request.gpu_model), lent=claimed.lent or notebook)
    if isinstance(fit, Fit):
        return [Piece(rank, piece.device, piece.gpu_milli) for piece in fit.pieces]
    need = min(request.gpu_milli, WHOLE_DEVICE)
    after = ledger.lendable_after if claimed.lent or notebook else ledger.plain_after
    many = request.devices_per_rank
    nodes = sorted({ledger.node_of[at] for at in ledger.draining})
    spots = [ledger.on_node[node] for node in nodes] if many > 1 else [[at] for at in sorted(ledger.draining)]
    for spot in spots:
        room = [at for at in spot if request.gpu_model in (None, ledger.model[at]) and after(at) >= need]
        if len(room) >= many:
            return [Piece(rank, at, need) for at in room[:many]]
    return None


def _count_in(pool: Pool, victim: Holder) -> None:
    standing = victim.project
    insort(rows_of(pool, victim), victim, key=lambda holder: holder.order)
    standing.use += victim.size
    standing.by_user[victim.user] += victim.size
    standing.leaving -= victim.size
    standing.returning.remove(victim.size)
