"""Notebooks whose server the service stopped lately, with the reasons, for their owners."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...core.model import NotebookState
from ...store.records.calls import Page
from ...store.records.rows import NotebookRecord
from .store_view import StoreView

SHOWN_MS = 3 * 86_400_000
"""A stop is shown for this long: over a weekend."""

MAX_READ = Page(limit=5_000)
REFRESH_INTERVAL_S = 60.0


class StopReasons:
    """The recent stops, read again from the store when live slices changed since, or after a minute."""

    def __init__(self, store_view: StoreView) -> None:
        self.store_view = store_view
        self.generation = 0
        """Incremented when the recently ended slices change."""
        self._known: Sequence[NotebookRecord] = ()
        self._by_user: dict[str, list[NotebookRecord]] = {}
        self._read_s, self._live = float("-inf"), frozenset[str]()

    async def recent(self) -> list[NotebookRecord]:
        """The stopped slices, the last stop first, of servers that have had no slice since."""
        ended, live = await self.refresh(), self.store_view.mirror.notebooks.values()
        newest: dict[tuple[str, str], NotebookRecord] = {}
        for record in sorted([*ended, *live], key=lambda each: (each.notebook.requested_at, each.notebook.id)):
            newest[record.notebook.user, record.server] = record
        found = [each for each in newest.values() if each.ended_at is not None and each.is_stopped]
        await self.store_view.learn_names([each.notebook.user for each in found])
        return sorted(found, key=lambda each: (each.ended_at or 0, each.notebook.id), reverse=True)

    def ended_of(self, user: str) -> list[tuple[str, int]]:
        """The recently ended slices of a user, each with the version of its last change; ``refresh`` reads them."""
        return [(row.notebook.id, row.changed) for row in self._by_user.get(user, ())]

    async def refresh(self) -> Sequence[NotebookRecord]:
        """Read the recently ended slices if they may have changed, and return them."""
        store_view, live, now_s = self.store_view, frozenset(self.store_view.mirror.notebooks), time.monotonic()
        if live != self._live or now_s - self._read_s >= REFRESH_INTERVAL_S:
            since, states = store_view.now() - SHOWN_MS, (NotebookState.RETURNED,)
            rows, _ = await store_view.read(store_view.store.notebooks, states=states, ended_since=since, page=MAX_READ)
            if rows != self._known:
                self.generation += 1
                self._by_user = {}
                for row in rows:
                    self._by_user.setdefault(row.notebook.user, []).append(row)
            self._known, self._live, self._read_s = rows, live, now_s
        return self._known
