"""Counterfactual snapshots: GPU is freed, the pool is larger, a job is preemptible, running work has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..eviction.removal import removal_reason
from ..lifecycle import HOLDS_GPU, HOLDS_SLICE, RUNS, WAITING
from ..model import (
    NO_AMOUNTS,
    WHOLE_DEVICE,
    Allocation,
    Amounts,
    Department,
    Device,
    Health,
    Job,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Policy,
    Project,
    Snapshot,
)
from ..placement.place import Request
from ..plan import Plan, Refuse, Resume, Start, gives_devices
from ..quota.fit import QuotaRefusal, check_quotas
from ..quota.in_force import in_force
from ..reasons import Reason
from ..scheduling.decide import decide
from ..scheduling.lending import is_waking

MAX_SLOTS = 256
"""Slots that are freed at most, one after the other; if they are not enough, no change is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One workload in the part of the snapshot that belongs to its pool: pools are decided independently.

    A refused notebook is treated as if it requested its slice again; ``state`` is its present one. ``starting``: the
    workloads that the next plan starts.
    """

    id: str
    snapshot: Snapshot
    policy: Policy
    job: Job | None
    notebook: Notebook | None
    state: str
    starting: frozenset[str] = frozenset()

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy, workload_id: str) -> WhatIf:
        """The case of one workload. Raises KeyError for an id that the snapshot does not have."""
        job = next((job for job in snapshot.jobs if job.id == workload_id), None)
        notebook = next((one for one in snapshot.notebooks if one.id == workload_id), None)
        work = job or notebook
        if work is None:
            raise KeyError(workload_id)
        state = str(work.state)
        if notebook is not None and notebook.state is NotebookState.REFUSED:
            notebook = replace(notebook, state=NotebookState.REQUESTED)
        part = _part(snapshot, work.pool, notebook)
        return cls(id=workload_id, snapshot=part, policy=policy, job=job, notebook=notebook, state=state)

    def before(self, plan: Plan) -> WhatIf:
        """The same case, with the workloads that the next plan starts."""
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

    @property
    def quota(self) -> int:
        """The quota that admits it."""
        return self.amounts.notebook_milli if self.is_notebook else self.amounts.training_milli

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

    @property
    def max_quota(self) -> int:
        """The largest quota that makes a difference: everything the project wants, under its limit."""
        own = self._sizes(lambda project: project == self.project)
        other = self.amounts.training_milli if self.is_notebook else self.amounts.notebook_milli
        limit = self.amounts.limit_milli
        return self.quota + own if limit is None else min(self.quota + own, limit - other)

    @property
    def demand_milli(self) -> int:
        """The sum of all requests in the pool."""
        return self._sizes(lambda _project: True)

    @property
    def capacity_milli(self) -> int:
        """The capacity of the pool's schedulable devices."""
        return sum(WHOLE_DEVICE - device.foreign_milli for device in self.available_devices())

    def available_devices(self) -> list[Device]:
        """The healthy devices on nodes that take new work."""
        closed = {node.id for node in self.snapshot.nodes if not node.is_open}
        return [one for one in self.snapshot.devices if one.health is Health.HEALTHY and one.node not in closed]

    def _sizes(self, of: Callable[[str], bool]) -> int:
        jobs = sum(job.gpu_milli * job.ranks for job in self.snapshot.jobs if of(job.project))
        return jobs + sum(one.gpu_milli for one in self.snapshot.notebooks if of(one.project))

    def starts(self, *, snapshot: Snapshot | None = None, policy: Policy | None = None) -> bool:
        """Whether the next plan for a changed snapshot or policy starts it or pauses others for it."""
        plan = decide(snapshot or self.snapshot, policy or self.policy)
        return self.placed_by(plan) is not None

    def objection_to(self, policy: Policy) -> QuotaRefusal | None:
        """Why quotas of a changed policy do not fit; None where there are no more objections than now."""
        devices = self.snapshot.devices
        now = [row for row in check_quotas(self.policy, devices) if row.pool == self.pool]
        then = [row for row in check_quotas(policy, devices) if row.pool == self.pool]
        return next((row for row in then if row not in now), None) if len(then) > len(now) else None

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
    devices = tuple(device for device in snapshot.devices if device.pool == pool)
    jobs = tuple(job for job in snapshot.jobs if job.pool == pool)
    notebooks = tuple(
        changed if changed is not None and one.id == changed.id else one
        for one in snapshot.notebooks
        if one.pool == pool
    )
    names = {device.id for device in devices}
    work = {job.id for job in jobs} | {one.id for one in notebooks}
    return replace(
        snapshot,
        nodes=_nodes_of(snapshot, pool),
        devices=devices,
        jobs=jobs,
        notebooks=notebooks,
        allocations=tuple(one for one in snapshot.allocations if one.device in names),
        reservations=tuple(one for one in snapshot.reservations if one.workload in work),
    )


