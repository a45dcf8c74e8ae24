"""The API's view of the store: a mirror that follows its changes, and the listeners that wait for them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...core.eviction.removal import removal_reason
from ...core.model import WHOLE_DEVICE, Allocation, Device, Health, Job, Node, Notebook, NotebookState
from ...core.quota.in_force import last_change_at
from ...core.reason_figures import reason_from
from ...core.reasons import EnforcementTooWeak, OverShare, Reason
from ...core.samples import DeviceSample
from ...quotafile import QuotaFile
from ...store.reads.quota_revision import in_force
from ...store.reads.snapshot import Mirror
from ...store.records.activity import LATE_CLOCK_MS, OUTPUTS_TOTAL, Note
from ...store.records.calls import NotOpenYet, StoreUnavailable
from ...store.records.commands import AllocationLabel
from ...store.records.idle_state import IdleState
from ...store.records.rows import BEGINNING, Changes, JobRecord, NotebookRecord, Position, QuotaRevision
from ...store.transactions import Store
from .differences import differences
from .generations import Generations, differing
from .rendered_job import RenderedJob
from .simulated_use import Reported, with_reports
from .threads import Threads
from .utilisation import Utilised, memory_of_share, of_share, total_use

log = logging.getLogger(__name__)
R = TypeVar("R")

FRESH_S = 1.0
SAMPLES_FRESH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The changes of one refresh: whole rows, and the devices whose view changed.

    ``position``: that of the database at ``version``. ``reload``: what a listener knows may be gone, since a backup was
    restored or a device was removed.
    """

    version: int
    position: Position = BEGINNING
    jobs: tuple[JobRecord, ...] = ()
    notebooks: tuple[NotebookRecord, ...] = ()
    devices: tuple[str, ...] = ()
    reload: bool = False


