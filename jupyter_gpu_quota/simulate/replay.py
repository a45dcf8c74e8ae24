"""Replays a trace through the shipped controllers, core and store, in virtual time.

This module decides nothing. The clock jumps to the next event (work is submitted, ends or is cancelled, a node fails, a
limit or protection ends), rounded up to the tick. There each controller runs until it has nothing to do. The
controllers of scheduling, idleness and retention run. Enforcement, reconciliation and notifications do not: simulated
work never exceeds its share, each slice has its server, and there is no channel.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol, assert_never

from ..backends.simulated.jobs import Behaviour, Clock, SimulatedJobs
from ..controllers.leadership.lease import Leadership
from ..controllers.retention import Retention, RetentionTimes
from ..controllers.scheduling import Intervals, SchedulingController
from ..core.amounts import gpu_text, matching_models
from ..core.facts import DeviceFact
from ..core.model import Allocation, Device, Health, Node, NotebookState
from ..core.samples import DeviceSample
from ..core.validate import violations
from ..quotafile import QuotaFile
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
from ..store.records.rows import Changes
from ..store.transactions import Store
from .notebook_servers import USER, NotebookServers, ServerEvent
from .simulation_store import SimulationStore
from .tracefile import JobWork, NodeEvent, NodeSpec, NotebookWork, Trace

WEEK_MS = 7 * 86_400_000

OVER = frozenset({"ended", "unknown"})
"""Codes of refused changes of work that has ended, and that retention may have removed: they change nothing."""
CHECK_EVERY = 25
"""The invariants of the state are checked at the first of so many instants, and at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The user cancels work that never had a device."""

    work: JobWork | NotebookWork


_Event = Request | NodeEvent | GiveUp | ServerEvent


class InvalidTrace(ValueError):
    """The trace contradicts the quotas; the message says where, and nothing was simulated."""


class BrokenInvariant(Exception):
    """The state contradicts an invariant of ``core.validate``: a defect of the scheduler."""


class NoSampler:
    """Reads no device: the use of simulated work is in the trace."""

    def samples(self, users: Mapping[Device, Iterable[Allocation]], *, now: int) -> list[DeviceSample]:
        return []

    def device_facts(self) -> list[DeviceFact]:
        """Simulated devices do not fail."""
        return []


class NoBundles:
    """Simulated jobs have no code."""

    def sweep(self, keep: set[str]) -> None:
        """Nothing is stored."""

    def is_kept(self, digest: str) -> bool:
        return False


class Observer(Protocol):
    """Receives the changes of each simulated instant."""

    def observe(self, changes: Changes, now: int) -> None:
        """Apply the changes since the previous instant, with work that ended."""


@dataclass(slots=True)
class Replay:
    """One simulation: a trace under a quota file.

    ``tick_ms`` is the time between two instants at which controllers may run; None: the quota file's ``tick_max``.
    Raises InvalidTrace for work that the quotas do not allow: of a project or pool that they do not have, in a pool
    that is not for its kind, or with a time limit above their maximum.
    """

    trace: Trace
    quota: QuotaFile
    tick_ms: int | None = None
    store: SimulationStore = field(default_factory=SimulationStore)
    observers: Sequence[Observer] = ()
    clock: Clock = field(init=False)
    executor: SimulatedJobs = field(init=False)
    controller: SchedulingController = field(init=False)
    retention: Retention = field(init=False)
    retain_at: int = field(init=False)
    servers: NotebookServers = field(init=False)
    instants: int = 0
    _work: dict[str, JobWork | NotebookWork] = field(init=False)
    _agenda: list[tuple[int, int, _Event]] = field(default_factory=list)
    _entries: int = 0
    _version: int = 0
    _seen_version: int = 0
    _changed_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.trace.begins_at)
        self._changed_at = self.trace.begins_at
        self._work = {str(work.id): work for work in self.trace.work}
        self.executor = SimulatedJobs(self.clock, *machines(self.trace.nodes), self._behaviour_of)
        leadership = Leadership(self.store, self.clock, holder="simulation")
        self.controller = SchedulingController(
            clock=self.clock,
            store=self.store,
            executor=self.executor,
            sampler=NoSampler(),
            leadership=leadership,
            intervals=Intervals(sample_ms=52 * WEEK_MS),
        )
        self.retention = Retention(self.store, leadership, self.executor, NoBundles(), RetentionTimes())
        self.retain_at = self.trace.begins_at
        notebooks = {name: work for name, work in self._work.items() if isinstance(work, NotebookWork)}
        self.servers = NotebookServers(notebooks, self.quota.idle, self.store, leadership, self.clock, self._schedule)
        apply_quota(self.store, self.quota, now=self.clock.now)
        user_of = partial(self.store.user_id, now=self.clock.now)
        found = self.executor.inventory()
        models = _models_by_pool(self.quota, found.nodes, found.devices)
        for event in _events_of(self.trace, self.quota, user_of, models):
            self._schedule(*event)

    def run(self, *, until: int | None = None, progress: Callable[[int], None] = lambda now: None) -> None:
        """Simulate until an instant, or until nothing can change. ``progress`` is called with each simulated instant.

        Raises BrokenInvariant, and every error of a controller.
        """
        while (at := self._next_at()) is not None and (until is None or at <= until):
            if until is None and self._is_stalled(at):
                break
            self.clock.now = max(self.clock.now, at)
            self.instants += 1
            self._apply_due_events()
            self._run_controllers()
            self._publish_changes()
            if self.instants % CHECK_EVERY == 1:
                self._check_invariants()
            progress(self.clock.now)
        self._check_invariants()
        if until is not None:
            self.clock.now = max(self.clock.now, until)

    def _check_invariants(self) -> None:
        found = violations(self.controller.mirror.snapshot(self.clock.now))
        if found:
            raise BrokenInvariant(f"at {self.clock.now} ms: {'; '.join(map(str, found[:5]))}")

    def _run_controllers(self) -> None:
        """Run scheduling until it has nothing to do, then idleness, then scheduling again after a change."""
        self._run_scheduling()
        if self.servers.classify(self.clock.now):
            self._run_scheduling()
        if self.clock.now >= self.retain_at:
            self.retention.run_once(self.clock.now)
            self.retain_at = self.clock.now + WEEK_MS

    def _run_scheduling(self) -> None:
        while self.controller.run_once(self.clock.now) <= self.clock.now:
            pass

    def user_of(self, workload: str) -> str:
        """The name of the user in the trace; the core knows users by their ids alone."""
        record = self.store.notebook(workload)
        return self._work[workload if record is None else record.server].user

    def _is_stalled(self, at: int) -> bool:
        """Whether all remaining work has waited for two weeks, so that no window of the calendar will start it."""
        if self.controller.mirror.version != self._seen_version:
            self._seen_version, self._changed_at = self.controller.mirror.version, self.clock.now
        idle = not self._agenda and self.executor.next_event_at() is None
        return idle and at - self._changed_at > 2 * WEEK_MS

    # --- time -----------------------------------------------------------------------------------------------------
    def _next_at(self) -> int | None:
        controller = self.controller
        if not self.instants:
            return self.trace.begins_at
        reads_inventory_again = self.executor.inventory_changed or controller.missed or self._keeps_gone_devices()
        due = controller.due.get("inventory") if reads_inventory_again else None
        coming = self._agenda[0][0] if self._agenda else None
        known = (coming, self.executor.next_event_at(), controller.decide_again_at, due)
        ahead = [at for at in known if at is not None]
        tick_ms = self.tick_ms or self.quota.tick_max_ms
        return min(at + (self.trace.begins_at - at) % tick_ms for at in ahead) if ahead else None

    def _keeps_gone_devices(self) -> bool:
        """Whether devices of a lost node count as healthy until a later reading, as work on them stays (R69)."""
        mirror = self.controller.mirror
        return any(mirror.devices[id].health is Health.HEALTHY for id in mirror.gone_devices)

    def _schedule(self, at: int, event: _Event) -> None:
        self._entries += 1
        heappush(self._agenda, (at, self._entries, event))

    # --- events ---------------------------------------------------------------------------------------------------
    def _apply_due_events(self) -> None:
        """Apply the events that are due by now, each at its own instant."""
        requests: list[Request] = []
        while self._agenda and self._agenda[0][0] <= self.clock.now:
            at, _, event = heappop(self._agenda)
            match event:
                case NodeEvent(event="lost"):
                    self.executor.lose_node(event.node)
                case NodeEvent():
                    self.executor.restore_node(event.node)
                case GiveUp():
                    if event.work.gives_up_ms == event.work.submit_ms:  # its submission is one of these requests
                        self._record(requests, at)
                        requests = []
                    requests += self._cancel_unstarted(event.work)
                case ServerEvent():
                    requests += self.servers.apply(event)
                case _:
                    requests.append(event)
            if requests and (not self._agenda or self._agenda[0][0] != at):
                self._record(requests, at)
                requests = []

    def _cancel_unstarted(self, work: JobWork | NotebookWork) -> list[Request]:
        name = str(work.id)
        if isinstance(work, JobWork):
            record = self.store.job(name)
            has_waited = record is not None and record.ended_at is None and not record.job.attempt
            return [ChangeJob(job=name, actor=USER, change="cancel")] if has_waited else []
        requested = self.store.notebook(name)
        has_waited = requested is not None and requested.notebook.state is NotebookState.REQUESTED
        return [ReturnNotebook(notebook=name, actor=USER, why="given up")] if has_waited else []

    def _record(self, requests: Sequence[Request], at: int) -> None:
        for request, outcome in zip(requests, self.store.record(requests, now=at), strict=True):
            if isinstance(outcome, Refusal) and outcome.code not in OVER:
                raise InvalidTrace(f"{request} was refused: {outcome.message}")

    def _publish_changes(self) -> None:
        changes = self.store.changes(self._version)
        self._version = changes.version
        for observer in (self.servers, *self.observers):
            observer.observe(changes, self.clock.now)

    def _behaviour_of(self, job: str) -> Behaviour:
        work = self._work[job]
        assert isinstance(work, JobWork), "notebooks are not started by the executor"
        return Behaviour(
            work_ms=work.duration_ms,
            starts_after_ms=work.starts_after_ms,
            saves_in_ms=work.saves_in_ms,
            checkpoint_every_ms=work.checkpoint_every_ms,
        )


def machines(nodes: Iterable[NodeSpec]) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
    """The nodes and devices of a trace. The id of a device is the name of its node with its index there."""
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
    document = quota.to_document()
    request = ApplyQuota(
        actor=USER,
        text=json.dumps(document),
        document=document,
        policy=quota.policy(1),
        expected_revision=None,
    )
    for outcome in store.record([request], now=now):
        if isinstance(outcome, Refusal):
            raise InvalidTrace(f"the quotas were refused: {outcome.message}")


# --- the trace as requests ------------------------------------------------------------------------------------------
def _models_by_pool(quota: QuotaFile, nodes: Iterable[Node], devices: Iterable[Device]) -> dict[str, list[str]]:
    """The models of the devices that each pool of a quota file has."""
    by_id = {node.id: node for node in nodes}
    found: dict[str, set[str]] = {pool.name: set() for pool in quota.pools}
    for device in devices:
        if (pool := quota.pool_of(device, by_id[device.node])) is not None:
            found[pool].add(device.model)
    return {pool: sorted(models) for pool, models in found.items()}


def _events_of(
    trace: Trace, quota: QuotaFile, user_of: Callable[[str], str], models: Mapping[str, Collection[str]]
) -> Iterator[tuple[int, _Event]]:
    for event in trace.events:
        yield trace.begins_at + event.at_ms, event
    projects = {project.name for project in quota.projects}
    users = {name: user_of(name) for name in dict.fromkeys(work.user for work in trace.work)}
    for work in trace.work:
        name, user, pool = str(work.id), users[work.user], _pool_of(trace, work, quota, projects, models)
        match work:
            case NotebookWork():
                request: Request = RequestNotebook(
                    notebook=name, user=user, server=name, project=work.project, pool=pool, gpu_milli=work.gpu_milli
                )
            case JobWork():
                _check_time_limit(trace, work, pool, quota)
                request = submission(work, user, pool, quota, _requested_models(trace, work, pool, models[pool]))
            case _:
                assert_never(work)
        yield trace.begins_at + work.submit_ms, request  # before all that may come in the same millisecond
        if isinstance(work, JobWork) and work.cancel_ms is not None:
            yield trace.begins_at + work.cancel_ms, ChangeJob(job=name, actor=user, change="cancel")
        if work.gives_up_ms is not None:
            yield trace.begins_at + work.gives_up_ms, GiveUp(work=work)


def _pool_of(
    trace: Trace, work: JobWork | NotebookWork, quota: QuotaFile, projects: Set[str], pools: Collection[str]
) -> str:
    """The pool that work names, or the default of its project. Raises InvalidTrace where there is none."""
    if work.project not in projects:
        known = sorted(projects)
        near = difflib.get_close_matches(work.project, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"they have {', '.join(known[:20]) or 'none'}"
        position = trace.position(str(work.id), "project")
        raise InvalidTrace(f"{position}: there is no project {work.project} in the quotas; {hint}")
    pool = work.pool or quota.default_pool(work.project, work.kind)
    if pool is None or pool not in pools:
        fault = f"names pool {pool}, which the quotas do not have" if pool else "names no pool, and has no default"
        raise InvalidTrace(f"work {work.id} of project {work.project} {fault}")
    if not quota.allows(pool, work.kind):
        position = trace.position(str(work.id), "pool")
        others = ", ".join(sorted(name for name in pools if quota.allows(name, work.kind))[:20]) or "none"
        raise InvalidTrace(f"{position}: the pool {pool} is not for {work.kind}, by its uses; name one of: {others}")
    return pool


def _check_time_limit(trace: Trace, work: JobWork, pool: str, quota: QuotaFile) -> None:
    """Refuse a time limit above a maximum of the quotas; that of recorded or generated work may be a default."""
    if work.time_limit_s is None or not trace.is_written:
        return
    for owner, most in quota.max_time_limits(work.project, pool).items():
        if work.time_limit_s > most:
            position = trace.position(str(work.id), "time_limit_s")
            raise InvalidTrace(f"{position}: {work.time_limit_s} s is above the maximum of {owner}, {most} s")


def _requested_models(trace: Trace, work: JobWork, pool: str, there: Collection[str]) -> str | None:
    """The full names of the models that a job requests, as a submission has them; None: any."""
    if work.gpu_model is None:
        return None
    found = set[str]()
    for name in work.gpu_model.split(","):
        meant = matching_models(name.strip(), there)
        if len(meant) != 1:
            matches = (
                f"{'several models' if meant else 'no model'} of the pool {pool} {'are' if meant else 'is'} called"
            )
            known = ", ".join(sorted(meant or there)[:20]) or "none"
            position = trace.position(str(work.id), "gpu_model")
            raise InvalidTrace(f"{position}: {matches} {name.strip()!r:.80}; name one of: {known}")
        found.add(meant[0])
    return ",".join(sorted(found))


def submission(work: JobWork, user: str, pool: str, quota: QuotaFile, gpu_model: str | None = None) -> SubmitJob:
    """The request of a job, with the default time limit of the quotas if it names none, and at most their maximum."""
    limit_s = work.time_limit_s or quota.time_limit_s(work.project, pool)
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
        time_limit_s=min([limit_s, *quota.max_time_limits(work.project, pool).values()]),
    )
    return SubmitJob(job=str(work.id), user=user, account=None, spec=spec)
