"""Counterfactual snapshots: GPU is freed, the pool is larger, a job is preemptible, running work has ended."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from ..eviction.removal import removal_reason
from ..lifecycle import HOLDS_GPU, HOLDS_SLICE, RUNS, WAITING
from ..model import (
    NO_AMOUNTS,
    WHOLE_DEVICE,
    Amounts,
    Department,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Policy,
    Project,
    Snapshot,
)
from ..placement.node_resources import nodes_of_pool
from ..plan import Plan, Refuse, Resume, Start, gives_devices
from ..quota.calendar_fit import check_calendar
from ..quota.fit import QuotaRefusal, Subject
from ..quota.in_force import in_force
from ..reasons import Reason
from ..scheduling.lending import is_waking

Owner = TypeVar("Owner", Project, Department)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One workload in the part of the snapshot that belongs to its pool: pools are decided independently.

    A refused notebook is treated as if it requested its slice again; ``state`` is its present one. ``starting``: the
    workloads that the next plan starts. ``least_milli``: the least GPU of a rank that may be requested.
    """

    id: str
    snapshot: Snapshot
    policy: Policy
    job: Job | None
    notebook: Notebook | None
    state: str
    starting: frozenset[str] = frozenset()
    least_milli: int = 1

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy, workload_id: str, least_milli: int = 1) -> WhatIf:
        """The pool of one workload. Raises KeyError for an id that the snapshot does not have."""
        job = next((job for job in snapshot.jobs if job.id == workload_id), None)
        notebook = next((one for one in snapshot.notebooks if one.id == workload_id), None)
        work = job or notebook
        if work is None:
            raise KeyError(workload_id)
        state = str(work.state)
        if notebook is not None and notebook.state is NotebookState.REFUSED:
            notebook = replace(notebook, state=NotebookState.REQUESTED)
        part = _part(snapshot, work.pool, notebook)
        return cls(
            id=workload_id,
            snapshot=part,
            policy=policy,
            job=job,
            notebook=notebook,
            state=state,
            least_milli=least_milli,
        )

    def before(self, plan: Plan) -> WhatIf:
        """The same, with the workloads that the next plan starts."""
        started = (action.workload for action in plan.actions if isinstance(action, (Start, Resume)))
        return replace(self, starting=frozenset(started))

    @property
    def work(self) -> Job | Notebook:
        found = self.job or self.notebook
        assert found is not None
        return found

    @property
    def is_notebook(self) -> bool:
        return self.notebook is not None

    @property
    def waits(self) -> bool:
        """Whether a plan could start it."""
        if self.notebook is not None:
            return self.notebook.state is NotebookState.REQUESTED or is_waking(self.notebook, self.policy)
        assert self.job is not None
        return self.job.state in WAITING and self.job.target in (JobTarget.RUNNING, JobTarget.PAUSED)

    @property
    def removal_reason(self) -> Reason | None:
        """Why no quota covers what it holds, None where one does."""
        projects = {project.name for project in self.policy.projects}
        deadline = self.policy.drain_by_at is not None
        return removal_reason(self.work, projects=projects, pools=self.policy.pools, deadline=deadline)

    @property
    def pool(self) -> str:
        return self.work.pool

    @property
    def project(self) -> str:
        return self.work.project

    @property
    def amounts(self) -> Amounts:
        """The amounts of its project in its pool at this instant."""
        return self.amounts_of(department=False)

    def amounts_of(self, *, department: bool) -> Amounts:
        """The amounts of its project, or of the project's department, in its pool at this instant."""
        owner = self._owner(in_force(self.policy, self.snapshot.now), department=department)
        return (owner.amounts.get(self.pool) if owner else None) or NO_AMOUNTS

    def _owner(self, policy: Policy, *, department: bool) -> Project | Department | None:
        project = next((row for row in policy.projects if row.name == self.project), None)
        if not department or project is None:
            return project
        return next((row for row in policy.departments if row.name == project.department), None)

    @property
    def department(self) -> str | None:
        owner = self._owner(self.policy, department=True)
        return owner.name if owner else None

    def quota(self, *, department: bool) -> int:
        """The quota that admits it, of its project or of the project's department."""
        amounts = self.amounts_of(department=department)
        return amounts.notebook_milli if self.is_notebook else amounts.training_milli

    def limit(self, *, department: bool) -> int | None:
        """The limit of its project, or of the project's department, in its pool."""
        if self.is_notebook or (department and self.department is None):
            return None
        return self.amounts_of(department=department).limit_milli

    def user_ceiling(self, *, department: bool) -> int | None:
        """The ceiling for each user, in its project or in the project's department."""
        amounts = self.amounts_of(department=department)
        return amounts.user_notebook_milli if self.is_notebook else amounts.user_jobs_milli

    def is_counted_with(self, *, department: bool) -> Callable[[Job | Notebook], bool]:
        """Whether work is its user's, in its project or in the project's department."""
        user, inside = self.work.user, self.is_inside(department=department)
        return lambda one: one.user == user and inside(one)

    def is_inside(self, *, department: bool) -> Callable[[Job | Notebook], bool]:
        """Whether work is of its project, or of the project's department."""
        name = self.department
        of_department = {row.name for row in self.policy.projects if row.department == name}
        projects = of_department if department else {self.project}
        return lambda one: one.project in projects

    def thresholds(self, bound_milli: int, of: Callable[[Job | Notebook], bool]) -> list[int]:
        """By how much a bound on the work that ``of`` selects may have to rise: for other waiting work, then for it.

        The smallest others come first, with and without those that the next plan starts anyway; the amounts are for
        none, one, two, four, ... of them.
        """
        works: Sequence[Job | Notebook] = self.snapshot.notebooks if self.is_notebook else self.snapshot.jobs
        used = sum(_used_milli(one) for one in works if one.state in (HOLDS_SLICE | HOLDS_GPU) and of(one))
        held = used + _size(self.work) - bound_milli
        waiting = WAITING | {NotebookState.REQUESTED}
        others = [one for one in works if one.state in waiting and one.id != self.id and of(one)]
        rest = [one for one in others if one.id not in self.starting]
        soon = held + sum(map(_size, others)) - sum(map(_size, rest))
        return [*_sums(held, others), *_sums(soon, rest)]

    def max_quota(self, *, department: bool) -> int:
        """The largest quota that makes a difference: everything that its owner wants, under its limit."""
        quota, amounts = self.quota(department=department), self.amounts_of(department=department)
        inside = self.is_inside(department=department)
        most = quota + sum(job.gpu_milli * job.ranks for job in self.snapshot.jobs if inside(job))
        most += sum(one.gpu_milli for one in self.snapshot.notebooks if inside(one))
        other = amounts.training_milli if self.is_notebook else amounts.notebook_milli
        return most if amounts.limit_milli is None else min(most, amounts.limit_milli - other)

    @property
    def size(self) -> int:
        """What it needs to start, in milli-GPU."""
        return _size(self.work)

    def sizes(self) -> list[int]:
        """The GPU that each job and notebook of the pool has or needs."""
        jobs = (_used_milli(job) if job.state in HOLDS_GPU else _size(job) for job in self.snapshot.jobs)
        return [*jobs, *(one.gpu_milli for one in self.snapshot.notebooks)]

    @property
    def demand_milli(self) -> int:
        """The sum of all requests in the pool."""
        jobs = sum(job.gpu_milli * job.ranks for job in self.snapshot.jobs)
        return jobs + sum(one.gpu_milli for one in self.snapshot.notebooks)

    @property
    def capacity_milli(self) -> int:
        """The capacity of the pool's schedulable devices."""
        return sum(WHOLE_DEVICE - device.foreign_milli for device in self.available_devices())

    def available_devices(self) -> list[Device]:
        """The healthy devices on nodes that take new work."""
        closed = {node.id for node in self.snapshot.nodes if not node.is_open}
        return [one for one in self.snapshot.devices if one.health is Health.HEALTHY and one.node not in closed]

    def objection_to(self, policy: Policy) -> QuotaRefusal | None:
        """The first refusal, at any instant of the calendar, that lacks more GPU than under the present policy.

        None without any. The present quotas are checked only if those of the changed policy do not fit.
        """
        found = self._refusals(policy)
        missing = dict[Subject, int]()
        for row in self._refusals(self.policy) if found else ():
            missing[row.subject] = max(row.missing_milli, missing.get(row.subject, 0))
        return next((row for row in found if row.missing_milli > missing.get(row.subject, -1)), None)

    def _refusals(self, policy: Policy) -> list[QuotaRefusal]:
        """The quotas that do not fit in its pool at some instant from now on."""
        part = _calendar_of(policy, self.pool, self.snapshot.now)
        return [row for row in check_calendar(part, self.snapshot.devices) if row.pool == self.pool]

    def placed_by(self, plan: Plan) -> Reason | None:
        """The reason with which a plan starts it or reserves devices for it."""
        for action in plan.actions:
            if action.workload == self.id and gives_devices(action):
                return action.reason
        return None

    def refusal(self, plan: Plan) -> Reason:
        """The reason with which a plan refuses it. Raises StopIteration if it does not."""
        return next(a.reason for a in plan.actions if isinstance(a, Refuse) and a.workload == self.id)


