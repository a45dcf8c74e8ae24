"""Checks the promises about waiting times, from the records alone.

P10: a claim within its guarantee has its devices within grace + 2 ticks, and a notebook within its quota, one that
wakes while its slice is lent too, within lent_grace + 2 ticks. Each quarantined device adds one grace. Amounts are
those of the instant: where a window of the calendar opens or closes, a claim is owed from then on, or no more.
Source: docs/scheduling.md, section 9.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.lifecycle import HOLDS_SLICE, WAITING
from ..core.model import (
    WHOLE_DEVICE,
    Amounts,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Notebook,
    NotebookState,
    Policy,
)
from ..core.quota.in_force import in_force, next_change_at
from ..core.scheduling.lending import is_waking
from ..store.records.rows import Changes

USES = frozenset({JobState.STARTING, JobState.RUNNING})
NOTHING = Amounts()
Place = tuple[str, str]
"""A project in a pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A workload waited longer than was promised."""

    workload: str
    project: str
    waited_ms: int
    promised_ms: int


@dataclass(slots=True)
class GuaranteeMonitor:
    """Notes how long each claim within its guarantee waits.

    ``policy`` has its calendar expanded over the whole time that is played. ``reduced``: the pools in which work
    waited while the quotas did not fit; a guarantee is reduced there, and not checked meanwhile.
    """

    policy: Policy
    tick_ms: int
    violations: list[Violation] = field(default_factory=list)
    owed_since: dict[str, int] = field(default_factory=dict)
    reduced: set[str] = field(default_factory=set)
    _amounts: dict[Place, Amounts] = field(default_factory=dict)
    _changes_at: int | None = None
    """When the calendar changes an amount next."""
    _use: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    _booked: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    _waiting: dict[Place, dict[str, Job]] = field(default_factory=lambda: defaultdict(dict))
    _asked: dict[Place, dict[str, Notebook]] = field(default_factory=lambda: defaultdict(dict))
    _wakes: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    _counted: dict[str, tuple[Place, int]] = field(default_factory=dict)
    _devices: dict[str, Device] = field(default_factory=dict)
    _owed: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    _reported: set[str] = field(default_factory=set)
    _notebooks: set[str] = field(default_factory=set)
    _pools: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._take_amounts(0)

    def see(self, changes: Changes, now: int) -> None:
        """Take in what changed by ``now``, and note the workloads that waited too long."""
        self._follow_calendar(now)
        self._devices |= {device.id: device for device in changes.devices}
        touched = dict[Place, None]()
        for record in changes.jobs:
            touched[self._take_job(record.job)] = None
        for seen in changes.notebooks:
            touched[self._take_notebook(seen.notebook)] = None
        if changes.devices:
            self._pools.clear()
            touched |= dict.fromkeys([*self._waiting, *self._asked, *self._wakes])
        for place in touched:
            self._check_place(place, now)

    def finish(self, now: int) -> list[Violation]:
        """All violations, those of workloads that still wait too."""
        self._follow_calendar(now)
        for place in list(self._owed):
            for workload in sorted(self._owed[place]):
                self._check(workload, place, now)
        return self.violations

    # --- amounts ----------------------------------------------------------------------------------------------------
    def _take_amounts(self, at: int) -> None:
        self._changes_at = next_change_at(self.policy, at)
        self._amounts = {
            (project.name, pool): amounts
            for project in in_force(self.policy, at).projects
            for pool, amounts in project.amounts.items()
        }

    def _follow_calendar(self, now: int) -> None:
        """Check all places at each instant until now at which amounts changed."""
        while self._changes_at is not None and self._changes_at <= now:
            at = self._changes_at
            self._take_amounts(at)
            for place in [*self._waiting, *self._asked, *self._wakes]:
                self._check_place(place, at)

    # --- workloads ------------------------------------------------------------------------------------------------
    def _take_job(self, job: Job) -> Place:
        place = job.project, job.pool
        self._uncount(job.id, self._use)
        self._waiting[place].pop(job.id, None)
        if job.state in WAITING and job.target in (JobTarget.RUNNING, JobTarget.PAUSED):
            self._waiting[place][job.id] = job
        elif job.state in USES:
            self._count(job.id, place, job.held_milli, self._use)
        return place

    def _take_notebook(self, notebook: Notebook) -> Place:
        place = notebook.project, notebook.pool
        self._uncount(notebook.id, self._booked)
        self._asked[place].pop(notebook.id, None)
        self._wakes[place].discard(notebook.id)
        if notebook.state is NotebookState.REQUESTED:
            self._asked[place][notebook.id] = notebook
            self._notebooks.add(notebook.id)
        elif notebook.state in HOLDS_SLICE:
            if is_waking(notebook, self.policy):
                self._wakes[place].add(notebook.id)
                self._notebooks.add(notebook.id)
            self._count(notebook.id, place, notebook.gpu_milli, self._booked)
        return place

    def _count(self, workload: str, place: Place, milli: int, into: dict[Place, int]) -> None:
        self._counted[workload] = place, milli
        into[place] += milli

    def _uncount(self, workload: str, of: dict[Place, int]) -> None:
        if workload in self._counted:
            place, milli = self._counted.pop(workload)
            of[place] -= milli

    # --- claims within guarantee ----------------------------------------------------------------------------------
    def _check_place(self, place: Place, now: int) -> None:
        owed = set(self._covered(place))
        before = self._owed[place]
        for workload in sorted(before):
            self._check(workload, place, now)
            if workload not in owed:
                del self.owed_since[workload]
        for workload in owed - before:
            self.owed_since[workload] = now
        self._owed[place] = owed

    def _covered(self, place: Place) -> Iterable[str]:
        """The workloads that the quotas cover together, in the order in which they would be served."""
        amounts = self._amounts.get(place, NOTHING)
        if not self._fits_pool(place[1]):
            waits = self._asked[place] or self._waiting[place] or self._wakes[place]
            self.reduced |= {place[1]} if waits else set()
            return
        yield from self._wakes[place]
        room = amounts.notebook_milli - self._booked[place]
        for notebook in sorted(self._asked[place].values(), key=lambda one: (one.requested_at, one.id)):
            if notebook.gpu_milli <= room:
                room -= notebook.gpu_milli
                yield notebook.id
        room = amounts.training_milli - self._use[place]
        if room <= 0 or not self._waiting[place]:
            return
        for job in sorted(self._waiting[place].values(), key=lambda one: (-one.priority, one.submitted_at, one.id)):
            size = job.gpu_milli * job.ranks
            if size <= room and self._has_shape(job):
                room -= size
                yield job.id

    def _fits_pool(self, pool: str) -> bool:
        """Whether the quotas of a pool fit what is healthy; where they do not, they are reduced."""
        promised = sum(
            one.notebook_milli + one.training_milli for (_, where), one in self._amounts.items() if where == pool
        )
        return promised <= sum(self._on_nodes(pool).values()) * WHOLE_DEVICE

    def _has_shape(self, job: Job) -> bool:
        """Whether the empty pool takes it."""
        on_nodes = self._on_nodes(job.pool).values()
        if job.gpu_milli <= WHOLE_DEVICE:
            return job.ranks <= sum(on_nodes) * (WHOLE_DEVICE // job.gpu_milli)
        return job.ranks <= sum(count // (job.gpu_milli // WHOLE_DEVICE) for count in on_nodes)

    def _on_nodes(self, pool: str) -> Counter[str]:
        """How many devices of a pool there are on each node, but for those that failed."""
        if pool not in self._pools:
            there = (d for d in self._devices.values() if d.pool == pool and d.health is not Health.UNHEALTHY)
            self._pools[pool] = Counter(device.node for device in there)
        return self._pools[pool]

    def _check(self, workload: str, place: Place, now: int) -> None:
        times = self.policy.preemption
        grace_s = times.lent_grace_s if workload in self._notebooks else times.grace_s
        quarantined = sum(d.health is Health.QUARANTINED for d in self._devices.values() if d.pool == place[1])
        promised_ms = (grace_s + quarantined * times.grace_s) * 1000 + 2 * self.tick_ms
        waited_ms = now - self.owed_since[workload]
        if waited_ms > promised_ms and workload not in self._reported:
            self._reported.add(workload)
            self.violations.append(
                Violation(workload=workload, project=place[0], waited_ms=waited_ms, promised_ms=promised_ms)
            )
