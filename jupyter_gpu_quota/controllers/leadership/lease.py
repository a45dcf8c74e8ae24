"""The leader's lease: one process holds it, and every effect of that process carries the lease's fencing number."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from ...store.database.tables import Head
from ...store.records.calls import CLOCK_TOLERANCE_MS, MAX_LEASE_MS, Lease, LeaseLost
from ...store.records.commands import Recorded, Refusal, Request
from ...store.transactions import Store

log = logging.getLogger(__name__)

CLOCK_WARNING_EVERY_MS = 60_000


def unique_holder() -> str:
    """A name for this process. Two containers may have equal host names and process ids, so a part is random."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Leadership:
    """The lease of one process. Only the scheduling loop takes it; the other loops act while it is in force.

    A turn of the scheduling loop may last longer than a lease, so another thread continues the term meanwhile. While
    a transaction of the loop itself has the lock, that thread cannot write: the transaction then continues the term.
    ``clock`` gives milliseconds since 1970; ``holder`` names this process; a lease lasts ``lease_ms``.
    """

    def __init__(self, store: Store, clock: Callable[[], int], *, holder: str, lease_ms: int = 3_000) -> None:
        self._store, self._clock, self.holder, self.lease_ms = store, clock, holder, lease_ms
        self.lease: Lease | None = None
        self.checks_database = False
        """Whether only scheduling acts in a new term, until it has set ``checked``: its database may be older."""
        self.checked: int | None = None
        """The fencing number of the term whose database was checked; None while decisions are held."""
        self.fenced: int | None = None
        """The fencing number that this process gave the backend last, whether or not that take-over succeeded."""
        self._warned_at: int | None = None
        self._renewed_at: int | None = None
        self._extended: Lease | None = None
        self._renewing = threading.RLock()

    def renew(self, now: int, *, above: int = 0) -> Lease | None:
        """Take or renew the lease; None while another process holds it. Raises StoreUnavailable.

        ``now``: the instant from which the time to the next renewal counts. ``above``: the fencing number must be above
        this one. Only the scheduling loop calls it.
        """
        with self._renewing:
            self._renewed_at = now
            return self._take_or_renew(now, above)

    def _take_or_renew(self, now: int, above: int) -> Lease | None:
        before, stored = self.lease, self._store.lease()
        self._extended = None
        taken = self._store.acquire_lease(self.holder, clock=self._clock, ttl_ms=self.lease_ms, above=above)
        self.lease = self._extended or taken  # that transaction may have been a long one itself
        if self.lease is not None and (before is None or before.fencing != self.lease.fencing):
            log.info("this process is the leader now, fencing number %d", self.lease.fencing)
            if stored is not None and stored.holder != self.holder:
                self._compare_clocks(stored, self._clock())
        if self.lease is None and before is not None:
            log.warning("another process is the leader now; this one waits")
        return self.lease

    def _compare_clocks(self, taken: Lease, now: int) -> None:
        """Warn, at most once a minute, where the lease that was taken over ends later than any by this clock."""
        ahead_ms = taken.expires_at - now - MAX_LEASE_MS
        is_due = self._warned_at is None or not 0 <= now - self._warned_at < CLOCK_WARNING_EVERY_MS
        if ahead_ms > CLOCK_TOLERANCE_MS and is_due:
            self._warned_at = now
            log.warning(
                "the clock of %s is at least %.1f s ahead of the clock of this process (%s), or this clock was set"
                " back; controllers whose clocks differ by more than %.0f s take the lease from each other:"
                " synchronise the clocks of their machines (NTP)",
                taken.holder, ahead_ms / 1000, self.holder, CLOCK_TOLERANCE_MS / 1000,
            )  # fmt: skip

    def continue_term(self, store: Store) -> None:
        """Renew the lease while it is in force, from another thread than the loop's. Raises StoreUnavailable.

        A term that is over stays over: whatever the loop has begun in it must not be continued.
        """
        with self._renewing:
            if (lease := self.lease) is not None:
                renewed = store.renew_lease(lease, clock=self._clock, ttl_ms=self.lease_ms)
                self.lease = renewed or replace(lease, expires_at=min(lease.expires_at, self._clock()))

    # --- the term in the scheduling loop's own transactions -------------------------------------------------------
    def held_in(self, head: Head) -> Lease | None:
        """The lease, where it is in force at the beginning of a transaction: nobody takes it before the end of that."""
        lease = self.lease
        if lease is None or not _is_of(head, lease):
            return None
        return lease if self._clock() < head.expires_at <= self._clock() + self.lease_ms else None

    def extension(self, lease: Lease, head: Head) -> Lease | None:
        """The lease from the end of a long transaction on; None where it was renewed lately, or given back."""
        now = self._clock()
        if not _is_of(head, lease) or head.expires_at - now > self.lease_ms // 2:
            return None
        return replace(lease, expires_at=now + self.lease_ms)

    def extended(self, lease: Lease) -> None:
        """A transaction that continues the term was committed."""
        with self._renewing:
            if self.lease is not None and self.lease.fencing == lease.fencing:
                self.lease = self._extended = lease

    @property
    def renew_at(self) -> int | None:
        """When the loop renews the lease; None: at once."""
        return None if self.lease is None or self._renewed_at is None else self._renewed_at + self.lease_ms // 2

    def is_fresh(self, now: int) -> bool:
        """Whether the lease is in force and the loop renewed it less than half of its time ago.

        A lease that was renewed later than now was renewed before the clock was set back.
        """
        lease, renewed_at = self.lease, self._renewed_at
        if lease is None or renewed_at is None:
            return False
        return renewed_at <= now < renewed_at + self.lease_ms // 2 and self.is_in_force(lease.fencing)

    def is_in_force(self, fencing: int) -> bool:
        """Whether the term with this number continues, by this process's clock."""
        lease, now = self.lease, self._clock()
        return lease is not None and lease.fencing == fencing and now < lease.expires_at <= now + self.lease_ms

    def current(self) -> Lease | None:
        """The lease, while it is in force by this process's clock, and no decision is held."""
        lease = self.lease
        if lease is None or (self.checks_database and lease.fencing != self.checked):
            return None
        return lease if self.is_in_force(lease.fencing) else None

    def check(self) -> Lease:
        """The lease in force. Raises LeaseLost: a process that was frozen past its lease must not act."""
        lease = self.current()
        if lease is None:
            raise LeaseLost(f"The lease of {self.holder} ended; another controller may act now.")
        return lease

    def resign(self) -> None:
        """Give the lease back, so that a successor need not wait for its end."""
        with self._renewing:
            if self.lease is not None:
                self._store.release_lease(self.lease)
                self.lease = None


def _is_of(head: Head, lease: Lease) -> bool:
    return (head.holder, head.fencing) == (lease.holder, lease.fencing)


class FencedStore:
    """Records the requests of a controller; the store refuses them when the lease is not in force any more.

    ``committed`` is called after a request that changed the store's version.
    """

    def __init__(
        self, store: Store, leadership: Leadership, clock: Callable[[], int], *,
        committed: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._store, self._leadership, self._clock, self._committed = store, leadership, clock, committed
        self._version = 0

    def check(self) -> int:
        """The fencing number, before an effect outside the store. Raises LeaseLost."""
        return self._leadership.check().fencing

    def record(self, *requests: Request) -> list[Recorded | Refusal]:
        """Record requests in one transaction. Raises LeaseLost and StoreUnavailable."""
        if not requests:
            return []
        outcomes = self._store.record(requests, now=self._clock(), lease=self._leadership.check())
        version = max((each.version for each in outcomes if isinstance(each, Recorded)), default=0)
        if version > self._version:
            self._version = version
            self._committed()
        return outcomes
