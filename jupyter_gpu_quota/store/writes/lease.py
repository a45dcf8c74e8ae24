"""The lease: one holder for at most three seconds at a time, and a fencing number that only grows."""

from __future__ import annotations

from dataclasses import replace

from ..database.unit_of_work import UnitOfWork
from ..records.calls import CLOCK_TOLERANCE_MS, MAX_LEASE_MS, Lease


def acquire(work: UnitOfWork, holder: str, *, ttl_ms: int, above: int = 0) -> Lease | None:
    """Take or renew the lease; None while another holder's is in force. Raises ValueError for a wrong time to live.

    ``above``: a fencing number that was used already, by a leader that this database may not know.
    """
    _check_time_to_live(holder, ttl_ms)
    head, in_force = work.head, _is_in_force(work)
    if in_force and head.holder != holder:
        return None
    fencing = head.fencing if in_force and head.fencing > above else max(head.fencing, above) + 1
    return _put(work, holder, fencing, ttl_ms)


def renew(work: UnitOfWork, lease: Lease, *, ttl_ms: int) -> Lease | None:
    """Continue a term; None where it is over, also if nobody else began one. Raises ValueError as ``acquire``."""
    _check_time_to_live(lease.holder, ttl_ms)
    is_same = (work.head.holder, work.head.fencing) == (lease.holder, lease.fencing)
    return _put(work, lease.holder, lease.fencing, ttl_ms) if is_same and _is_in_force(work) else None


def _check_time_to_live(holder: str, ttl_ms: int) -> None:
    if not 1 <= ttl_ms <= MAX_LEASE_MS:
        raise ValueError(f"{holder} asked for a lease of {ttl_ms} ms; it must be from 1 to {MAX_LEASE_MS} ms")


def _is_in_force(work: UnitOfWork) -> bool:
    """Whether there is a holder now.

    A lease that ends later than any can, also by a clock that is CLOCK_TOLERANCE_MS ahead, was taken before the clock
    was set back, and counts as expired.
    """
    latest = work.now + MAX_LEASE_MS + CLOCK_TOLERANCE_MS
    return work.head.holder is not None and work.now < work.head.expires_at <= latest


def _put(work: UnitOfWork, holder: str, fencing: int, ttl_ms: int) -> Lease:
    lease = Lease(holder=holder, fencing=fencing, expires_at=work.now + ttl_ms)
    work.head = replace(work.head, holder=holder, fencing=fencing, expires_at=lease.expires_at)
    return lease


def release(work: UnitOfWork, lease: Lease) -> None:
    """End a lease early; one that another holder has taken over is left unchanged."""
    head = work.head
    if (head.holder, head.fencing) == (lease.holder, lease.fencing):
        work.head = replace(head, holder=None, expires_at=0)


def why_lost(work: UnitOfWork, lease: Lease) -> str | None:
    """Why this lease is not in force; None while it is."""
    head = work.head
    if (head.holder, head.fencing) != (lease.holder, lease.fencing):
        return (
            f"{lease.holder} held the lease with fencing {lease.fencing}, but {head.holder or 'no controller'} holds it"
            f" with fencing {head.fencing}; decisions of {lease.holder} since then are not committed."
        )
    if work.now >= head.expires_at:
        return f"The lease of {lease.holder} ended at {head.expires_at}, and it is {work.now}; take it again first."
    return None
