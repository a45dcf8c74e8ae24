"""Checks the promises about waiting times, from the changes of the records alone.

P10: a claim within its guarantee has its devices within grace + 2 ticks, unless an older job of its project precedes
it. A notebook within its quota, or one that wakes while its slice is lent, has its slice within lent_grace + 2 ticks.
Each quarantined device adds one grace. The amounts are those in force: a claim becomes owed, or is no longer owed, when
a window of the calendar opens or closes, and when non-preemptible work above a lowered quota has ended, up to where a
raised one is not in force. A job whose user has no room under a ceiling for each user is not owed (R12).
Source: docs/scheduling.md, section 9.
"""

from __future__ import annotations

import math
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
from .user_ceilings import UserCeilings

USES = frozenset({JobState.STARTING, JobState.RUNNING})
NOTHING = Amounts()
ProjectPool = tuple[str, str]
"""A project in a pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A workload waited longer than promised."""

    workload: str
    project: str
    waited_ms: int
    promised_ms: int


@dataclass(slots=True)
class GuaranteeMonitor:
    """Measures how long each claim within its guarantee waits.

    ``policy`` has its calendar expanded over the whole simulated time. ``reduced``: the pools in which work waited
    while the quotas did not fit beside non-preemptible work above them; their guarantees are reduced, and not checked
    meanwhile.
    """

    policy: Policy
    tick_ms: int
    violations: list[Violation] = field(default_factory=list)
    owed_since: dict[str, int] = field(default_factory=dict)
    reduced: set[str] = field(default_factory=set)
    _amounts: dict[ProjectPool, Amounts] = field(default_factory=dict)
    _changes_at: int | None = None
    """When the calendar changes an amount next."""
    _use: dict[ProjectPool, int] = field(default_factory=lambda: defaultdict(int))
    _fixed: dict[ProjectPool, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """The milli-GPU of each non-preemptible job that runs."""
    _booked: dict[ProjectPool, int] = field(default_factory=lambda: defaultdict(int))
    _users: UserCeilings = field(default_factory=UserCeilings)
    _waiting: dict[ProjectPool, dict[str, Job]] = field(default_factory=lambda: defaultdict(dict))
    _requested: dict[ProjectPool, dict[str, Notebook]] = field(default_factory=lambda: defaultdict(dict))
    _waking: dict[ProjectPool, set[str]] = field(default_factory=lambda: defaultdict(set))
    _counted: dict[str, tuple[ProjectPool, int]] = field(default_factory=dict)
    _devices: dict[str, Device] = field(default_factory=dict)
    _owed: dict[ProjectPool, set[str]] = field(default_factory=lambda: defaultdict(set))
    _preceded_at: dict[str, float] = field(default_factory=dict)
    """The instant from which an older job precedes an owed one, or infinity."""
    _reported: set[str] = field(default_factory=set)
    _notebooks: set[str] = field(default_factory=set)
    _pools: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._update_amounts(0)

    def observe(self, changes: Changes, now: int) -> None:
        """Apply the changes up to ``now``, and record the workloads that waited too long."""
        self._follow_calendar(now)
        self._devices |= {device.id: device for device in changes.devices}
        touched = dict[ProjectPool, None]()
        for record in changes.jobs:
            key = self._update_job(record.job)
            touched |= {(name, key[1]): None for name in self._users.projects_with(*key)}
            if not record.job.preemptible:
                touched |= {other: None for other in self._waiting if other[1] == key[1]}
        for seen in changes.notebooks:
            touched[self._update_notebook(seen.notebook)] = None
        if changes.devices:
            self._pools.clear()
            touched |= dict.fromkeys([*self._waiting, *self._requested, *self._waking])
        for key in touched:
            self._check_claims_of(key, now)

    def finish(self, now: int) -> list[Violation]:
        """All violations, those of workloads that still wait too."""
        self._follow_calendar(now)
        for key in list(self._owed):
            for workload in sorted(self._owed[key]):
                self._check(workload, key, now)
        return self.violations

    # --- amounts ----------------------------------------------------------------------------------------------------
    def _update_amounts(self, at: int) -> None:
        self._changes_at = next_change_at(self.policy, at)
        policy = in_force(self.policy, at)
        self._users.set_amounts(policy)
        self._amounts = {
            (project.name, pool): amounts for project in policy.projects for pool, amounts in project.amounts.items()
        }

    def _follow_calendar(self, now: int) -> None:
        """Check all claims at each instant until now at which amounts changed."""
        while self._changes_at is not None and self._changes_at <= now:
            at = self._changes_at
            self._update_amounts(at)
            for key in [*self._waiting, *self._requested, *self._waking]:
                self._check_claims_of(key, at)

    # --- workloads ------------------------------------------------------------------------------------------------
    def _update_job(self, job: Job) -> ProjectPool:
        key = job.project, job.pool
        self._remove_use(job.id, self._use)
        self._users.update(job)
        self._waiting[key].pop(job.id, None)
        self._fixed[key].pop(job.id, None)
        if job.state in WAITING and job.target in (JobTarget.RUNNING, JobTarget.PAUSED):
            self._waiting[key][job.id] = job
        elif job.state in USES:
            self._add_use(job.id, key, job.held_milli, self._use)
            if not job.preemptible:
                self._fixed[key][job.id] = job.held_milli
        return key

    def _update_notebook(self, notebook: Notebook) -> ProjectPool:
        key = notebook.project, notebook.pool
        self._remove_use(notebook.id, self._booked)
        self._requested[key].pop(notebook.id, None)
        self._waking[key].discard(notebook.id)
        if notebook.state is NotebookState.REQUESTED:
            self._requested[key][notebook.id] = notebook
            self._notebooks.add(notebook.id)
        elif notebook.state in HOLDS_SLICE:
            if is_waking(notebook, self.policy):
                self._waking[key].add(notebook.id)
                self._notebooks.add(notebook.id)
            self._add_use(notebook.id, key, notebook.gpu_milli, self._booked)
        return key

    def _add_use(self, workload: str, key: ProjectPool, milli: int, into: dict[ProjectPool, int]) -> None:
        self._counted[workload] = key, milli
        into[key] += milli

    def _remove_use(self, workload: str, of: dict[ProjectPool, int]) -> None:
        if workload in self._counted:
            key, milli = self._counted.pop(workload)
            of[key] -= milli

    # --- claims within guarantee ----------------------------------------------------------------------------------
    def _check_claims_of(self, key: ProjectPool, now: int) -> None:
        owed = set(self._covered_claims(key, now))
        before = self._owed[key]
        for workload in sorted(before):
            self._check(workload, key, now)
            if workload not in owed:
                del self.owed_since[workload], self._preceded_at[workload]
        for workload in owed - before:
            self.owed_since[workload] = now
            job = self._waiting[key].get(workload)
            self._preceded_at[workload] = math.inf if job is None else self._instant_of_precedence(job, key)
        self._owed[key] = owed

    def _covered_claims(self, key: ProjectPool, now: int) -> Iterable[str]:
        """The workloads that the quotas cover together, in the order in which they start."""
        amounts = self._amounts.get(key, NOTHING)
        if not self._fits_pool(key[1]):
            waits = self._requested[key] or self._waiting[key] or self._waking[key]
            self.reduced |= {key[1]} if waits else set()
            return
        yield from self._waking[key]
        room = amounts.notebook_milli - self._booked[key]
        for notebook in sorted(self._requested[key].values(), key=lambda one: (one.requested_at, one.id)):
            if notebook.gpu_milli <= room:
                room -= notebook.gpu_milli
                yield notebook.id
        room = amounts.training_milli - self._use[key]
        if room > 0 and self._waiting[key]:
            yield from self._covered_jobs(key, room, now)

    def _covered_jobs(self, key: ProjectPool, room: int, now: int) -> Iterable[str]:
        """The jobs that this part of a quota covers together, each within the room of its user."""
        of_user = dict[str, float]()
        for job in sorted(self._waiting[key].values(), key=lambda one: (-one.priority, one.submitted_at, one.id)):
            size = job.gpu_milli * job.ranks
            if job.user not in of_user:
                of_user[job.user] = self._users.room(*key, job.user)
            if size > min(room, of_user[job.user]):
                continue
            if self._fits_empty_pool(job) and self._instant_of_precedence(job, key) > now:
                room, of_user[job.user] = room - size, of_user[job.user] - size
                yield job.id

    def _instant_of_precedence(self, job: Job, key: ProjectPool) -> float:
        """The instant from which an older job of its project has precedence, or infinity."""
        guarantee = self._amounts.get(key, NOTHING).training_milli
        first = min(
            (
                one.submitted_at
                for one in self._waiting[key].values()
                if one.attempt == 0 and one.gpu_milli * one.ranks <= guarantee
                and one.priority >= job.priority and (one.submitted_at, one.id) < (job.submitted_at, job.id)
            ),
            default=math.inf,
        )  # fmt: skip
        return first + self.policy.patience_s * 1000

    def _fits_pool(self, pool: str) -> bool:
        """Whether what the quotas promise fits the healthy devices, beside non-preemptible work above its quota."""
        there = {key: one for key, one in self._amounts.items() if key[1] == pool}
        promised = sum(one.notebook_milli + self._promised_to_jobs(key, one) for key, one in there.items())
        above = sum(
            max(0, sum(jobs.values()) - self._amounts.get(key, NOTHING).training_milli)
            for key, jobs in self._fixed.items()
            if key[1] == pool
        )
        return promised + above <= sum(self._devices_by_node(pool).values()) * WHOLE_DEVICE

    def _promised_to_jobs(self, key: ProjectPool, amounts: Amounts) -> int:
        wanted = self._use[key] + sum(job.gpu_milli * job.ranks for job in self._waiting[key].values())
        return min(amounts.training_milli, wanted)

    def _fits_empty_pool(self, job: Job) -> bool:
        """Whether a job fits in its pool while that is empty."""
        on_nodes = self._devices_by_node(job.pool).values()
        if job.gpu_milli <= WHOLE_DEVICE:
            return job.ranks <= sum(on_nodes) * (WHOLE_DEVICE // job.gpu_milli)
        return job.ranks <= sum(count // (job.gpu_milli // WHOLE_DEVICE) for count in on_nodes)

    def _devices_by_node(self, pool: str) -> Counter[str]:
        """The number of a pool's devices on each node, without those that failed or whose node is gone."""
        if pool not in self._pools:
            there = (device for device in self._devices.values() if device.pool == pool and _is_there(device))
            self._pools[pool] = Counter(device.node for device in there)
        return self._pools[pool]

    def _check(self, workload: str, key: ProjectPool, now: int) -> None:
        times = self.policy.preemption
        grace_s = times.lent_grace_s if workload in self._notebooks else times.grace_s
        quarantined = sum(d.health is Health.QUARANTINED for d in self._devices.values() if d.pool == key[1])
        promised_ms = (grace_s + quarantined * times.grace_s) * 1000 + 2 * self.tick_ms
        waited_ms = int(min(now, self._preceded_at[workload])) - self.owed_since[workload]
        if waited_ms > promised_ms and workload not in self._reported:
            self._reported.add(workload)
            self.violations.append(
                Violation(workload=workload, project=key[0], waited_ms=waited_ms, promised_ms=promised_ms)
            )


def _is_there(device: Device) -> bool:
    """Whether a device has not failed; one of a lost node counts as healthy at first, with the trouble of its node."""
    return device.health is Health.QUARANTINED or (device.health is Health.HEALTHY and device.trouble is None)