def _size(work: Job | Notebook) -> int:
    return work.gpu_milli * work.least_ranks if isinstance(work, Job) else work.gpu_milli


def _sums(first: int, others: Iterable[Job | Notebook]) -> list[int]:
    """The first amount alone, and with one, two, four, ... of the others, the smallest of them."""
    found = list(accumulate(sorted(map(_size, others)), initial=first))
    return [found[at] for at in (0, 1, 2, 4, 8, 16) if at < len(found)]


def _used_milli(work: Job | Notebook) -> int:
    return work.held_milli if isinstance(work, Job) else work.gpu_milli


def _part(snapshot: Snapshot, pool: str, changed: Notebook | None) -> Snapshot:
    """The devices and the work of a pool, and the work of other pools that is on these devices."""
    devices = tuple(device for device in snapshot.devices if device.pool == pool)
    names = {device.id for device in devices}
    allocations = tuple(one for one in snapshot.allocations if one.device in names)
    on_devices = {one.workload for one in allocations}
    jobs = tuple(job for job in snapshot.jobs if job.pool == pool or job.id in on_devices)
    notebooks = tuple(
        changed if changed is not None and one.id == changed.id else one
        for one in snapshot.notebooks
        if one.pool == pool or one.id in on_devices
    )
    work = {job.id for job in jobs} | {one.id for one in notebooks}
    return replace(
        snapshot,
        nodes=nodes_of_pool(snapshot.nodes, snapshot.devices, pool),
        devices=devices,
        jobs=jobs,
        notebooks=notebooks,
        allocations=allocations,
        reservations=tuple(one for one in snapshot.reservations if one.workload in work),
    )


