"""The event stream: changes, as one person may see them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tornado.iostream import StreamClosedError

from ..core.lifecycle import WAITING
from ..hub_api import HubUnavailable
from ..store.reads.snapshot import Mirror
from ..store.records.calls import StoreUnavailable
from ..store.records.rows import BEGINNING, Changes, JobRecord, NotebookRecord, Position
from ..wire import ChangedView
from .access.people import NotAllowed, Reader
from .access.permissions import Person, may_see
from .access.refusals import Refused
from .access.streams import HEARTBEAT_S, EventStream
from .handlers.cluster import device_views
from .requests.call import Call
from .requests.services import Services
from .state.event_ids import EventId
from .state.store_view import Delta, StoreView
from .views.idle_states import classified_view
from .views.rendered_jobs import rendered_job

MAX_UNSENT = 200
"""The limit of unsent deltas of one slow reader. Beyond it the stream ends; the client resumes with its last id."""

BATCH_S = 0.1
"""Changes within this time are sent as one event."""

MAX_RESUMED = 2000
"""The most changed jobs and notebooks with which a stream resumes; beyond it the client loads all again."""


@dataclass(slots=True)
class _Changes:
    """The changes since the last event, each record once and in its newest state."""

    version: int = 0
    position: Position = BEGINNING
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    notebooks: dict[str, NotebookRecord] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    reload: bool = False

    def add(self, delta: Delta) -> None:
        self.reload |= delta.reload
        if delta.version >= self.version:
            self.version, self.position = delta.version, delta.position
        self.jobs |= {record.job.id: record for record in delta.jobs}
        self.notebooks |= {record.notebook.id: record for record in delta.notebooks}
        self.devices |= set(delta.devices)


class _Inbox:
    """The unsent deltas of one reader, without the work of others: most changes wake few of the readers."""

    def __init__(self, reader: Callable[[], Person]) -> None:
        self._reader = reader
        self._queue: asyncio.Queue[Delta] = asyncio.Queue(MAX_UNSENT)
        self.overrun = False

    def put(self, delta: Delta) -> None:
        """Put the changes of devices, and of the work that the reader sees."""
        person = self._reader()
        jobs = tuple(record for record in delta.jobs if may_see(person, record))
        notebooks = tuple(record for record in delta.notebooks if may_see(person, record))
        if not (jobs or notebooks or delta.devices or delta.reload):
            return
        try:
            self._queue.put_nowait(replace(delta, jobs=jobs, notebooks=notebooks))
        except asyncio.QueueFull:
            self.overrun = True

    def put_work(self, delta: Delta) -> None:
        """Put the changes of jobs and notebooks."""
        if delta.jobs or delta.notebooks or delta.reload:
            self.put(replace(delta, devices=()))

    async def take(self, timeout_s: float) -> _Changes | None:
        """All deltas of a short interval together; None after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._queue.get()
        except TimeoutError:
            return None
        unsent = _Changes()
        unsent.add(first)
        await asyncio.sleep(BATCH_S)
        while not self._queue.empty():
            unsent.add(self._queue.get_nowait())
        return unsent


async def follow(call: Call) -> None:
    """Send ``changed`` events. ``Last-Event-ID`` (or ``since``) resumes; after ``reset`` the client loads all again.

    ``without_devices``: for readers that show jobs and notebooks only. Every reading changes the views of many devices.
    """
    services = call.services
    since, without_devices = _resumed_from(call), call.flag("without_devices")
    reader = Reader(services.people, call.resource, call.person)
    inbox = _Inbox(lambda: reader.last_known)
    person = await reader.now()
    put = inbox.put_work if without_devices else inbox.put
    devices = () if without_devices else tuple(services.store_view.mirror.devices)
    with EventStream(call.resource, services.streams, call.person) as stream:
        services.store_view.listen(put)
        try:
            await _send_first(services, person, stream, since, devices)
            await _send_changes(services, reader, stream, inbox)
        except (StreamClosedError, NotAllowed, HubUnavailable, StoreUnavailable):
            pass  # the reader disconnected or lost access: a new connection is authenticated again
        finally:
            services.store_view.forget(put)


def _resumed_from(call: Call) -> EventId | None:
    word = call.resource.request.headers.get("Last-Event-ID") or call.text("since")
    if word is None:
        return None
    known = EventId.parse(word)
    if known is None:
        raise Refused(400, "invalid", f"Last-Event-ID was {word[:40]!r}; it is the id of an event of this stream.")
    return known


async def _send_first(
    services: Services, person: Person, stream: EventStream, known: EventId | None, devices: tuple[str, ...]
) -> None:
    """Send the present version; to a resuming reader all changes that it missed, and these devices if there are any."""
    mirror = services.store_view.mirror
    unsent = _Changes(version=mirror.version, position=mirror.position)
    if known is not None:
        missed = await _missed(services.store_view, person, known)
        if missed is None:
            await stream.send("reset", f'{{"version":{mirror.version}}}', _id_of(mirror, person))
            return
        unsent.jobs = {record.job.id: record for record in missed.jobs}
        unsent.notebooks = {record.notebook.id: record for record in missed.notebooks}
        unsent.devices = set(devices) if known.version != mirror.version else set()
    await stream.send("changed", await _explained_view(services, person, unsent), _id_of(unsent, person))


async def _missed(view: StoreView, person: Person, known: EventId) -> Changes | None:
    """The changes since an event; None if the client has to load all again."""
    if not await known.is_continued(view, person):
        return None
    if await view.read_long(view.store.changed_work, known.version) > MAX_RESUMED:
        return None
    changes = await view.read_long(view.store.changes, known.version)
    await view.learn_names(changes.people)
    return None if changes.removed_devices else changes


def _id_of(at: _Changes | Mirror, person: Person) -> str:
    return str(EventId.of(at.version, at.position, person))


async def _explained_view(services: Services, person: Person, unsent: _Changes) -> ChangedView:
    """The changes that one person may see; the reasons of waiting jobs are those of the next decision."""
    if any(record.job.state in WAITING for record in unsent.jobs.values()):
        with contextlib.suppress(StoreUnavailable):
            await services.decisions.latest()
    return changed_view(services, person, unsent)


async def _send_changes(services: Services, reader: Reader, stream: EventStream, inbox: _Inbox) -> None:
    """Send what changes, or ``reset`` where work or devices that a client knows may be gone.

    A reader whose roles changed is reset, too: the inbox has no changes that the old roles hid.
    """
    while not inbox.overrun:
        before = reader.last_known
        unsent = await inbox.take(HEARTBEAT_S)
        person = await reader.now()
        has_new_roles = (person.roles, person.admin) != (before.roles, before.admin)
        if has_new_roles or (unsent is not None and unsent.reload):
            mirror = services.store_view.mirror
            await stream.send("reset", f'{{"version":{mirror.version}}}', _id_of(mirror, person))
            continue
        if unsent is None:
            await stream.heartbeat()
            continue
        view = await _explained_view(services, person, unsent)
        if view.jobs or view.notebooks or view.devices:
            await stream.send("changed", view, _id_of(unsent, person))


def changed_view(services: Services, person: Person, unsent: _Changes) -> ChangedView:
    """The changes that one person may see; of other records not even the id is shown."""
    return ChangedView.model_construct(
        version=unsent.version,
        jobs=[
            rendered_job(record, services.store_view).view for record in unsent.jobs.values() if may_see(person, record)
        ],
        notebooks=[
            classified_view(record, services.store_view)
            for record in unsent.notebooks.values()
            if may_see(person, record)
        ],
        devices=device_views(services, person, unsent.devices),
    )
