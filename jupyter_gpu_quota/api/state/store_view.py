"""What the web door knows of the store: a mirror that follows its changes, and those who wait to hear of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, cast

from ...core.eviction.removal import outlives
from ...core.model import Allocation, Device, Job, Node, Notebook
from ...core.quota.in_force import last_change_at
from ...core.reason_figures import reason_from
from ...core.reasons import EnforcementTooWeak, OverShare, Reason
from ...core.samples import DeviceSample
from ...quotafile import QuotaFile
from ...store.reads.quota_revision import in_force
from ...store.reads.snapshot import Mirror
from ...store.records.activity import Note
from ...store.records.commands import AllocationLabel
from ...store.records.idle_state import IdleState
from ...store.records.protocol import NotOpenYet, Store, StoreUnavailable
from ...store.records.rows import Changes, JobRecord, NotebookRecord, QuotaRevision
from .simulated_use import Told, with_told
from .utilisation import Utilised, of_share, together

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

FRESH_S = 1.0
SAMPLES_FRESH_S = 5.0
READERS = 2
PONDERERS = 2
"""An explanation of a huge pool takes half a minute; an edit is looked at beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one refresh brought: the whole rows of what changed, and the devices whose picture did."""

    version: int
    jobs: tuple[JobRecord, ...] = ()
    notebooks: tuple[NotebookRecord, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.jobs or self.notebooks or self.devices)


class World:
    """The store as it was a moment ago, for reading without a query; nothing is decided on it.

    ``listen`` gets every Delta while it is registered. While anybody listens or waits, the store is looked at once a
    second even if no bell rings; otherwise only when it rings.
    """

    def __init__(
        self, store: Callable[[], Store], now: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self.now, self._clock = store, now, clock
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._thinker = ThreadPoolExecutor(1, thread_name_prefix="thinker")
        self._ponderer = ThreadPoolExecutor(PONDERERS, thread_name_prefix="ponderer")
        self._forget_all()
        self.names: dict[str, str] = {}
        self.waits: Mapping[str, Reason] = {}
        """Why everything that waits does so, and why the next plan starts what it starts, as was last thought of."""
        self.samples: Mapping[str, DeviceSample] = {}
        self.idle: dict[str, IdleState] = {}
        """How notebooks were classified last."""
        self.warnings: Mapping[str, Sequence[OverShare | EnforcementTooWeak]] = {}
        """What the owners of workloads are warned of."""
        self.labels: Mapping[str, AllocationLabel] = {}
        """How shares are held, by allocation, as was last read back."""
        self._samples_at = self._looked_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._listeners: set[Callable[[Delta], None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._quota_file: tuple[int, QuotaFile] | None = None
        self._names: tuple[QuotaFile, frozenset[str], frozenset[str]] | None = None
        self._closed = self._nudged = self._looked = False

    def _forget_all(self) -> None:
        self.mirror = Mirror()
        self._quota: QuotaRevision | None = None
        self.quota_fault = ""
        """Why the newest quota file is not in force, and which one is; empty where all is well."""
        self.nodes: dict[str, Node] = {}
        self.allocations: dict[str, Allocation] = {}
        self._held: dict[str, dict[str, Allocation]] = {}

    async def read(self, question: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the store outside the event loop; may raise StoreUnavailable."""
        if self._closed:
            raise StoreUnavailable("The service is ending.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: question(*args, **kwargs))

    async def think(self, question: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the core what every page shows, one question after the other, so that reading never waits behind it."""
        return await asyncio.get_running_loop().run_in_executor(self._thinker, lambda: question(*args, **kwargs))

    async def ponder(self, question: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask something that takes seconds and that only its asker waits for: an edit, or why one job waits."""
        return await asyncio.get_running_loop().run_in_executor(self._ponderer, lambda: question(*args, **kwargs))

    @property
    def store(self) -> Store:
        return self._store()

    @property
    def quota(self) -> QuotaRevision | None:
        """The revision in force, its policy with the calendar known ahead of now."""
        policy = self.mirror.policy_at(self.now())
        if self._quota is not None and policy is not None and policy is not self._quota.policy:
            self._quota = replace(self._quota, policy=policy)
        return self._quota

    def moment(self) -> tuple[int, ...]:
        """What a decision rests on; the same while nothing that it looks at has changed."""
        quota = self.quota
        boundary = last_change_at(quota.policy, self.now()) if quota else None
        revision = quota.revision if quota else 0
        return self.mirror.version, revision, boundary or 0, self.mirror.past_use.news

    @property
    def quota_file(self) -> QuotaFile | None:
        """The quota file in force, parsed once per revision."""
        revision = self.quota
        if revision is None:
            return None
        if self._quota_file is None or self._quota_file[0] != revision.revision:
            self._quota_file = (revision.revision, QuotaFile.from_document(revision.document))
        return self._quota_file[1]

    # --- following the store ------------------------------------------------------------------------------------------
    async def refresh(self) -> None:
        """Look at the store now. Callers that come while one look is under way share the next one."""
        running = self._refreshing
        if running is not None and not running.done():
            await asyncio.wait([running])
        if self._refreshing is running:
            self._refreshing = asyncio.create_task(self._look())
        assert self._refreshing is not None
        await asyncio.shield(self._refreshing)

    async def known(self) -> None:
        """Wait for the first look: before it nobody is a member of anything. May raise StoreUnavailable."""
        if not self._looked:
            await self.refresh()

    async def fresh(self) -> None:
        """At most a second old."""
        if self._clock() - self._looked_at >= FRESH_S:
            await self.refresh()

    async def at_least(self, version: int) -> None:
        """Wait until this mirror holds what was committed at a version."""
        while self.mirror.version < version:
            await self.refresh()

    def nudge(self) -> None:
        """Something may have changed: look soon."""
        self._looked_at = float("-inf")
        if not self._nudged:
            self._nudged = True
            self._in_background(self._follow())

    async def _follow(self) -> None:
        """One look that begins after the nudge, however many nudges came."""
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.wait([self._refreshing])
        self._nudged = False
        await self.refresh()

    async def _look(self) -> None:
        started, before = self._clock(), self.mirror.version
        changes = await self.read(self.store.changes, before, ended=False)
        if changes.version < before:  # a backup was restored under us
            changes = await self.read(self.store.changes, 0, ended=False)
            self._forget_all()
        if changes.quota is not None:  # before anybody is told that this look is over
            changes = await self._readable(changes, changes.quota)
        if not self._nudged:  # what came while it looked is not in it
            self._looked_at = started
        self._looked = True
        if changes.version != before:
            await self._take(changes)
        await self._follow_use()
        await self._follow_notes()

    async def _readable(self, changes: Changes, newest: QuotaRevision) -> Changes:
        """The changes with the quota file that is in force; it is read outside the event loop."""
        found = await self.read(in_force, self.store, newest)
        if found.fault and found.fault != self.quota_fault:
            log.error("%s", found.fault)
        self.quota_fault = found.fault
        if found.revision is not None and found.file is not None:
            self._quota_file = (found.revision.revision, found.file)
        return replace(changes, quota=found.revision)

    async def _take(self, changes: Changes) -> None:
        """Hold what changed, and tell those who listen."""
        touched = self._devices_of(changes)
        self.mirror.update(cast(Store, _Answered(changes)))
        self._hold(changes)
        touched |= self._devices_of(changes)
        await self.learn_names([r.job.user for r in changes.jobs] + [r.notebook.user for r in changes.notebooks])
        known = tuple(sorted(touched & self.mirror.devices.keys()))
        self._tell(Delta(version=changes.version, jobs=changes.jobs, notebooks=changes.notebooks, devices=known))

    async def _follow_use(self) -> None:
        """Look at past use where it counts, outside the event loop."""
        quota, past_use = self.quota, self.mirror.past_use
        if quota is not None and (quota.policy.history.k_milli or past_use.usage):
            await self.read(past_use.follow, self.store, quota.policy, self.now())

    async def _follow_notes(self) -> None:
        """Look at what the controllers noted: the newest classifications, and the warnings that are under way."""
        if not self.mirror.notebooks and not self.idle and not self.warnings:
            return
        since = max((state.at for state in self.idle.values()), default=0)
        idle = await self.read(self.store.notes, "idle", since=since if since <= self.now() else 0)
        live = self.mirror.notebooks
        known = self.idle | {note.subject: IdleState.from_note(note) for note in idle}
        self.idle = {name: state for name, state in known.items() if name in live}
        notes = await self.read(self.store.notes, "enforcement")
        self.warnings = {note.subject: _warnings_of(note) for note in notes}

    def _hold(self, changes: Changes) -> None:
        """Follow what the mirror keeps to itself: nodes, quota, and allocations by what they belong to."""
        self._quota = changes.quota or self._quota
        self.nodes |= {node.id: node for node in changes.nodes}
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
        """Devices whose picture these changes touch; asked before and after they are held, for the old holders too."""
        touched = {device.id for device in changes.devices} | {part.device for part in changes.allocations}
        touched |= {self.allocations[name].device for name in changes.released if name in self.allocations}
        for workload in (*(r.job.id for r in changes.jobs), *(r.notebook.id for r in changes.notebooks)):
            touched |= {part.device for part in self.allocations_of(workload)}
        return touched

    async def learn_names(self, users: Iterable[str]) -> None:
        """Make sure that the names of these people are known here."""
        unknown = [user for user in dict.fromkeys(users) if user not in self.names]
        if unknown:
            self.names |= await self.read(self.store.user_names, unknown)

    def name_of(self, user: str) -> str:
        return self.names.get(user, user)

    # --- those who wait -----------------------------------------------------------------------------------------------
    def listen(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.add(listener)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def forget(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.discard(listener)

    async def wait_until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a change that makes something true; returns whether it is."""
        heard = asyncio.Event()
        wake: Callable[[Delta], None] = lambda _: heard.set()  # noqa: E731
        self.listen(wake)
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    await heard.wait()
                    heard.clear()
        except TimeoutError:
            pass
        finally:
            self.forget(wake)
        return true()

    async def _watch(self) -> None:
        """Look once a second while anybody waits: a bell may be lost."""
        while self._listeners and not self._closed:
            await self._try(self.fresh())
            await self._try(self.sampled())
            await asyncio.sleep(FRESH_S)

    async def sampled(self) -> None:
        """Read the newest utilisation, at most every 5 s, and tell listeners of the devices whose reading changed."""
        if self._clock() - self._samples_at < SAMPLES_FRESH_S:
            return
        self._samples_at = self._clock()
        before, found = self.samples, await self.read(self.store.latest_samples)
        self.labels = await self.read(self.store.labels, list(self.allocations))
        notebooks = self._notebooks_by_device()
        self.samples = {name: with_told(row, notebooks.get(name, ()), self._told()) for name, row in found.items()}
        changed = {device for device, row in self.samples.items() if before.get(device) != row}
        known = sorted(changed & self.mirror.devices.keys())
        if known:
            self._tell(Delta(version=self.mirror.version, devices=tuple(known)))

    def _told(self) -> dict[str, Told]:
        """What the servers of notebooks tell of simulated devices."""
        return {
            name: Told(percent=state.sampled[0], at=state.sampled[1])
            for name, state in self.idle.items()
            if state.sampled is not None and state.sampled[0] is not None
        }

    def _notebooks_by_device(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for part in self.allocations.values():
            if part.workload in self.mirror.notebooks:
                found.setdefault(part.device, []).append(part.workload)
        return found

    async def _try(self, step: Awaitable[None]) -> None:
        try:
            await step
        except StoreUnavailable as error:
            level = logging.DEBUG if isinstance(error, NotOpenYet) else logging.WARNING
            log.log(level, "the store cannot be read now: %s", error)

    def _tell(self, delta: Delta) -> None:
        for listener in list(self._listeners):
            listener(delta)

    def _in_background(self, step: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._try(step))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)

    def close(self) -> None:
        self._closed = True
        self._listeners.clear()
        for threads in (self._readers, self._thinker, self._ponderer):
            threads.shutdown(wait=False, cancel_futures=True)

    # --- questions of the views ---------------------------------------------------------------------------------------
    def allocations_of(self, workload: str) -> Sequence[Allocation]:
        return sorted(self._held.get(workload, {}).values(), key=lambda part: (part.rank, part.device, part.id))

    def label_of(self, allocation: str) -> AllocationLabel | None:
        return self.labels.get(allocation)

    def device(self, name: str) -> Device | None:
        return self.mirror.devices.get(name)

    def devices_in(self, pool: str) -> list[Device]:
        return [device for device in self.mirror.devices.values() if device.pool == pool]

    def wait_of(self, workload: str) -> Reason | None:
        return self.waits.get(workload)

    def outlives(self, work: Job | Notebook) -> Reason | None:
        file = self.quota_file
        if file is None:
            return None
        if self._names is None or self._names[0] is not file:
            names = frozenset(row.name for row in file.projects), frozenset(row.name for row in file.pools)
            self._names = (file, *names)
        deadline = file.policy_section.drain_by is not None
        return outlives(work, projects=self._names[1], pools=self._names[2], deadline=deadline)

    def utilised(self, parts: Sequence[Allocation]) -> Utilised:
        """What is used of these parts of devices, by the newest readings."""
        now = self.now()
        return together([of_share(self.samples.get(part.device), part.workload, now) for part in parts])

    def is_simulated(self, pool: str) -> bool:
        return any(device.simulated for device in self.devices_in(pool))


def _warnings_of(note: Note) -> list[OverShare | EnforcementTooWeak]:
    """The warnings of a controller's note."""
    document: Mapping[str, Any] = note.document
    found = [reason_from(each["code"], each["figures"].items()) for each in document.get("warnings", ())]
    return [each for each in found if isinstance(each, OverShare | EnforcementTooWeak)]


class _Answered:
    """A store that has answered already: the mirror applies, in the event loop, what was read outside it."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def changes(self, since: int, *, ended: bool = True) -> Changes:
        return self._changes


_BACKGROUND: set[asyncio.Future[Any]] = set()
"""Tasks nobody awaits are held here, or the garbage collector may take them."""
