"""What the books note when work is asked to leave, gives up a promised place, or restarts where it is."""

from __future__ import annotations

from ..placement.place import promise, vacate
from ..queue.pool_state import Pool, rows_of
from ..queue.quota_state import Holder


def leave(pool: Pool, holder: Holder, *, sign: int = 1) -> None:
    """Note in the ledger that a holder is asked to leave, or gives up its promised place; -1 takes it back."""
    if holder.promised:
        promise(pool.ledger, holder.pieces, lent=holder.borrower, sign=-sign)
    else:
        vacate(pool.ledger, holder.pieces, lent=holder.borrower, sign=sign)


def count_out(pool: Pool, holder: Holder) -> None:
    """Note in the books of its project that a holder is asked to leave."""
    standing = holder.project
    rows_of(pool, holder).remove(holder)
    if holder.base is not None:
        standing.give_up(holder.size, holder.user)
    elif holder.promised:
        standing.remove(holder.size, holder.user)
    else:
        standing.begin_leaving(holder.size, holder.user)


def keep_minimum(pool: Pool, base: Holder) -> None:
    """An elastic job gives up what it has above its minimum: it leaves, and what it keeps is promised to itself."""
    restart_in_place(pool, base)
    rows_of(pool, base).remove(base)
    base.above = None


def restart_in_place(pool: Pool, base: Holder, *, sign: int = 1) -> None:
    """Note in the ledger that work leaves and comes back to its place; -1 takes it back."""
    vacate(pool.ledger, base.pieces, lent=False, sign=sign)
    promise(pool.ledger, base.pieces, lent=False, sign=sign)
