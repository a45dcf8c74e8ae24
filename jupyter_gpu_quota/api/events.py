"""The event stream: what changed, as one person may see it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from tornado.iostream import StreamClosedError

from ..core.lifecycle import WAITING
from ..hub_api import HubAway
from ..store.records.protocol import StoreUnavailable
from ..store.records.rows import JobRecord, NotebookRecord
from ..wire import ChangedView
from .access.people import NotAllowed, Reader
from .access.permissions import Person, sees_work
from .access.refusals import Refused
from .access.streams import HEARTBEAT_S, EventStream
from .handlers.cluster import device_views
from .requests.resource import Call
from .requests.services import Door
from .state.store_view import Delta
from .views.idle_states import shown
from .views.records import job_view

MOST_WAITING = 200
"""Deltas that one slow reader may let pile up before it is dropped; it comes back with its last event's id."""

TOGETHER_S = 0.1
"""Changes within this time go out as one event."""

MOST_RESUMED = 2000


@dataclass(slots=True)
class _Pile:
    """What changed since the last event, each thing once and as it is now."""

    version: int = 0
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    notebooks: dict[str, NotebookRecord] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)

    def add(self, delta: Delta) -> None:
        self.version = max(self.version, delta.version)
        self.jobs |= {record.job.id: record for record in delta.jobs}
        self.notebooks |= {record.notebook.id: record for record in delta.notebooks}
        self.devices |= set(delta.devices)


class _Inbox:
    """Deltas for one reader; full means that the reader is too slow."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Delta] = asyncio.Queue(MOST_WAITING)
        self.overrun = False

    def put(self, delta: Delta) -> None:
        try:
            self._queue.put_nowait(delta)
        except asyncio.QueueFull:
            self.overrun = True

    async def take(self, timeout_s: float) -> _Pile | None:
        """Everything that came, gathered for a moment; None if nothing came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._queue.get()
        except TimeoutError:
            return None
        pile = _Pile()
        pile.add(first)
        await asyncio.sleep(TOGETHER_S)
        while not self._queue.empty():
            pile.add(self._queue.get_nowait())
        return pile


async def follow(call: Call) -> None:
    """``changed`` events until the reader goes. ``Last-Event-ID`` (or ``since``) resumes; ``reset`` says: read anew."""
    door = call.door
    since = _resumed_from(call)
    await door.world.fresh()
    reader, inbox = Reader(door.people, call.resource, call.person), _Inbox()
    person = await reader.now()
    with EventStream(call.resource, door.streams, call.person) as stream:
        door.world.listen(inbox.put)
        try:
            await _greet(door, person, stream, since)
            await _relay(door, reader, stream, inbox)
        except (StreamClosedError, NotAllowed, HubAway, StoreUnavailable):
            pass  # the reader is gone, or may not read on: the connection ends, and coming back is checked anew
        finally:
            door.world.forget(inbox.put)


def _resumed_from(call: Call) -> int | None:
    word = call.resource.request.headers.get("Last-Event-ID") or call.text("since")
    if word is None:
        return None
    if not (word.isascii() and word.isdigit() and len(word) < 19):
        raise Refused(400, "invalid", f"Last-Event-ID was {word[:40]!r}; it is the id of an event of this stream.")
    return int(word)


async def _greet(door: Door, person: Person, stream: EventStream, since: int | None) -> None:
    """The first event says where the stream stands, with everything that a resuming reader has missed."""
    version = door.world.mirror.version
    pile = _Pile(version=version)
    if since is not None and since != version:
        changes = await door.world.read(door.world.store.changes, since)
        if since > version or len(changes.jobs) > MOST_RESUMED:
            await stream.send("reset", f'{{"version":{version}}}', str(version))
            return
        await door.world.learn_names([r.job.user for r in changes.jobs] + [r.notebook.user for r in changes.notebooks])
        devices = tuple(door.world.mirror.devices)
        pile.add(Delta(version=version, jobs=changes.jobs, notebooks=changes.notebooks, devices=devices))
    await stream.send("changed", changed_view(door, person, pile), str(version))


async def _relay(door: Door, reader: Reader, stream: EventStream, inbox: _Inbox) -> None:
    while not inbox.overrun:
        pile = await inbox.take(HEARTBEAT_S)
        person = await reader.now()
        if pile is None:
            await stream.beat()
            continue
        if any(record.job.state in WAITING for record in pile.jobs.values()):
            with contextlib.suppress(StoreUnavailable):
                await door.foresight.think()
        view = changed_view(door, person, pile)
        if view.jobs or view.notebooks or view.devices:
            await stream.send("changed", view, str(view.version))


def changed_view(door: Door, person: Person, pile: _Pile) -> ChangedView:
    """A pile as one person may see it; of a thing that they may not see nothing is said, not even its id."""
    return ChangedView.model_construct(
        version=pile.version,
        jobs=[job_view(record, door.world) for record in pile.jobs.values() if _sees_job(person, record)],
        notebooks=[
            shown(record, door.world)
            for record in pile.notebooks.values()
            if sees_work(person, project=record.notebook.project, owner=record.notebook.user)
        ],
        devices=device_views(door, person, pile.devices),
    )


def _sees_job(person: Person, record: JobRecord) -> bool:
    return sees_work(person, project=record.job.project, owner=record.job.user, private=record.spec.private)
