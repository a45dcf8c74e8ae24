"""Runs controllers: each is an object with ``run_once(now)``, and acts only while its process holds the lease.

Scheduling and retention run in the main thread, because the job backend belongs to it. Every other loop has a thread of
its own, so that a hub, a mail server or a driver that answers slowly delays no other loop. A failure of a loop is
logged once and the loop is tried again after a pause; it ends neither the process nor another loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from ..core.scheduling.decide import UndecidedPools
from ..hub_api import HubUnavailable
from ..store.records.activity import LOOP_STATUS_EVERY_MS, KeepNotes, Note
from ..store.records.calls import LeaseLost, StoreUnavailable
from .leadership.lease import FencedStore, Leadership

log = logging.getLogger(__name__)

STANDBY_MS = 500
"""How often a loop without the lease checks whether its process has it now."""

MAX_WAIT_MS = 30_000
MIN_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 30_000
UNAVAILABLE = (StoreUnavailable, HubUnavailable)
"""Errors that are logged as a sentence; any other is a defect, and is logged with its traceback."""


class InventoryRefused(Exception):
    """The store refused a reading of nodes and devices, so the one before counts; all else of the run is done."""


KEEPS_CONTROLLER = (*UNAVAILABLE, UndecidedPools, InventoryRefused)
"""Errors after which the controller continues: what it has in memory is right."""

STATUS_CHECK_MS = 2_000


class Controller(Protocol):
    """One control loop."""

    @property
    def name(self) -> str: ...

    def run_once(self, now: int) -> int:
        """Compare the observed with the desired state, and act once. Returns when to run again, in ms since 1970."""


@dataclass(slots=True)
class LoopStatus:
    """Counts since the process began; instants in ms since 1970. ``failing_since`` is None while the loop succeeds."""

    runs: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    failing_since: int | None = None
    last_run_at: int | None = None
    longest_ms: int = 0
    last_error: str = ""


class Loop:
    """One controller with its error policy. ``make`` makes a new controller for each term of leadership.

    A controller that takes over begins with what is stored, never with the memory of an earlier term; a controller is
    also replaced after a defect. ``takes_lease``: it takes and renews the lease itself, so it runs without one.
    """

    def __init__(
        self, name: str, make: Callable[[], Controller], leadership: Leadership, clock: Callable[[], int], *,
        takes_lease: bool = False, max_backoff_ms: int = MAX_BACKOFF_MS,
    ) -> None:  # fmt: skip
        self.name, self.make, self._leadership, self._clock = name, make, leadership, clock
        self._takes_lease, self._max_backoff_ms = takes_lease, max_backoff_ms
        self.status = LoopStatus()
        self._controller: Controller | None = None
        self._fencing: int | None = None

    def run(self) -> int:
        """Run the controller once if this process is the leader. Returns when to run again. Never raises."""
        now = self._clock()
        if not (self._takes_lease or self._is_leader()):
            return now + STANDBY_MS
        try:
            self._controller = self._controller or self.make()
            at = self._controller.run_once(now)
        except LeaseLost as lost:
            log.debug("%s: %s", self.name, lost)
            self._controller = None
            return now + STANDBY_MS
        except Exception as error:  # noqa: BLE001 - one loop that fails must not end the others
            return self._failed(error, now)
        self._succeeded(now)
        return min(at, now + MAX_WAIT_MS)

    def _is_leader(self) -> bool:
        """Whether the lease is in force; a controller of an earlier term is dropped."""
        lease = self._leadership.current()
        if lease is None or lease.fencing != self._fencing:
            self._controller = None
        self._fencing = None if lease is None else lease.fencing
        return lease is not None

    def _succeeded(self, now: int) -> None:
        status = self.status
        if status.failures_in_a_row:
            log.info("%s: works again", self.name)
        status.runs, status.failures_in_a_row, status.failing_since, status.last_run_at = status.runs + 1, 0, None, now
        status.longest_ms = max(status.longest_ms, self._clock() - now)

    def _failed(self, error: Exception, now: int) -> int:
        """Log a failure once, and wait twice as long after each one in a row."""
        status, text = self.status, f"{type(error).__name__}: {error}"
        is_defect = not isinstance(error, (*UNAVAILABLE, InventoryRefused))
        if not isinstance(error, KEEPS_CONTROLLER):
            self._controller = None
        if status.failing_since is None or text != status.last_error:
            shown = error.log_text() if isinstance(error, StoreUnavailable) else error
            log.warning("%s: %s", self.name, shown, exc_info=error if is_defect else None)
        status.failures += 1
        status.failures_in_a_row += 1
        status.failing_since = now if status.failing_since is None else status.failing_since
        status.last_error = text
        return now + min(self._max_backoff_ms, MIN_BACKOFF_MS << min(status.failures_in_a_row - 1, 5))


class LoopThread:
    """A thread that runs one loop until :meth:`end`."""

    def __init__(self, loop: Loop, clock: Callable[[], int]) -> None:
        self._loop, self._clock = loop, clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=loop.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        """Stop the loop. Waits ``timeout_s`` at most for the run that is in progress."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ending.is_set():
            rest_ms = self._loop.run() - self._clock()
            self._ending.wait(max(0, min(rest_ms, MAX_WAIT_MS)) / 1000)


class LoopStatusRecorder:
    """Stores the status of all loops, for the api to show: every change of success, and the counts once a minute."""

    name = "loop_status"

    def __init__(self, loops: Sequence[Loop], store: FencedStore) -> None:
        self._loops, self._store = loops, store
        self._stored: dict[str, LoopStatus] = {}
        self._all_at = 0

    def run_once(self, now: int) -> int:
        every = now >= self._all_at
        new = {
            loop.name: replace(loop.status)
            for loop in self._loops
            if every or self._has_changed(self._stored.get(loop.name), loop.status)
        }
        notes = tuple(Note(kind="loop", subject=name, at=now, document=asdict(each)) for name, each in new.items())
        if notes:
            self._store.record(KeepNotes(notes=notes))
        self._stored |= new
        self._all_at = now + LOOP_STATUS_EVERY_MS if every else self._all_at
        return now + STATUS_CHECK_MS

    @staticmethod
    def _has_changed(stored: LoopStatus | None, status: LoopStatus) -> bool:
        return stored is None or (stored.failing_since, stored.last_error) != (status.failing_since, status.last_error)
