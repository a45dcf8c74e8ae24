"""The effects of enforcement: hold a job, store a warning or a stop, stop a server, kill a server's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ..backends.protocol import EnforcementBackend, StopNotebookOrder
from ..store.records.commands import ChangeJob, Recorded, RecordMemoryEnforcement, Request
from ..store.records.rows import NotebookRecord
from .leadership.lease import FencedStore
from .notifications import NotificationQueue

log = logging.getLogger(__name__)


class Effects:
    """``stop_server`` requests that the hub stop a notebook's server, without waiting for the hub.

    Warnings, stops and holds are queued, and :meth:`record` stores them in one transaction with the countdowns that
    they belong to: a controller that is killed in between repeats no warning and loses none. Every effect carries the
    fencing number. Raises LeaseLost where the lease is not in force.
    """

    def __init__(
        self, store: FencedStore, backend: EnforcementBackend, notifications: NotificationQueue,
        stop_server: Callable[[NotebookRecord], object], clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self.store, self.backend, self.notifications = store, backend, notifications
        self.stop_server, self.clock = stop_server, clock
        self.queued: list[Request] = []

    def hold(self, change: ChangeJob) -> None:
        """Hold a job."""
        self.queued.append(change)

    def note(self, request: RecordMemoryEnforcement) -> None:
        """Note a warning or stop of a notebook, with its notification."""
        notifications = self.notifications.about_enforcement(request, self.clock())
        self.queued.append(replace(request, notifications=notifications))

    def record(self, *others: Request) -> None:
        """Store what is queued, and these. A job or notebook that ended meanwhile stays as it is."""
        for outcome in self.store.record(*self.queued, *others):
            if not isinstance(outcome, Recorded):
                log.debug("%s", outcome.message)
        self.queued.clear()

    def stop(self, record: NotebookRecord) -> None:
        self.store.check()
        self.stop_server(record)

    def kill(self, notebook: str, reason: str) -> None:
        """Kill what is left of a notebook's server."""
        self.backend.stop_notebook(StopNotebookOrder(notebook=notebook, fencing=self.store.check(), reason=reason))
