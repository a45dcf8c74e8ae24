"""The reconciliation controller compares the live work with the hub.

It returns booked slices whose server the hub does not list, also released ones that the server could request again, and
holds waiting jobs whose user left all groups of some of their data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from ..core.lifecycle import WAITING
from ..core.reasons import DataUnavailable
from ..hub_api import Account, Server
from ..store.reads.followed_store import FollowedStore
from ..store.records.commands import ChangeJob, Recorded, ReturnNotebook
from ..store.records.rows import NotebookRecord
from .leadership.lease import FencedStore

log = logging.getLogger(__name__)

EVERY_MS = 30_000
ENDED_EVERY_MS = 600_000
"""How often ended slices are read: the query looks at all notebooks."""

GRACE_MS = 60_000
LISTS = 2
ACTOR = "system:reconcile"
WHY = "the hub has no such server: neither active nor pending for a minute"


class Reconciliation:
    """Counts how often in a row, and since when, the server of each slice was missing in the hub's list.

    A slice is returned after two lists in a row without its server, at least 60 s apart, and a job is held after two
    lists in a row without its groups. A hub that does not answer, or leaves out the groups, changes no count:
    ``servers`` and ``accounts`` raise HubUnavailable.
    """

    name = "reconciliation"

    def __init__(
        self, view: FollowedStore, store: FencedStore, servers: Callable[[], Sequence[Server]],
        accounts: Callable[[], Sequence[Account]], grace_ms: int = GRACE_MS,
    ) -> None:  # fmt: skip
        self.view, self.store, self.servers, self._grace_ms = view, store, servers, grace_ms
        self.accounts = accounts
        self._missed: dict[str, tuple[int, int]] = {}
        self._ended: Sequence[NotebookRecord] = ()
        """The ended slices that their servers could request again at ``_ended_at``."""
        self._ended_at: int | None = None
        self._without_group: frozenset[str] = frozenset()
        """The jobs whose user had no group for their data in the last list."""

    def run_once(self, now: int) -> int:
        """Compare once. The hub is asked for its servers if there are bookings, and for its users if jobs wait."""
        self.view.refresh()
        found = [*self.view.mirror.notebooks.values(), *self._requestable(now)]
        if found:
            servers = self.servers()
            self.view.learn_names([record.notebook.user for record in found])
            for name in self.missing(found, self.view.names, servers, now):
                (outcome,) = self.store.record(ReturnNotebook(notebook=name, actor=ACTOR, why=WHY))
                if isinstance(outcome, Recorded):
                    log.info("slice %s was returned: %s", name, WHY)
                self._ended = [record for record in self._ended if record.notebook.id != name]
        self._hold_without_group(now)
        return now + EVERY_MS

    def _requestable(self, now: int) -> list[NotebookRecord]:
        """The ended slices that their servers may request again, without those that were requested since."""
        if self._ended_at is None or not self._ended_at <= now < self._ended_at + ENDED_EVERY_MS:
            self._ended, self._ended_at = self.view.store.requestable_notebooks(), now
        return [record for record in self._ended if record.notebook.id not in self.view.mirror.notebooks]

    def _hold_without_group(self, now: int) -> None:
        """Hold each waiting job whose user was in no group, in two lists, that gave one of its data."""
        found = self._without_group_now(now)
        for job in sorted(found.keys() & self._without_group):
            self.store.record(ChangeJob(job=job, actor=ACTOR, change="hold", why=found[job]))
        self._without_group = frozenset(found)

    def _without_group_now(self, now: int) -> dict[str, DataUnavailable]:
        """The waiting jobs whose user may not use all of their data, each with the reason."""
        mirror, file = self.view.mirror, self.view.quota_file
        jobs = [mirror.jobs[job] for jobs in mirror.jobs_with_data.values() for job in jobs]
        waiting = {record.job.id: record for record in jobs if record.job.state in WAITING}
        if file is None or not waiting:
            return {}
        groups = {account.name: account.groups for account in self.accounts()}
        self.view.learn_names([record.job.user for record in waiting.values()])
        found = {}
        for job, record in waiting.items():
            if (user := self.view.names.get(record.job.user)) is None:
                continue
            kept = set(record.spec.data_groups).intersection(groups.get(user, ()))
            refusals = (file.data_refusal(name, kept, now) for name in record.spec.data)
            if (why := next(filter(None, refusals), None)) is not None:
                found[job] = why
        return found

    def missing(
        self, found: Iterable[NotebookRecord], names: dict[str, str], servers: Iterable[Server], now: int
    ) -> list[str]:
        """Count the slices whose server is not in this list of the hub. Returns the ids of those to return.

        An ended slice of a user whose name was erased has no server.
        """
        running = {(server.user, server.name) for server in servers if server.active}
        missing = [
            record.notebook.id
            for record in found
            if (record.notebook.user in names or record.ended_at is not None)
            and (names.get(record.notebook.user), record.server) not in running
            and now - record.notebook.requested_at >= self._grace_ms
        ]
        self._missed = {name: self._count(name, now) for name in missing}
        return [
            name for name, (count, since) in self._missed.items() if count >= LISTS and now - since >= self._grace_ms
        ]

    def _count(self, name: str, now: int) -> tuple[int, int]:
        count, since = self._missed.get(name, (0, now))
        return count + 1, since
