"""Accounting of a preemption: the records of the ledger and the quota states when work stops or restarts."""

from __future__ import annotations

from ..placement.place import reserve, vacate
from ..queue.pool_state import PoolState, remove_victim
from ..queue.quota_state import Victim


def mark_leaving(pool: PoolState, victim: Victim, *, sign: int = 1) -> None:
    """Record in the ledger that a victim stops, or loses its reserved devices; ``sign`` -1 undoes it.

    A job that restarts stops already: only its reserved devices become free.
    """
    if victim.reserved or victim.restarting:
        reserve(pool.ledger, victim.pieces, borrowed=victim.borrower, sign=-sign)
    else:
        vacate(pool.ledger, victim.pieces, borrowed=victim.borrower, sign=sign)


def subtract_use(pool: PoolState, victim: Victim) -> None:
    project = victim.project
    if not victim.reserved:  # a claim that ends may start elsewhere in the same plan, and runs on then
        pool.stopped.add(victim.key)
    remove_victim(pool, victim)
    if victim.base is not None:
        project.shrink(victim.size, victim.user)
    elif victim.reserved:
        project.remove(victim.size, victim.user)
    else:
        project.pause(victim.size, victim.user)


def restart_in_place(pool: PoolState, base: Victim, *, sign: int = 1) -> None:
    """Record in the ledger that work stops and restarts on the same devices; ``sign`` -1 undoes it."""
    vacate(pool.ledger, base.pieces, borrowed=False, sign=sign)
    reserve(pool.ledger, base.pieces, borrowed=False, sign=sign)
