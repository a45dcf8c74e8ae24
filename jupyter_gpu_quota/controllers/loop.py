"""Runs controllers: each is an object with ``run_once(now)``, and acts only while its process holds the lease.

The scheduling loop runs in the main thread. Every other one has a thread of its own, so that a hub, a mail server or a
driver that answers slowly delays nobody else. A loop that fails is logged once, rests, and is tried again; it ends
neither the process nor another loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..hub_api import HubAway
from ..store.records.protocol import LeaseLost, StoreUnavailable
from .lease import Leadership

log = logging.getLogger(__name__)

STANDBY_MS = 500
"""How often a loop looks whether its process has the lease now."""

LONGEST_REST_MS = 30_000
FIRST_REST_MS = 1_000
LONGEST_BACKOFF_MS = 30_000
AWAY = (StoreUnavailable, HubAway)
"""What is told as a sentence; anything else is a defect, and is logged with its traceback."""


class Controller(Protocol):
    """One control loop."""

    @property
    def name(self) -> str: ...

    def run_once(self, now: int) -> int:
        """Compare what is with what should be, and act once. Returns when to run again, in ms since 1970."""


@dataclass(slots=True)
class LoopStatus:
    """How a loop fares: counts since the process began, instants in ms since 1970."""

    runs: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    last_run_at: int | None = None
    longest_ms: int = 0
    last_error: str = ""


class Loop:
    """One controller with its error policy. ``make`` makes the controller anew for each term of leadership.

    A controller that takes over begins with what is stored, never with what this process knew in an earlier term.
    """

    def __init__(
        self, name: str, make: Callable[[], Controller], leadership: Leadership, clock: Callable[[], int]
    ) -> None:
        self.name, self._make, self._leadership, self._clock = name, make, leadership, clock
        self.status = LoopStatus()
        self._controller: Controller | None = None
        self._fencing: int | None = None

    def turn(self) -> int:
        """Run once if this process is the leader. Returns when to turn again, in ms since 1970. Never raises."""
        now, lease = self._clock(), self._leadership.current()
        if lease is None:
            self._controller = None
            return now + STANDBY_MS
        if lease.fencing != self._fencing:
            self._controller, self._fencing = None, lease.fencing
        try:
            self._controller = self._controller or self._make()
            at = self._controller.run_once(now)
        except LeaseLost as lost:
            log.info("%s: %s", self.name, lost)
            self._controller = None
            return now + STANDBY_MS
        except Exception as error:  # noqa: BLE001 - one loop that fails must not end the others
            return self._failed(error, now)
        self._done(now)
        return min(at, now + LONGEST_REST_MS)

    def _done(self, now: int) -> None:
        status = self.status
        if status.failures_in_a_row:
            log.info("%s: works again", self.name)
        status.runs, status.failures_in_a_row, status.last_run_at = status.runs + 1, 0, now
        status.longest_ms = max(status.longest_ms, self._clock() - now)

    def _failed(self, error: Exception, now: int) -> int:
        """Log a failure once, and rest ever longer."""
        status, text = self.status, f"{type(error).__name__}: {error}"
        status.failures += 1
        status.failures_in_a_row += 1
        if status.failures_in_a_row == 1 or text != status.last_error:
            log.warning("%s: %s", self.name, error, exc_info=None if isinstance(error, AWAY) else error)
        status.last_error = text
        return now + min(LONGEST_BACKOFF_MS, FIRST_REST_MS << min(status.failures_in_a_row - 1, 5))


class LoopThread:
    """A thread that turns one loop until it is told to end."""

    def __init__(self, loop: Loop, clock: Callable[[], int]) -> None:
        self.loop, self._clock = loop, clock
        self._woken, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=loop.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def notify(self) -> None:
        """Turn now."""
        self._woken.set()

    def end(self, timeout_s: float) -> None:
        """Turn no more; waits for the present turn for so long."""
        self._ending = True
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ending:
            rest_ms = self.loop.turn() - self._clock()
            self._woken.wait(max(0, min(rest_ms, LONGEST_REST_MS)) / 1000)
            self._woken.clear()
