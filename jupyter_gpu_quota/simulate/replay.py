"""A trace played through the shipped controller, core and store, in virtual time.

Nothing here decides. The clock jumps to the next thing that happens (work comes, ends or is cancelled, a node dies, a
limit or protection runs out), rounded up to the controller's tick; there the controller ticks until it rests.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol, assert_never

from .. import quotafile
from ..backends.simulated.jobs import Clock, Conduct, SimulatedJobs
from ..controllers.lease import Leadership
from ..controllers.scheduling import Rhythm, SchedulingController
from ..core.amounts import gpu_text, models_meant
from ..core.facts import DeviceFact
from ..core.model import Allocation, Device, Node, NotebookState
from ..core.samples import DeviceSample
from ..quotafile import QuotaFile
from ..store.memory import MemoryStore
from ..store.records.commands import (
    ApplyQuota,
    ChangeJob,
    JobSpec,
    Refusal,
    Request,
    RequestNotebook,
    ReturnNotebook,
    SubmitJob,
)
from ..store.records.protocol import Lease, Store
from ..store.records.rows import Changes
from ..store.transactions import TransactionalStore
from ..store.writes import lease as leases
from .notebook_owners import PERSON, Leave, Look, Owners
from .tracefile import NodeEvent, NodeSpec, Sitting, Trace, Training

HOLDER = "simulation"
WEEK_MS = 7 * 86_400_000
RHYTHM = Rhythm(sample_ms=52 * WEEK_MS, retention_ms=WEEK_MS)
"""Simulated devices are not sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Somebody takes work back that has had no device until now."""

    work: Training | Sitting


_Happening = Request | NodeEvent | GiveUp | Look | Leave


class Impossible(ValueError):
    """The trace and the quotas do not go together; the message says where, and nothing was simulated."""


class SimulationStore(MemoryStore):
    """The store in memory, of a world with one controller.

    The ticks that a jump of the clock leaves out would have renewed the lease, so its holder has it still.
    """

    def __init__(self) -> None:
        self._ids = 0
        super().__init__(new_id=self._next_id)

    def _next_id(self, now: int) -> str:
        self._ids += 1
        return f"{self._ids:012d}"

    def acquire_lease(self, holder: str, *, now: int, ttl_ms: int) -> Lease | None:
        with self._work(now) as work:
            if work.head.holder == holder:
                work.head = replace(work.head, expires_at=now + 1)
            return leases.acquire(work, holder, ttl_ms=ttl_ms)


class NoSampler:
    """Reads no device: the simulated work says how busy it is."""

    def samples(self, users: Mapping[Device, Iterable[Allocation]], *, now: int) -> list[DeviceSample]:
        return []

    def device_facts(self) -> list[DeviceFact]:
        """Simulated devices stay as they are."""
        return []


class NoBundles:
    """Simulated jobs have no code."""

    def sweep(self, keep: set[str]) -> None:
        """Nothing to sweep."""


class Watcher(Protocol):
    """Told what changed after each instant at which something happened."""

    def see(self, changes: Changes, now: int) -> None:
        """``changes`` since the instant before, ended work included."""


@dataclass(slots=True)
class Replay:
    """One world: a trace under a quota file.

    ``tick_ms`` is the grid of instants at which the controller acts; None: the quota file's ``tick_max``, the longest
    that a fact may wait. Raises Impossible where the trace names a project or pool that the quotas do not have.
    """

    trace: Trace
    quota: QuotaFile
    tick_ms: int | None = None
    store: TransactionalStore = field(default_factory=SimulationStore)
    watchers: Sequence[Watcher] = ()
    clock: Clock = field(init=False)
    executor: SimulatedJobs = field(init=False)
    controller: SchedulingController = field(init=False)
    owners: Owners = field(init=False)
    instants: int = 0
    _work: dict[str, Training | Sitting] = field(init=False)
    _agenda: list[tuple[int, int, _Happening]] = field(default_factory=list)
    _entries: int = 0
    _version: int = 0
    _seen_version: int = 0
    _moved_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.trace.begins_at)
        self._moved_at = self.trace.begins_at
        self._work = {str(work.id): work for work in self.trace.work}
        self.executor = SimulatedJobs(self.clock, *machines(self.trace.nodes), self._conduct)
        self.controller = SchedulingController(
            clock=self.clock,
            store=self.store,
            executor=self.executor,
            sampler=NoSampler(),
            bundles=NoBundles(),
            leadership=Leadership(self.store, self.clock, holder=HOLDER),
            rhythm=RHYTHM,
        )
        sittings = {name: work for name, work in self._work.items() if isinstance(work, Sitting)}
        self.owners = Owners(sittings, self.quota.idle, self._expect)
        apply_quota(self.store, self.quota, now=self.clock.now)
        models = models_by_pool(self.quota, *self.executor.inventory())
        for happening in _happenings(self.trace, self.quota, self._user, models):
            self._expect(*happening)

    def run(self, *, until: int | None = None, progress: Callable[[int], None] = lambda now: None) -> None:
        """Play to the end of all that can happen, or to an instant; ``progress`` is told each instant that is played.

        Raises whatever the controller or the core raises: there is no second scheduler to fall back on.
        """
        while (at := self._next_at()) is not None and (until is None or at <= until):
            if until is None and self._nothing_comes(at):
                return
            self.clock.now = max(self.clock.now, at)
            self.instants += 1
            self._happen()
            while self.controller.tick():
                pass
            self._look()
            progress(self.clock.now)
        if until is not None:
            self.clock.now = max(self.clock.now, until)

    def person_of(self, workload: str) -> str:
        """The name that the trace has for whose work it is; the core knows people by their ids alone."""
        return self._work[workload].user

    def _nothing_comes(self, at: int) -> bool:
        """Whether what is left only waits, and no window of the calendar has changed that for two weeks."""
        if self.controller.mirror.version != self._seen_version:
            self._seen_version, self._moved_at = self.controller.mirror.version, self.clock.now
        idle = not self._agenda and self.executor.next_at() is None
        return idle and at - self._moved_at > 2 * WEEK_MS

    # --- time -----------------------------------------------------------------------------------------------------
    def _next_at(self) -> int | None:
        controller = self.controller
        if not self.instants:
            return self.trace.begins_at
        looks_again = self.executor.inventory_changed or controller.missed
        due = controller.due.get("inventory") if looks_again else None
        coming = self._agenda[0][0] if self._agenda else None
        ahead = [at for at in (coming, self.executor.next_at(), controller.decide_again_at, due) if at is not None]
        return self._on_grid(min(ahead)) if ahead else None

    def _on_grid(self, at: int) -> int:
        tick_ms = self.tick_ms or self.quota.tick_max_ms
        return at + (self.trace.begins_at - at) % tick_ms

    def _expect(self, at: int, happening: _Happening) -> None:
        self._entries += 1
        heappush(self._agenda, (at, self._entries, happening))

    # --- what happens ---------------------------------------------------------------------------------------------
    def _happen(self) -> None:
        """Everything that is due by now, each at its own instant."""
        requests: list[Request] = []
        while self._agenda and self._agenda[0][0] <= self.clock.now:
            at, _, happening = heappop(self._agenda)
            match happening:
                case NodeEvent():
                    self._strike(happening)
                case GiveUp():
                    requests += self._take_back(happening.work)
                case Look():
                    requests += self.owners.look(happening)
                case Leave():
                    requests += self.owners.leave(happening.notebook, at)
                case _:
                    requests.append(happening)
            if requests and (not self._agenda or self._agenda[0][0] != at):
                self._record(requests, at)
                requests = []

    def _take_back(self, work: Training | Sitting) -> list[Request]:
        name = str(work.id)
        if isinstance(work, Training):
            record = self.store.job(name)
            has_waited = record is not None and record.ended_at is None and not record.job.attempt
            return [ChangeJob(job=name, actor=PERSON, change="cancel")] if has_waited else []
        book = self.store.notebook(name)
        has_waited = book is not None and book.notebook.state is NotebookState.REQUESTED
        return [ReturnNotebook(notebook=name, actor=PERSON, why="given up")] if has_waited else []

    def _strike(self, event: NodeEvent) -> None:
        if event.event == "lost":
            self.executor.lose(event.node)
        else:
            self.executor.bring_back(event.node)

    def _record(self, requests: Sequence[Request], at: int) -> None:
        for request, outcome in zip(requests, self.store.record(requests, now=at), strict=True):
            if isinstance(outcome, Refusal) and outcome.code != "ended":
                raise Impossible(f"{request} was refused: {outcome.message}")

    def _look(self) -> None:
        """See what changed."""
        changes = self.store.changes(self._version)
        self._version = changes.version
        for watcher in (self.owners, *self.watchers):
            watcher.see(changes, self.clock.now)

    # --- what the trace says --------------------------------------------------------------------------------------
    def _user(self, name: str) -> str:
        return self.store.user_id(name, now=self.clock.now)

    def _conduct(self, job: str) -> Conduct:
        work = self._work[job]
        assert isinstance(work, Training), "notebooks are not started by the executor"
        return Conduct(
            work_ms=work.duration_ms,
            starts_after_ms=work.starts_after_ms,
            saves_in_ms=work.saves_in_ms,
            checkpoint_every_ms=work.checkpoint_every_ms,
        )


def machines(nodes: Iterable[NodeSpec]) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
    """The nodes and devices of a trace; a device is called after its node and its number there."""
    rows = tuple(nodes)
    made = tuple(
        Node(id=n.name, name=n.machine or n.name, cpu_milli=n.cpu_milli, memory_mib=n.memory_mib) for n in rows
    )
    devices = tuple(
        Device(
            id=f"{node.name}-{at:03d}",
            node=node.name,
            index=at,
            model=node.gpu_model,
            memory_mib=node.gpu_memory_mib,
            pool=None,
            simulated=True,
        )
        for node in rows
        for at in range(node.gpus)
    )
    return made, devices


def apply_quota(store: Store, quota: QuotaFile, *, now: int) -> None:
    """Put a quota file in force."""
    request = ApplyQuota(
        actor=PERSON,
        text=quotafile.text_of(quota),
        document=quota.to_document(),
        policy=quota.policy(1),
        expected_revision=None,
    )
    for outcome in store.record([request], now=now):
        if isinstance(outcome, Refusal):
            raise Impossible(f"the quotas were refused: {outcome.message}")


# --- the trace as requests ------------------------------------------------------------------------------------------
def models_by_pool(quota: QuotaFile, nodes: Iterable[Node], devices: Iterable[Device]) -> dict[str, list[str]]:
    """The models of the devices that each pool of a quota file has."""
    names = {node.id: node.name for node in nodes}
    found: dict[str, set[str]] = {pool.name: set() for pool in quota.pools}
    for device in devices:
        if (pool := quota.pool_of(device, names[device.node])) is not None:
            found[pool].add(device.model)
    return {pool: sorted(models) for pool, models in found.items()}


def _happenings(
    trace: Trace, quota: QuotaFile, user_of: Callable[[str], str], models: Mapping[str, Collection[str]]
) -> Iterator[tuple[int, _Happening]]:
    for event in trace.events:
        yield trace.begins_at + event.at_ms, event
    projects = {project.name for project in quota.projects}
    users = {name: user_of(name) for name in dict.fromkeys(work.user for work in trace.work)}
    for work in trace.work:
        if work.project not in projects:
            raise Impossible(f"{trace.place(str(work.id), 'project')}: {_no_project(work.project, projects)}")
        pool = work.pool or quota.default_pool(work.project, work.kind)
        if pool is None or pool not in models:
            told = f"names pool {pool}, which the quotas do not have" if pool else "names no pool, and has no default"
            raise Impossible(f"work {work.id} of project {work.project} {told}")
        asked = _asked_models(trace, work, pool, models[pool])
        yield from _requests(work, trace.begins_at, users[work.user], pool, quota, asked)
        if work.gives_up_ms is not None:
            yield trace.begins_at + work.gives_up_ms, GiveUp(work=work)


def _no_project(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    told = f"did you mean {near[0]}?" if near else f"they have {', '.join(sorted(known)[:20]) or 'none'}"
    return f"there is no project {name} in the quotas; {told}"


def _asked_models(trace: Trace, work: Training | Sitting, pool: str, there: Collection[str]) -> str | None:
    """The full names of the models that a job asks for, as a submission has them; None: any."""
    if isinstance(work, Sitting) or work.gpu_model is None:
        return None
    found = set[str]()
    for name in work.gpu_model.split(","):
        meant = models_meant(name.strip(), there)
        if len(meant) != 1:
            none, several = f"no model of the pool {pool} is called", f"several models of the pool {pool} are called"
            told = f"{several if meant else none} {name.strip()!r:.80}"
            known = ", ".join(sorted(meant or there)[:20]) or "none"
            raise Impossible(f"{trace.place(str(work.id), 'gpu_model')}: {told}; name one of: {known}")
        found.add(meant[0])
    return ",".join(sorted(found))


def _requests(
    work: Training | Sitting, begins_at: int, user: str, pool: str, quota: QuotaFile, gpu_model: str | None
) -> Iterator[tuple[int, _Happening]]:
    match work:
        case Sitting():
            yield begins_at + work.submit_ms, _notebook(work, user, pool)
        case Training():
            yield begins_at + work.submit_ms, submission(work, user, pool, quota, gpu_model)
            if work.cancel_ms is not None:
                yield begins_at + work.cancel_ms, ChangeJob(job=str(work.id), actor=user, change="cancel")
        case _:
            assert_never(work)


def _notebook(work: Sitting, user: str, pool: str) -> RequestNotebook:
    name = str(work.id)
    return RequestNotebook(
        notebook=name, user=user, server=name, project=work.project, pool=pool, gpu_milli=work.gpu_milli
    )


def submission(work: Training, user: str, pool: str, quota: QuotaFile, gpu_model: str | None = None) -> SubmitJob:
    spec = JobSpec(
        command=("simulated",),
        project=work.project,
        pool=pool,
        gpu_asked=gpu_text(work.gpu_milli),
        gpu_milli=work.gpu_milli,
        name=str(work.id),
        ranks=work.ranks,
        gpu_model=gpu_model,
        priority=work.priority,
        preemptible=work.preemptible,
        time_limit_s=work.time_limit_s or quota.time_limit_s(work.project),
    )
    return SubmitJob(job=str(work.id), user=user, account=None, spec=spec)
