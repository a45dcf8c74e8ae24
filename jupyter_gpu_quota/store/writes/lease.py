"""The right to decide: one holder for at most three seconds at a time, and a fencing number that only grows."""

from __future__ import annotations

from dataclasses import replace

from ..database.unit_of_work import UnitOfWork
from ..records.protocol import Lease

LONGEST_LEASE_MS = 3_000


def acquire(work: UnitOfWork, holder: str, *, ttl_ms: int) -> Lease | None:
    """Take or renew the lease; None while another holder's stands. Raises ValueError for a time to live out of range.

    A lease that would end later than any can was taken before the clock was set back, and counts as over.
    """
    if not 1 <= ttl_ms <= LONGEST_LEASE_MS:
        raise ValueError(f"{holder} asked for a lease of {ttl_ms} ms; it must be from 1 to {LONGEST_LEASE_MS} ms")
    head = work.head
    stands = head.holder is not None and work.now < head.expires_at <= work.now + LONGEST_LEASE_MS
    if stands and head.holder != holder:
        return None
    fencing = head.fencing if stands else head.fencing + 1
    lease = Lease(holder=holder, fencing=fencing, expires_at=work.now + ttl_ms)
    work.head = replace(head, holder=holder, fencing=fencing, expires_at=lease.expires_at)
    return lease


def release(work: UnitOfWork, lease: Lease) -> None:
    """Give the lease back before its end; a lease that is not ours any more is left alone."""
    head = work.head
    if (head.holder, head.fencing) == (lease.holder, lease.fencing):
        work.head = replace(head, holder=None, expires_at=0)


def why_lost(work: UnitOfWork, lease: Lease) -> str | None:
    """The sentence that says why this lease gives no right to write now; None while it does."""
    head = work.head
    if (head.holder, head.fencing) != (lease.holder, lease.fencing):
        return (
            f"{lease.holder} held the lease with fencing {lease.fencing}, but {head.holder or 'nobody'} holds it"
            f" with fencing {head.fencing}; what {lease.holder} decided since does not count."
        )
    if work.now >= head.expires_at:
        return f"The lease of {lease.holder} ended at {head.expires_at}, and it is {work.now}; take it again first."
    return None
