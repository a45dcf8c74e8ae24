"""Renews the lease from a thread of its own, while a turn of the main loop lasts longer than half of a lease.

A take-over of thousands of pods, or a decision about thousands of jobs, may take longer than a lease lasts. Without a
renewal each take-over would end with a lost lease, and begin again. As in client-go's leader election, the renewal ends
before the lease does where it fails, and then nothing acts any more: the lease is over by the clock of this process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...store.records.calls import StoreUnavailable
from ...store.transactions import Store
from .lease import Leadership

log = logging.getLogger(__name__)

CHECKS_PER_LEASE = 15
AFTER_PERCENT = 60
"""The loop itself renews after half of the lease; the thread is later, and still has time for several attempts."""


class LeaseRenewal:
    """Continues the term of ``leadership``; it never begins one.

    ``store`` may be used by any thread. A main loop without a turn for ``max_turn_s`` hangs, and its lease ends.
    """

    def __init__(
        self, leadership: Leadership, store: Store, clock: Callable[[], int], *,
        max_turn_s: float, monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._leadership, self._store, self._clock = leadership, store, clock
        self._max_turn_s, self._monotonic = max_turn_s, monotonic
        self._turn_at, self.is_failing = monotonic(), False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def note_turn(self) -> None:
        """Note that the main loop began another turn."""
        self._turn_at = self._monotonic()

    def run_once(self) -> None:
        """Renew the lease if the loop should have done so, and does not hang."""
        if self._monotonic() - self._turn_at > self._max_turn_s:
            return
        lease, lease_ms = self._leadership.lease, self._leadership.lease_ms
        if lease is None or not 0 < lease.expires_at - self._clock() <= lease_ms * (100 - AFTER_PERCENT) // 100:
            return
        try:
            self._leadership.continue_term(self._store)
            self.is_failing = False
        except StoreUnavailable as error:
            if not self.is_failing:
                log.warning("the lease cannot be renewed, and ends soon: %s", error.log_text())
            self.is_failing = True

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop the renewal; one that is in progress ends first."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._leadership.lease_ms / CHECKS_PER_LEASE / 1000):
            try:
                self.run_once()
            except Exception:
                log.exception("the lease could not be renewed, and this is tried again")
