"""Notebooks whose server the service had stopped lately: so that who comes back is told why it is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...core.model import NotebookState
from ...core.reasons import SERVER_STOPPED
from ...store.records.protocol import Page
from ...store.records.rows import NotebookRecord
from .store_view import World

SHOWN_MS = 3 * 86_400_000
"""How long after its end a stop is shown: over a weekend."""

MOST_READ = Page(limit=5_000)
AGAIN_S = 60.0


class Stops:
    """What ended lately and why, read from the store when somebody asks and a slice came or went since."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: Sequence[NotebookRecord] = ()
        self._read_s, self._live = float("-inf"), frozenset[str]()

    async def recent(self) -> list[NotebookRecord]:
        """The stopped slices, the last stop first, of servers that have had no slice since."""
        ended, live = await self._ended(), self.world.mirror.notebooks.values()
        newest: dict[tuple[str, str], NotebookRecord] = {}
        for record in sorted([*ended, *live], key=lambda each: (each.notebook.requested_at, each.notebook.id)):
            newest[record.notebook.user, record.server] = record
        found = [each for each in newest.values() if _was_stopped(each)]
        await self.world.learn_names([each.notebook.user for each in found])
        return sorted(found, key=lambda each: (each.ended_at or 0, each.notebook.id), reverse=True)

    async def _ended(self) -> Sequence[NotebookRecord]:
        world, live, now_s = self.world, frozenset(self.world.mirror.notebooks), time.monotonic()
        if live != self._live or now_s - self._read_s >= AGAIN_S:
            since, states = world.now() - SHOWN_MS, (NotebookState.RETURNED,)
            rows, _ = await world.read(world.store.notebooks, states=states, ended_since=since, page=MOST_READ)
            self._known, self._live, self._read_s = rows, live, now_s
        return self._known


def _was_stopped(record: NotebookRecord) -> bool:
    reason = record.reason
    return record.ended_at is not None and reason is not None and reason.code in SERVER_STOPPED
