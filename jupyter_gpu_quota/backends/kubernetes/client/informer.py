"""A copy of one kind of objects that follows the API server: a list in pages, then a watch from its version on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from .api_server import ApiServer, Expired, Json, RequestFailed

log = logging.getLogger(__name__)

PAGE, WATCH_S = 500, 240
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0


class Informer:
    """``on_change`` is called with the key of an object, its new state and the one before; None: there is none.

    A watch that breaks continues from its version; one whose version is too old (410) begins with a new list. An object
    never changes to an older version: versions of one kind are numbers that grow (KEP-5504).
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        on_change: Callable[[str, Json | None, Json | None], None] = lambda *_: None,
        kept: Callable[[Json], Json] = lambda each: each,
        **selectors: str,
    ) -> None:
        self._server, self.path, self._on_change, self._selectors = server, path, on_change, selectors
        self._kept, self._of_one_namespace = kept, "/namespaces/" in path
        self.objects: dict[str, Json] = {}
        self.is_synced = False
        self._version = ""

    async def run(self) -> None:
        """List and watch until cancelled. The pause after a failure grows while attempts fail sooner than it lasts.

        After an error of another kind, which is raised, it is to be called again: it lists all objects anew.
        """
        self._version, self.is_synced, pause_s = "", False, 0.0
        while True:
            began = time.monotonic()
            try:
                if not self._version:
                    await self.list()
                await self._watch()
                if time.monotonic() - began < FIRST_PAUSE_S:
                    await asyncio.sleep(FIRST_PAUSE_S)
            except Expired:
                self._version = ""
            except RequestFailed as error:
                self.is_synced = False
                pause_s = FIRST_PAUSE_S if time.monotonic() - began > pause_s else min(MAX_PAUSE_S, 2 * pause_s)
                log.warning("%s cannot be watched, next attempt in %.1f s: %s", self.path, pause_s, error)
                await asyncio.sleep(pause_s)

    async def list(self, server: ApiServer | None = None) -> None:
        """Read all objects as they are now. ``server``: the connections of it are used, and its rate.

        Each page is taken before the next is read: thousands of whole pods would need more memory than all else.
        """
        found = set[str]()
        query: dict[str, str | int] = {"limit": PAGE}
        while True:
            page = await (server or self._server).get(self.path, **self._selectors, **query)
            for each in page["items"]:
                found.add(self._key(each))
                self.note(each)
            if not (more := page["metadata"].get("continue")):
                break
            query["continue"] = more
        for name in self.objects.keys() - found:
            self._remove(name)
        self._version, self.is_synced = page["metadata"]["resourceVersion"], True

    def note(self, each: Json) -> None:
        """Take a state of an object, from a watch or from the answer to a request, unless a newer one is known."""
        name = self._key(each)
        known = self.objects.get(name)
        if known is None or version_of(each) > version_of(known):
            each["metadata"].pop("managedFields", None)  # more than half of an object, and never used
            self.objects[name] = self._kept(each)
            self._on_change(name, each, known)

    def _remove(self, name: str) -> None:
        if (known := self.objects.pop(name, None)) is not None:
            self._on_change(name, None, known)

    async def _watch(self) -> None:
        version = self._version
        events = self._server.watch(self.path, WATCH_S, self._opened, resourceVersion=version, **self._selectors)
        async for event in events:
            each = event["object"]
            self._version = each["metadata"]["resourceVersion"]
            known = self.objects.get(self._key(each))
            if event["type"] == "DELETED" and known is not None and version_of(known) <= version_of(each):
                self._remove(self._key(each))
            elif event["type"] in ("ADDED", "MODIFIED"):
                self.note(each)

    def _key(self, each: Json) -> str:
        """The name of an object, with its namespace where several are watched; empty for a bookmark."""
        metadata = each["metadata"]
        name: str = metadata.get("name", "")
        return name if self._of_one_namespace or "namespace" not in metadata else f"{metadata['namespace']}/{name}"

    def _opened(self) -> None:
        self.is_synced = True


def version_of(each: Json) -> int:
    """The resource version of an object."""
    return int(each["metadata"]["resourceVersion"])