def _calendar_of(policy: Policy, pool: str, now: int) -> Policy:
    """The policy reduced to one pool and to the windows that change it from now on.

    Checking the whole policy would take too long.
    """
    windows = tuple(
        replace(window, changes=changes)
        for window in policy.windows
        if window.ends_at > now and (changes := tuple(one for one in window.changes if one.pool == pool))
    )
    changed = {(one.department, one.owner) for window in windows for one in window.changes}
    return replace(
        policy,
        pools=(pool,),
        windows=windows,
        projects=_in_pool(policy.projects, pool, {name for department, name in changed if not department}),
        departments=_in_pool(policy.departments, pool, {name for department, name in changed if department}),
    )


def _in_pool(owners: Iterable[Owner], pool: str, changed: Container[str]) -> tuple[Owner, ...]:
    """The owners with amounts in a pool, and those that ``changed`` names, with these amounts alone."""
    there = (one for one in owners if pool in one.amounts or one.name in changed)
    return tuple(replace(one, amounts={pool: one.amounts[pool]} if pool in one.amounts else {}) for one in there)


def with_job(what_if: WhatIf, changed: Job) -> Snapshot:
    """The snapshot with the changed job in place of the one of the same id. Its recorded reservation is dropped."""
    snapshot = what_if.snapshot
    return replace(
        snapshot,
        jobs=tuple(changed if job.id == changed.id else job for job in snapshot.jobs),
        reservations=tuple(one for one in snapshot.reservations if one.workload != changed.id),
    )


def with_notebook(what_if: WhatIf, changed: Notebook) -> Snapshot:
    """The snapshot with the changed notebook in place of the one of the same id."""
    notebooks = tuple(changed if one.id == changed.id else one for one in what_if.snapshot.notebooks)
    return replace(what_if.snapshot, notebooks=notebooks)


def resubmitted(job: Job, now: int) -> Job:
    """The job as if it were submitted now."""
    return replace(
        job, state=JobState.QUEUED, submitted_at=now, attempt=0, checkpoint_at=None, paused_for=None, paused_at=()
    )


def with_devices(what_if: WhatIf, count: int, model: str) -> Snapshot:
    """The snapshot with one more node: ``count`` GPUs of a model, CPU and memory like the largest of the nodes."""
    snapshot = what_if.snapshot
    here = {device.node for device in snapshot.devices}
    among = [node for node in snapshot.nodes if node.id in here]
    node = Node(
        id="\uffffadded",
        name="added",
        cpu_milli=max((one.cpu_milli for one in among), default=0),
        memory_mib=max((one.memory_mib for one in among), default=0),
    )
    memory_mib = max((device.memory_mib for device in snapshot.devices if device.model == model), default=0)
    added = tuple(
        Device(
            id=f"\uffffadded{index:06d}",
            node=node.id,
            index=index,
            model=model,
            memory_mib=memory_mib,
            pool=what_if.pool,
        )
        for index in range(count)
    )
    return replace(snapshot, nodes=(*snapshot.nodes, node), devices=(*snapshot.devices, *added))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The latest ends of the running jobs of a pool, in order, and the snapshot after a number of them."""

    snapshot: Snapshot
    jobs: tuple[str, ...]
    at: tuple[int, ...]

    def after(self, count: int) -> Snapshot:
        """The snapshot at the instant of an end, without the jobs that have ended by then."""
        gone = set(self.jobs[:count])
        return replace(
            self.snapshot,
            now=self.at[count - 1],
            jobs=tuple(job for job in self.snapshot.jobs if job.id not in gone),
            allocations=tuple(one for one in self.snapshot.allocations if one.workload not in gone),
        )


def latest_ends(what_if: WhatIf) -> Ends:
    """The ends of running jobs by their time limits, in order."""
    rows = sorted(
        (job.started_at + job.time_limit_s * 1000, job.id)
        for job in what_if.snapshot.jobs
        if job.state in RUNS and job.started_at is not None
    )
    late = [(max(at, what_if.snapshot.now), name) for at, name in rows]
    return Ends(snapshot=what_if.snapshot, jobs=tuple(name for _, name in late), at=tuple(at for at, _ in late))
