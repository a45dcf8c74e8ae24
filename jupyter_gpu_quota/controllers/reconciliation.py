"""Slices whose server is gone are given back: bookings are compared with the hub's own list of servers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..api.services import Door
from ..core.lifecycle import NOTEBOOK_FINAL
from ..hub_api import Hub, Server
from ..store.records.commands import ReturnNotebook
from ..store.records.rows import NotebookRecord
from .loop import go_round

log = logging.getLogger(__name__)

EVERY_S = 30.0
GRACE_MS = 60_000
LOOKS = 2
ACTOR = "system:reconcile"


class Reconciler:
    """Remembers how often, and since when, the server of a slice was not among the hub's.

    A slice goes back after two looks in a row without its server, 60 s apart at least. A hub that does not answer
    is no look: nothing is concluded, and the count stands where it was.
    """

    def __init__(self, grace_ms: int = GRACE_MS) -> None:
        self._grace_ms = grace_ms
        self._missed: dict[str, tuple[int, int]] = {}

    def look(
        self, live: Iterable[NotebookRecord], names: dict[str, str], servers: Iterable[Server], now: int
    ) -> list[str]:
        """Take one answer of the hub; returns the ids of slices to give back."""
        running = {(server.user, server.name) for server in servers if server.active}
        missing = [
            record.notebook.id
            for record in live
            if record.notebook.state not in NOTEBOOK_FINAL
            and record.notebook.user in names
            and (names[record.notebook.user], record.server) not in running
            and now - record.notebook.requested_at >= self._grace_ms
        ]
        self._missed = {name: self._count(name, now) for name in missing}
        return [
            name for name, (count, since) in self._missed.items() if count >= LOOKS and now - since >= self._grace_ms
        ]

    def _count(self, name: str, now: int) -> tuple[int, int]:
        count, since = self._missed.get(name, (0, now))
        return count + 1, since


async def keep_reconciling(door: Door, hub: Hub, every_s: float = EVERY_S) -> None:
    """Look now and every 30 s, for as long as the task lives."""
    reconciler = Reconciler()
    await go_round(lambda: reconcile_once(door, hub, reconciler), every_s, "bookings are not reconciled now", log)


async def reconcile_once(door: Door, hub: Hub, reconciler: Reconciler) -> list[str]:
    """One look; returns the slices that were given back. A hub without bookings is not asked."""
    await door.world.refresh()
    live = list(door.world.mirror.notebooks.values())
    if not live:
        return []
    servers = await hub.servers()
    await door.world.learn_names([record.notebook.user for record in live])
    gone = reconciler.look(live, door.world.names, servers, door.clock())
    for name in gone:
        why = "the hub has no such server: neither active nor pending for a minute"
        await door.record(ReturnNotebook(notebook=name, actor=ACTOR, why=why))
        log.info("slice %s was given back: %s", name, why)
    return gone