def _nodes_of(snapshot: Snapshot, pool: str) -> tuple[Node, ...]:
    """A node whose devices are in several pools, with this one's part of it alone."""
    among = Counter(device.node for device in snapshot.devices)
    here = Counter(device.node for device in snapshot.devices if device.pool == pool)
    return tuple(
        replace(
            node,
            cpu_milli=node.cpu_milli * here[node.id] // among[node.id],
            memory_mib=node.memory_mib * here[node.id] // among[node.id],
        )
        if here[node.id]
        else node
        for node in snapshot.nodes
    )


def as_preemptible(what_if: WhatIf, fixed: Job) -> Snapshot:
    """The snapshot with the job as a preemptible one."""
    jobs = tuple(replace(job, preemptible=True) if job.id == fixed.id else job for job in what_if.snapshot.jobs)
    return replace(what_if.snapshot, jobs=jobs)


def with_devices(what_if: WhatIf, milli: int) -> Snapshot:
    """The snapshot with one more node of ``milli`` GPU, of the model that the case asks for."""
    models = sorted(device.model for device in what_if.snapshot.devices)
    model = next(iter(what_if.job.gpu_models if what_if.job else ()), models[0] if models else "any")
    count = -(-milli // WHOLE_DEVICE)
    node = Node(id="\uffffadded", name="added", cpu_milli=0, memory_mib=0)
    added = tuple(
        Device(
            id=f"\uffffadded{index:06d}",
            node=node.id,
            index=index,
            model=model,
            memory_mib=0,
            pool=what_if.pool,
            foreign_milli=max(0, (index + 1) * WHOLE_DEVICE - milli),
        )
        for index in range(count)
    )
    return replace(what_if.snapshot, nodes=(*what_if.snapshot.nodes, node), devices=(*what_if.snapshot.devices, *added))


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """Other work shrinks, slot after slot, smallest shortfall first: ``steps`` are (device, milli) in order."""

    what_if: WhatIf
    steps: tuple[tuple[str, int], ...]

    @property
    def max_milli(self) -> int:
        return sum(milli for _, milli in self.steps)

    def starts(self, milli: int) -> bool:
        """Whether the workload starts when the steps have freed this much."""
        left = dict[str, int]()
        for device, step in self.steps:
            part = min(step, milli)
            left[device] = left.get(device, 0) + part
            milli -= part
        return self.what_if.starts(snapshot=_without_freed(self.what_if.snapshot, left))


def _without_freed(snapshot: Snapshot, freed_milli: dict[str, int]) -> Snapshot:
    running = {job.id for job in snapshot.jobs if job.state in RUNS}
    kept: list[Allocation] = []
    for one in sorted(snapshot.allocations, key=lambda row: (row.device, row.workload, row.rank, row.id)):
        part = min(one.gpu_milli, freed_milli.get(one.device, 0)) if one.workload in running else 0
        if part:
            freed_milli = freed_milli | {one.device: freed_milli[one.device] - part}
        if part < one.gpu_milli:
            kept.append(replace(one, gpu_milli=one.gpu_milli - part))
    return replace(snapshot, allocations=tuple(kept))


def freed(what_if: WhatIf) -> Freed:
    """The slots where the workload could go if enough were freed, smallest shortfall first."""
    each = min(what_if.work.gpu_milli, WHOLE_DEVICE)
    shortfalls = _shortfalls(what_if, each)
    per_rank = max(1, what_if.work.gpu_milli // WHOLE_DEVICE)
    if per_rank == 1:
        rows = sorted((milli, device) for row in shortfalls.values() for device, milli in row)
        slots = [[(device, milli)] for milli, device in rows]
    else:
        cheapest = {
            node: sorted(row, key=lambda part: (part[1], part[0]))[:per_rank] for node, row in shortfalls.items()
        }
        full = {node: row for node, row in cheapest.items() if len(row) == per_rank}
        slots = [full[node] for node in sorted(full, key=lambda node: (sum(m for _, m in full[node]), node))]
    steps = tuple((device, milli) for slot in slots[:MAX_SLOTS] for device, milli in slot if milli)
    return Freed(what_if=what_if, steps=steps)


def _shortfalls(what_if: WhatIf, each: int) -> dict[str, list[tuple[str, int]]]:
    """By node: each device that jobs could leave far enough, and how much is not free there."""
    running = {job.id for job in what_if.snapshot.jobs if job.state in RUNS}
    used, jobs = defaultdict[str, int](int), defaultdict[str, int](int)
    for one in what_if.snapshot.allocations:
        used[one.device] += one.gpu_milli
        jobs[one.device] += one.gpu_milli if one.workload in running else 0
    accepts = Request(each, 1, what_if.job.gpu_models if what_if.job else ()).accepts
    rows = defaultdict[str, list[tuple[str, int]]](list)
    for device in what_if.available_devices():
        if accepts(device.model):
            shortfall = max(0, each - (WHOLE_DEVICE - device.foreign_milli - used[device.id]))
            if shortfall <= jobs[device.id]:
                rows[device.node].append((device.id, shortfall))
    return rows


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
