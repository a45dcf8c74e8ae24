"""Server-sent events: one connection as a stream of named events with heartbeats."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

from .permissions import Person
from .work_in_progress import EVENT_STREAMS, WorkInProgress

HEARTBEAT_S = 5.0
"""The interval of heartbeats on a quiet stream."""


class Streams(WorkInProgress):
    """Counts the open streams of each person, which are limited."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End every stream at its next event or heartbeat."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()


class EventStream:
    """The sending end of one stream, a context. ``send`` raises StreamClosedError when the reader is gone."""

    def __init__(self, resource: RequestHandler, streams: Streams, person: Person) -> None:
        self._resource, self._streams, self._person = resource, streams, person

    def __enter__(self) -> EventStream:
        self._streams.begin(self._person, EVENT_STREAMS)
        self._resource.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self._resource.set_header("Cache-Control", "no-cache, no-transform")
        self._resource.set_header("X-Accel-Buffering", "no")
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.end(self._person, EVENT_STREAMS)

    async def send(self, event: str, body: BaseModel | str, name: str | None = None) -> None:
        """Send one event; ``name`` is its id, with which a reader may resume."""
        text = body if isinstance(body, str) else body.model_dump_json()
        head = f"id: {name}\nevent: {event}\n" if name is not None else f"event: {event}\n"
        await self._write(f"{head}data: {text}\n\n")

    async def heartbeat(self) -> None:
        """Send a comment for programs and an event for browsers: a proxy may keep a dead connection open."""
        await self._write(": here\nevent: beat\ndata: {}\n\n")

    async def _write(self, text: str) -> None:
        if self._streams.closed:
            raise StreamClosedError
        self._resource.write(text)
        await self._resource.flush()