class StoreView(Threads):
    """The store's state at most a second ago, without a query for each read; nothing is decided on it.

    ``listen`` registers a listener for every Delta. While there are listeners, the store is read once a second even
    without a wakeup; otherwise only after wakeups and on demand.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        *,
        in_pods: bool = False,
    ) -> None:
        super().__init__()
        self._store, self.now, self._clock, self._in_pods = store, now, clock, in_pods
        self.generations = Generations()
        self._forget_all()
        self.is_held = False
        """Whether no decision is made, since the database is older than the running work."""
        self.quota_fault = ""
        """Why the newest quota file is not in force, and which one is; empty without a fault."""
        self.origin = secrets.token_hex(8)
        """Distinguishes this view from those of other processes."""
        self.view_changes = 0
        """Incremented with every change of what is read from this view, other than by time alone."""
        self._samples_ms = 0
        self._forgotten: Sequence[Note] = ()
        self._use: Mapping[str, Utilised] = {}
        self.waits: Mapping[str, Reason] = {}
        """The reasons of waiting work and of the next starts, by the last decision."""
        self.positions: Mapping[str, int] = {}
        """The position of each waiting job in its pool's queue, from 1."""
        self.estimates: Mapping[str, int] = {}
        """The planned start of each job that has a backfill reservation, by the last decision."""
        self.samples: Mapping[str, DeviceSample] = {}
        self.idle: dict[str, IdleState] = {}
        """The last classification of each notebook."""
        self.warnings: Mapping[str, Sequence[OverShare | EnforcementTooWeak]] = {}
        """The warnings to owners, by workload."""
        self.labels: Mapping[str, AllocationLabel] = {}
        """The enforcement of shares that was last read back, by allocation."""
        self.rendered_jobs: dict[str, RenderedJob] = {}
        """Views of jobs, each with the state that it was made from."""
        self._samples_at = self._read_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._listeners: set[Callable[[Delta], None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._quota_file: tuple[int, QuotaFile] | None = None
        self._usable: tuple[QuotaFile, QuotaFile] | None = None
        self._names: tuple[QuotaFile, frozenset[str], frozenset[str]] | None = None
        self._notified = False

    def _forget_all(self) -> None:
        self.mirror = Mirror()
        self.names: dict[str, str] = {}
        self._user_ids: dict[str, str] = {}
        self.generations.common += 1
        self._quota: QuotaRevision | None = None
        self.nodes: dict[str, Node] = {}
        self.allocations: dict[str, Allocation] = {}
        self._held: dict[str, dict[str, Allocation]] = {}
        self._allocated: tuple[int, Counter[str]] = (-1, Counter())

    @property
    def store(self) -> Store:
        return self._store()

    @property
    def quota(self) -> QuotaRevision | None:
        """The revision in force, its policy with the calendar ahead of now."""
        policy = self.mirror.policy_at(self.now())
        if self._quota is not None and policy is not None and policy is not self._quota.policy:
            self._quota = replace(self._quota, policy=policy)
        return self._quota

    def moment(self) -> tuple[int, ...]:
        """The inputs of a decision; equal while none of them changed."""
        revision = self.quota.revision if self.quota else 0
        mirror = self.mirror
        changes_at = self.calendar_change_at()
        return mirror.version, mirror.fencing, revision, changes_at, mirror.past_use.news, self.is_held

    def calendar_change_at(self) -> int:
        """The last instant at which the calendar changed the amounts in force; 0 if it has not."""
        quota = self.quota
        return (last_change_at(quota.policy, self.now()) or 0) if quota else 0

    @property
    def quota_file(self) -> QuotaFile | None:
        """The quota file in force, parsed once per revision."""
        revision = self.quota
        if revision is None:
            return None
        if self._quota_file is None or self._quota_file[0] != revision.revision:
            self._quota_file = (revision.revision, QuotaFile.from_document(revision.document))
        return self._quota_file[1]

    @property
    def usable_quota_file(self) -> QuotaFile | None:
        """The quota file in force with only the environments and data that jobs of this backend have."""
        file = self.quota_file
        if file is None:
            return None
        if self._usable is None or self._usable[0] is not file:
            self._usable = (file, file.usable(in_pods=self._in_pods))
        return self._usable[1]

    # --- following the store ------------------------------------------------------------------------------------------
    async def refresh(self) -> None:
        """Read the store's changes now. Callers during a refresh share the next one."""
        running = self._refreshing
        if running is not None and not running.done():
            await asyncio.wait([running])
        if self._refreshing is running:
            self._refreshing = self.in_background(self._refresh())
        assert self._refreshing is not None
        await asyncio.shield(self._refreshing)

    async def refresh_if_stale(self) -> None:
        """Refresh unless the last one is less than a second old; read utilisation and labels at most every 5 s."""
        if self._clock() - self._read_at >= FRESH_S:
            await self.refresh()
        if self._clock() - self._samples_at >= SAMPLES_FRESH_S:
            await self._read_samples()

    async def wait_for_version(self, version: int) -> None:
        """Read the store unless the mirror includes a committed version.

        One read that begins after the commit has it, unless an older database was restored since. Raises
        StoreUnavailable where the version could not be read; what else a refresh reads may fail.
        """
        if self.mirror.version < version:
            try:
                await self.refresh()
            except StoreUnavailable:
                if self.mirror.version < version:
                    raise

    def notify(self) -> None:
        """Refresh soon: the store may have changed."""
        self._read_at = float("-inf")
        if not self._notified:
            self._notified = True
            self.in_background(self._try(self._follow()))

    async def _follow(self) -> None:
        """One refresh after any number of notifications."""
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.wait([self._refreshing])
        self._notified = False
        await self.refresh()

    async def _refresh(self) -> None:
        started, before = self._clock(), self.mirror.version
        news = changes = await self.read(self.store.changes, before, ended=False)
        is_replaced, is_restored = self.mirror.is_replaced_by(changes), changes.version < before
        if is_replaced:
            changes = await self.read(self.store.changes, 0, ended=False)
            missed = await self.read(self.store.changes, before, ended=False)
            news = differences(changes, missed, self.mirror, self.nodes, self.allocations)
            is_restored |= not await self.read(self.store.has_position, self.mirror.position)
        if changes.quota is not None:  # before any caller sees this refresh as done
            changes = await self._readable(changes, changes.quota)
        names = await self._names_of(changes.people, {} if is_replaced else self.names)
        if not self._notified:  # changes during this refresh are not in it
            self._read_at = started
        touched, known = self._devices_of(news), self.mirror.devices.keys()
        if is_replaced:  # without an await before the changes are applied: no request sees an empty view
            self._forget_all()
        self.names |= names
        if changes.version != before or is_replaced:
            self._apply(changes, news, touched, reload=is_restored or not known.isdisjoint(news.removed_devices))
        await self._follow_use()
        await self._follow_notes()
        await self._follow_retention()
        await self._follow_hold()

    async def _readable(self, changes: Changes, newest: QuotaRevision) -> Changes:
        """The changes with the quota file that is in force; it is read outside the event loop."""
        found = await self.read(in_force, self.store, newest)
        if found.fault and found.fault != self.quota_fault:
            log.error("%s", found.fault)
        self.quota_fault = found.fault
        if found.revision is not None and found.file is not None:
            self._quota_file = (found.revision.revision, found.file)
        return replace(changes, quota=found.revision)

    def _apply(self, changes: Changes, news: Changes, touched: set[str], *, reload: bool) -> None:
        """Apply changes to the mirror and the indexes, and notify the listeners: no read can fail in between.

        ``news``: what the listeners do not know; ``touched``: the devices whose view it affected until now.
        """
        self.view_changes += 1
        released = [self.allocations[name].workload for name in changes.released if name in self.allocations]
        self.generations.count_changes(changes, self.mirror)
        self.mirror.apply(changes)
        self._index(changes)
        self.generations.count_jobs(self.mirror, {*released, *(part.workload for part in changes.allocations)})
        touched |= self._devices_of(news)
        known = tuple(sorted(touched & self.mirror.devices.keys()))
        self._notify_listeners(
            Delta(
                version=changes.version,
                position=changes.position,
                jobs=news.jobs,
                notebooks=news.notebooks,
                devices=known,
                reload=reload,
            )
        )

    async def _follow_use(self) -> None:
        """Read past use, outside the event loop."""
        quota, past_use = self.quota, self.mirror.past_use
        if quota is not None:
            await self.read(past_use.follow, self.store, quota.policy, self.now())

    async def _follow_notes(self) -> None:
        """Read the controllers' notes: the newest classifications, and the present warnings."""
        if not self.mirror.notebooks and not self.idle and not self.warnings:
            return
        since, before = max((state.at for state in self.idle.values()), default=0), (self.idle, self.warnings)
        since = max(0, since - LATE_CLOCK_MS) if since <= self.now() else 0
        idle = await self.read(self.store.notes, "idle", since=since)
        live = self.mirror.notebooks
        known = self.idle | {note.subject: IdleState.from_note(note) for note in idle}
        self.idle = {name: state for name, state in known.items() if name in live}
        notes = await self.read(self.store.notes, "enforcement")
        self.warnings = {note.subject: _warnings_of(note) for note in notes}
        self.view_changes += before != (self.idle, self.warnings)
        warned = before[1].keys() | self.warnings.keys()
        changed = {name for name in warned if before[1].get(name) != self.warnings.get(name)}
        notebooks = tuple(live[name] for name in sorted(changed & live.keys()))
        if notebooks:  # no row of them has changed
            self._notify_listeners(self._delta(notebooks=notebooks))

    async def _follow_retention(self) -> None:
        """Read whether retention removed ended jobs, which no change of a row shows."""
        before, self._forgotten = self._forgotten, await self.read(self.store.notes, "retention")
        self.generations.common += before != self._forgotten

    async def _follow_hold(self) -> None:
        """Read whether all decisions are held, which no change of a row shows."""
        before, self.is_held = self.is_held, await self.read(self.store.hold) is not None
        self.view_changes += before != self.is_held

    def _index(self, changes: Changes) -> None:
        """Index what the mirror keeps private: nodes, quota, and allocations by workload."""
        self._quota = changes.quota or self._quota
        self.nodes |= {node.id: node for node in changes.nodes}
        for name in changes.removed_nodes:
            self.nodes.pop(name, None)
        for name in changes.released:
            part = self.allocations.pop(name, None)
            if part is not None and name in self._held.get(part.workload, {}):
                del self._held[part.workload][name]
                if not self._held[part.workload]:
                    del self._held[part.workload]
        for part in changes.allocations:
            self.allocations[part.id] = part
            self._held.setdefault(part.workload, {})[part.id] = part

    def _devices_of(self, changes: Changes) -> set[str]:
        """Devices whose view these changes affect. Called before and after ``_index``, for old allocations too."""
        touched = {device.id for device in changes.devices} | {part.device for part in changes.allocations}
        if nodes := {*(node.id for node in changes.nodes), *changes.removed_nodes}:
            touched |= {device.id for device in self.mirror.devices.values() if device.node in nodes}
        touched |= {self.allocations[name].device for name in changes.released if name in self.allocations}
        for workload in (*(r.job.id for r in changes.jobs), *(r.notebook.id for r in changes.notebooks)):
            touched |= {part.device for part in self.allocations_of(workload)}
        return touched

    async def job(self, name: str) -> JobRecord | None:
        """A job in any state, with the names of its people loaded; None for an unknown one."""
        record = self.mirror.jobs.get(name) or await self.read(self.store.job, name)
        await self.learn_names([] if record is None else record.people)
        return record

    async def notebook(self, name: str) -> NotebookRecord | None:
        """A notebook's slice in any state, with its owner's name loaded; None for an unknown one."""
        record = self.mirror.notebooks.get(name) or await self.read(self.store.notebook, name)
        await self.learn_names([] if record is None else [record.notebook.user])
        return record

    async def learn_names(self, users: Iterable[str]) -> None:
        """Load the names of these people."""
        found = await self._names_of(users, self.names)
        self.names |= found

    async def _names_of(self, users: Iterable[str], known: Mapping[str, str]) -> Mapping[str, str]:
        """The names of these people by id, without known ones."""
        unknown = [user for user in dict.fromkeys(users) if user not in known]
        return await self.read(self.store.user_names, unknown) if unknown else {}

    async def user_id(self, name: str) -> str:
        """The id of a user of the hub by name; a new user gets one."""
        ids = self._user_ids  # of this history of the store
        if name not in ids:
            ids[name] = await self.read(self.store.user_id, name, now=self.now())
        return ids[name]

    def name_of(self, user: str) -> str:
        return self.names.get(user, user)

    # --- listeners ---------------------------------------------------------------------------------------------------
    def listen(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.add(listener)
        if self._watching is None or self._watching.done():
            self._watching = self.in_background(self._watch())

    def forget(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.discard(listener)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a change that makes a condition true; returns whether it is."""
        heard = asyncio.Event()
        wake: Callable[[Delta], None] = lambda _: heard.set()  # noqa: E731
        self.listen(wake)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await heard.wait()
                    heard.clear()
        except TimeoutError:
            pass
        finally:
            self.forget(wake)
        return condition()

    async def _watch(self) -> None:
        """Refresh once a second while there are listeners, because a wakeup may be lost."""
        while self._listeners and not self._has_ended:
            await self._try(self.refresh_if_stale())
            await asyncio.sleep(FRESH_S)

    async def _read_samples(self) -> None:
        """Read the newest utilisation and labels, and notify listeners of devices whose reading changed."""
        self._samples_at = self._clock()
        now = self.now()
        before, labels, found = self.samples, self.labels, await self.read(self.store.latest_samples)
        self.labels = await self.read(self.store.labels, list(self.allocations))
        reported = {
            name: Reported(percent, at)
            for name, state in self.idle.items()
            if state.sampled is not None
            for percent, at in [state.sampled]
            if percent is not None
        }
        notebooks = defaultdict[str, list[str]](list)
        for part in self.allocations.values():
            if part.workload in self.mirror.notebooks:
                notebooks[part.device].append(part.workload)
        self.samples = {name: with_reports(row, notebooks[name], reported) for name, row in found.items()}
        self._samples_ms = now
        before_use, self._use = self._use, {name: self.utilised(self.allocations_of(name)) for name in self._held}
        self.view_changes += (before_use, labels) != (self._use, self.labels)
        relabelled = differing(_contents(labels), _contents(self.labels))
        parts = [self.allocations[name] for name in relabelled if name in self.allocations]
        used = differing(before_use, self._use)
        self.generations.count_jobs(self.mirror, {*used, *(part.workload for part in parts)})
        changed = {device for device, row in self.samples.items() if before.get(device) != row}
        known = sorted(changed & self.mirror.devices.keys())
        if known:
            self._notify_listeners(self._delta(devices=tuple(known)))

    async def _try(self, step: Awaitable[None]) -> None:
        try:
            await step
        except StoreUnavailable as error:
            level = logging.DEBUG if isinstance(error, NotOpenYet) else logging.WARNING
            log.log(level, "the store cannot be read now: %s", error.log_text())

    def _delta(self, *, notebooks: tuple[NotebookRecord, ...] = (), devices: tuple[str, ...] = ()) -> Delta:
        """Changes of views without a change of the store's version."""
        mirror = self.mirror
        return Delta(version=mirror.version, position=mirror.position, notebooks=notebooks, devices=devices)

    def _notify_listeners(self, delta: Delta) -> None:
        for listener in list(self._listeners):
            listener(delta)

    def in_background(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """A task that runs until it ends or this view is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)  # or the garbage collector may take it
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End every task and thread."""
        self.end()
        self._listeners.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- lookups ------------------------------------------------------------------------------------------------------
    def allocations_of(self, workload: str) -> Sequence[Allocation]:
        return sorted(self._held.get(workload, {}).values(), key=lambda part: (part.rank, part.device, part.id))

    def is_borrowed(self, notebook: Notebook) -> bool:
        """Whether other work runs on a lent slice: its device has not enough GPU left for it to return."""
        device = self.mirror.devices.get(notebook.device or "")
        if notebook.state is not NotebookState.LENT or device is None:
            return False
        return self._allocated_milli(device.id) + device.foreign_milli + notebook.gpu_milli > WHOLE_DEVICE

    def _allocated_milli(self, device: str) -> int:
        """The sum of a device's allocations; all sums are computed once per change."""
        if self._allocated[0] != self.view_changes:
            sums = Counter[str]()
            for part in self.allocations.values():
                sums[part.device] += part.gpu_milli
            self._allocated = self.view_changes, sums
        return self._allocated[1][device]

    def devices_in(self, pool: str) -> list[Device]:
        return [device for device in self.mirror.reported_devices() if device.pool == pool]

    def is_available(self, device: Device) -> bool:
        """Whether a device is healthy, on a node whose readings arrive."""
        node = self.nodes.get(device.node)
        return device.health is Health.HEALTHY and (node is None or node.schedulable)

    def takes_work(self, device: Device) -> bool:
        """Whether it is available, on a node that is not cordoned or drained."""
        node = self.nodes.get(device.node)
        return self.is_available(device) and (node is None or node.is_open)

    def removal_reason_of(self, work: Job | Notebook) -> Reason | None:
        file = self.quota_file
        if file is None:
            return None
        if self._names is None or self._names[0] is not file:
            names = frozenset(row.name for row in file.projects), frozenset(row.name for row in file.pools)
            self._names = (file, *names)
        deadline = file.policy_section.drain_by is not None
        return removal_reason(work, projects=self._names[1], pools=self._names[2], deadline=deadline)

    def utilised(self, parts: Sequence[Allocation]) -> Utilised:
        """The use of these allocations by the newest readings, as of the time at which those were read."""
        now = self._samples_ms
        return total_use([of_share(self.samples.get(part.device), part.workload, now) for part in parts])

    def memory_used_mib(self, parts: Sequence[Allocation]) -> int | None:
        """The device memory that the workload of these allocations used at the newest readings; None is unknown."""
        now = self.now()
        used = [memory_of_share(self.samples.get(part.device), part.workload, now) for part in parts]
        known = [mib for mib in used if mib is not None]
        return sum(known) if parts and len(known) == len(parts) else None

    def outputs_mib(self, project: str) -> int | None:
        """The measured space of the outputs of a project's ended jobs; None while some of it was not measured."""
        found = next((note.document for note in self._forgotten if note.subject == OUTPUTS_TOTAL), None)
        used = None if found is None else found.get(project)
        return used if isinstance(used, int) else None

    def is_simulated(self, pool: str) -> bool:
        return any(device.simulated for device in self.devices_in(pool))


def _contents(labels: Mapping[str, AllocationLabel]) -> dict[str, tuple[str, str, str]]:
    return {name: label.content for name, label in labels.items()}


def _warnings_of(note: Note) -> list[OverShare | EnforcementTooWeak]:
    """The warnings of a controller's note."""
    document: Mapping[str, Any] = note.document
    found = [reason_from(each["code"], each["figures"].items()) for each in document.get("warnings", ())]
    return [each for each in found if isinstance(each, OverShare | EnforcementTooWeak)]
