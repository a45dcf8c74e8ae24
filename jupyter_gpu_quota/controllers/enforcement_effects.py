"""What enforcement may do: hold a job, note a warning or a stop, stop a server, kill a server's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ..backends.protocol import EnforcementBackend, StopOrder
from ..store.records.commands import ChangeJob, Recorded, RecordMemoryEnforcement
from ..store.records.rows import NotebookRecord
from .lease import FencedStore
from .notifications import NotificationQueue

log = logging.getLogger(__name__)


class Effects:
    """``stop_server`` asks the hub to stop a notebook's server; it must not wait for the hub.

    Every effect carries the fencing number. Raises LeaseLost where the lease is not in force.
    """

    def __init__(
        self, store: FencedStore, backend: EnforcementBackend, notifications: NotificationQueue,
        stop_server: Callable[[NotebookRecord], object], clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self.store, self.backend, self.notifications = store, backend, notifications
        self.stop_server, self.clock = stop_server, clock

    def hold(self, change: ChangeJob) -> None:
        """Hold a job; one that ended just now is left alone."""
        (outcome,) = self.store.record(change)
        if not isinstance(outcome, Recorded):
            log.debug("%s", outcome.message)

    def note(self, request: RecordMemoryEnforcement) -> None:
        """Keep what a notebook is warned of, with the message to its owner; one that ended just now is left alone."""
        notifications = self.notifications.about_enforcement(request, self.clock())
        (outcome,) = self.store.record(replace(request, notifications=notifications))
        if not isinstance(outcome, Recorded):
            log.debug("%s", outcome.message)

    def stop(self, record: NotebookRecord) -> None:
        self.store.check()
        self.stop_server(record)

    def kill(self, notebook: str, reason: str) -> None:
        """Kill what is left of a notebook's server."""
        self.backend.stop_notebook(StopOrder(notebook=notebook, fencing=self.store.check(), reason=reason))
