"""The leader's lease: one process holds it, and every effect of that process carries the lease's fencing number."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..store.records.calls import Lease, LeaseLost
from ..store.records.commands import Recorded, Refusal, Request
from ..store.transactions import Store

log = logging.getLogger(__name__)


class Leadership:
    """The lease of one process. Only the scheduling loop renews it; the other loops act while it is in force.

    ``clock`` gives milliseconds since 1970; ``holder`` names this process; a lease lasts ``lease_ms``.
    """

    def __init__(self, store: Store, clock: Callable[[], int], *, holder: str, lease_ms: int = 3_000) -> None:
        self._store, self._clock, self.holder, self.lease_ms = store, clock, holder, lease_ms
        self.lease: Lease | None = None

    def renew(self, now: int) -> Lease | None:
        """Take or renew the lease; None while another process holds it. Raises StoreUnavailable."""
        before = self.lease
        self.lease = self._store.acquire_lease(self.holder, now=now, ttl_ms=self.lease_ms)
        if self.lease is not None and (before is None or before.fencing != self.lease.fencing):
            log.info("this process is the leader now, fencing number %d", self.lease.fencing)
        if self.lease is None and before is not None:
            log.warning("another process is the leader now; this one waits")
        return self.lease

    def is_fresh(self, now: int) -> bool:
        """Whether less than half of the lease's time has gone.

        A lease with more time left than its whole duration was taken before the clock was set back.
        """
        return self.lease is not None and self.lease_ms // 2 < self.lease.expires_at - now <= self.lease_ms

    def current(self) -> Lease | None:
        """The lease, while it is in force by this process's clock."""
        lease, now = self.lease, self._clock()
        return lease if lease is not None and now < lease.expires_at <= now + self.lease_ms else None

    def check(self) -> Lease:
        """The lease in force. Raises LeaseLost: a process that was frozen past its lease must not act."""
        lease = self.current()
        if lease is None:
            raise LeaseLost(f"The lease of {self.holder} ended; another controller may act now.")
        return lease

    def resign(self) -> None:
        """Give the lease back, so that a successor need not wait for its end."""
        if self.lease is not None:
            self._store.release_lease(self.lease)
            self.lease = None


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
