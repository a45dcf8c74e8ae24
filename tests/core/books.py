"""The sums that docs/scheduling.md speaks of, counted row by row and in fractions; :mod:`.promises` compares with them.

Departments and projects are *owners*. A department's key ends in ``/`` so that it never meets a project's name.
"""

from __future__ import annotations

import dataclasses as dc
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jupyter_gpu_quota.core.model import (
    Amounts,
    Change,
    Department,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    NotebookState,
    Policy,
    Project,
    Snapshot,
)

RUNS = (JobState.STARTING, JobState.RUNNING)
HOLDS = (*RUNS, JobState.PAUSING)
WAITS = (JobState.QUEUED, JobState.PAUSED)
NOTHING = Amounts(limit_milli=0, weight=0)
ENDLESS = 1 << 60


def whole(job: Job) -> int:
    """Milli-GPU of all ranks of a job."""
    return job.gpu_milli * job.ranks


def least(job: Job) -> int:
    """Milli-GPU of the fewest ranks that it runs with."""
    return job.gpu_milli * (job.min_ranks or job.ranks)


def takes_model(job: Job, device: Device) -> bool:
    return not job.gpu_models or device.model in job.gpu_models


def in_force(policy: Policy, now: int) -> Policy:
    """Section 6: the base amounts with the changes of every window that is open, the later in order on top."""
    for window in policy.windows:
        if window.begins_at <= now < window.ends_at:
            for change in window.changes:
                policy = _changed(policy, change)
    return policy


def _changed(policy: Policy, change: Change) -> Policy:
    new = {name: getattr(change, name) for name in Amounts.__slots__ if getattr(change, name) is not None}

    def changed(owner: Project | Department) -> Project | Department:
        mine = dc.replace(owner.amounts.get(change.pool, Amounts()), **new)
        return dc.replace(owner, amounts={**owner.amounts, change.pool: mine})

    part = "departments" if change.department else "projects"
    rows: Any = tuple(changed(row) if row.name == change.owner else row for row in getattr(policy, part))
    return dc.replace(policy, **{part: rows})


class Books:
    """One pool in one snapshot."""

    def __init__(self, snapshot: Snapshot, policy: Policy, pool: str) -> None:
        self.snapshot, self.pool = snapshot, pool
        self.policy = policy = in_force(policy, snapshot.now)
        closed = {node.id for node in snapshot.nodes if not node.schedulable}
        self.devices = {
            device.id: device
            for device in snapshot.devices
            if device.pool == pool and device.health is Health.HEALTHY and device.node not in closed
        }
        departments = {f"{one.name}/": one for one in policy.departments}
        projects = {one.name: one for one in policy.projects}
        owners: dict[str, Department | Project] = {**departments, **projects}
        self.amounts = {key: one.amounts.get(pool, NOTHING) for key, one in owners.items()}
        self.priority = {key: one.priority for key, one in owners.items()}
        self.projects = list(projects)
        self.departments = list(departments)
        self.parent = {name: f"{one.department}/" if one.department else None for name, one in projects.items()}
        self.jobs = {job.id: job for job in snapshot.jobs if job.pool == pool}
        self.sick = self._sick()
        for name in self.sick:
            self.jobs[name] = dc.replace(self.jobs[name], state=JobState.PAUSING, target=JobTarget.PAUSED)
        self.sizes = self._sizes()
        self.booked, self.booked_by = Counter[str](), Counter[tuple[str, str]]()
        for notebook in snapshot.notebooks:
            if notebook.pool == pool and notebook.state is NotebookState.BOOKED:
                for key in self.levels(notebook.project):
                    self.booked[key] += notebook.gpu_milli
                    self.booked_by[key, notebook.user] += notebook.gpu_milli
        self.capacity = sum(1000 - device.foreign_milli for device in self.devices.values())

    def size(self, job: Job) -> int:
        """Milli-GPU that a job holds or is promised, else that of all its ranks."""
        return self.sizes.get(job.id, whole(job))

    def _sizes(self) -> Counter[str]:
        sizes = Counter[str]()
        for reservation in self.snapshot.reservations:
            sizes[reservation.workload] = sum(part.gpu_milli for part in reservation.placements)
        for name in {one.workload for one in self.snapshot.allocations}:
            sizes[name] = sum(one.gpu_milli for one in self.snapshot.allocations if one.workload == name)
        return sizes

    def _sick(self) -> set[str]:
        """Section 6: preemptible work on an unhealthy device, which is queued again whoever claims what."""
        unhealthy = {device.id for device in self.snapshot.devices if device.health is Health.UNHEALTHY}
        on_it = {one.workload for one in self.snapshot.allocations if one.device in unhealthy}
        return {name for name, job in self.jobs.items() if name in on_it and job.preemptible and self.stays(job)}

    def levels(self, project: str) -> list[str]:
        """The owners of a project's work, from the top: its department if it has one, and itself."""
        above = self.parent.get(project)
        return [project] if above is None else [above, project]

    def children(self, department: str) -> list[str]:
        return [name for name in self.projects if self.parent[name] == department]

    def leaves(self, job: Job) -> bool:
        ran = 0 if job.started_at is None else self.snapshot.now - job.started_at
        stopped = job.target in (JobTarget.HELD, JobTarget.CANCELLED) or ran >= job.time_limit_s * 1000
        return job.state in RUNS and stopped

    def stays(self, job: Job) -> bool:
        return job.state in RUNS and not self.leaves(job)

    def use(self) -> Counter[str]:
        """Running, and reserved for on devices that can still be given out, by owner."""
        use = Counter[str]()
        reserved = self.reserved()
        for job in self.jobs.values():
            if self.stays(job) or (job.state in WAITS and job.id in reserved):
                for key in self.levels(job.project):
                    use[key] += self.size(job)
        return use

    def reserved(self) -> set[str]:
        return {
            one.workload
            for one in self.snapshot.reservations
            if all(part.device in self.devices for part in one.placements)
        }

    def fits_empty(self, job: Job) -> bool:
        rooms: dict[str, list[int]] = defaultdict(list)
        for device in self.devices.values():
            if takes_model(job, device):
                rooms[device.node].append(1000 - device.foreign_milli)
        ranks = job.min_ranks or job.ranks
        if job.gpu_milli > 1000:
            each = job.gpu_milli // 1000
            return sum(sum(room == 1000 for room in row) // each for row in rooms.values()) >= ranks
        return sum(room // job.gpu_milli for row in rooms.values() for room in row) >= ranks

    def ceiling(self, key: str) -> int:
        """What an owner's jobs may use: the limit, less the notebook quota, which may be asked for at any time."""
        amounts = self.amounts[key]
        if amounts.limit_milli is None:
            return ENDLESS
        return max(0, amounts.limit_milli - max(amounts.notebook_milli, self.booked[key]))

    def user_ceiling(self, key: str) -> int:
        ceiling = self.amounts[key].user_jobs_milli
        return ENDLESS if ceiling is None else ceiling

    def could_start(self, job: Job) -> bool:
        """In the empty pool: it fits the devices, the limits, its user's ceiling and, if fixed, the quotas."""
        if job.project not in self.parent or not self.fits_empty(job):
            return False
        return all(
            least(job) <= min(self.ceiling(key), self.user_ceiling(key))
            and (job.preemptible or least(job) <= self.amounts[key].training_milli)
            for key in self.levels(job.project)
        )

    def wanted(self) -> Counter[str]:
        """Running and queued demand under the limit, of jobs that could start in the empty pool, by owner.

        Each user counts up to the ceiling for one user, fixed work up to the quota, and an elastic job with its
        minimum: it grows into what nobody wants.
        """
        firm, rest, fixed_use = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
        for job in self.jobs.values():
            waits = job.state in WAITS or (job.state is JobState.PAUSING and job.target is JobTarget.PAUSED)
            if self.stays(job) or (waits and self.could_start(job)):
                (rest if job.preemptible else firm)[job.project, job.user] += least(job)
            if not job.preemptible and job.state in HOLDS:
                fixed_use[job.project] += self.size(job)
        wanted = Counter({name: self._wanted(name, firm, rest, fixed_use[name]) for name in self.projects})
        for key in self.departments:
            wanted[key] = min(self.ceiling(key), sum(wanted[name] for name in self.children(key)))
        return wanted

    def _wanted(self, name: str, firm: Counter[tuple[str, str]], rest: Counter[tuple[str, str]], fixed_use: int) -> int:
        cap, quota = self.user_ceiling(name), max(self.amounts[name].training_milli, fixed_use)
        users = {user for project, user in (*firm, *rest) if project == name}
        everything = sum(min(cap, rest[name, user] + firm[name, user]) for user in users)
        without_fixed = sum(min(cap, rest[name, user]) for user in users)
        return min(self.ceiling(name), everything, without_fixed + quota)

    def past(self) -> Counter[str]:
        """Decayed use above quota, by owner; a department's is the sum of its projects'."""
        past = Counter[str]()
        for used in self.snapshot.usage:
            if used.pool == self.pool and used.project in self.parent:
                for key in self.levels(used.project):
                    past[key] += used.milli_s
        return past

    def shares(self, booked_now: int) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        """Guarantees and fair shares by owner, in exact fractions. ``booked_now``: slices that the plan admits."""
        unbooked = sum(max(0, self.amounts[name].notebook_milli - self.booked[name]) for name in self.projects)
        booked = {n.id for n in self.snapshot.notebooks if n.state is NotebookState.BOOKED}
        used = sum(
            one.gpu_milli for one in self.snapshot.allocations if one.device in self.devices and one.workload in booked
        )
        amount = Fraction(max(0, self.capacity - used - booked_now))
        firm = max(Fraction(0), amount - (unbooked - booked_now))
        guarantee, fair = self._divide(self.departments or self.projects, amount, firm)
        for key in self.departments:
            inside = self._divide(self.children(key), fair[key], min(fair[key], guarantee[key]))
            guarantee |= inside[0]
            fair |= inside[1]
        return guarantee, fair

    def _divide(
        self, owners: list[str], amount: Fraction, firm: Fraction
    ) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        amounts = {key: self.amounts[key] for key in owners}
        k = Fraction(self.policy.history.k_milli, 1000)
        return divide_slowly(amounts, self.priority, self.wanted(), amount, firm, past=self.past(), k=k)


def divide_slowly(
    amounts: dict[str, Amounts],
    priority: dict[str, int],
    wanted: Counter[str],
    amount: Fraction,
    firm: Fraction,
    *,
    past: Mapping[str, int] | None = None,
    k: Fraction = Fraction(0),
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Section 2, by pouring a little and looking again."""
    quota = {name: Fraction(row.training_milli) for name, row in amounts.items()}
    first = {name: min(quota[name], Fraction(wanted[name])) for name in amounts}
    guarantee = dict(quota)
    if sum(first.values()) > firm:
        got = _levels(first, {name: int(quota[name]) for name in amounts}, priority, firm)
        first, guarantee = got, got
    weights = {name: row.weight for name, row in amounts.items()}
    open_names = {name: Fraction(wanted[name]) - first[name] for name in amounts}
    rest = amount - sum(first.values())
    extra = _levels({n: open_names[n] for n in amounts if weights[n]}, weights, priority, rest, past or {}, k)
    rest -= sum(extra.values())
    zero = dict.fromkeys(amounts, 0)
    extra |= _levels({n: open_names[n] for n in amounts if not weights[n]}, dict.fromkeys(amounts, 1), zero, rest)
    return guarantee, {name: first[name] + extra[name] for name in amounts}


def _levels(
    ceilings: dict[str, Fraction],
    weights: dict[str, int],
    priority: dict[str, int],
    amount: Fraction,
    past: Mapping[str, int] | None = None,
    k: Fraction = Fraction(0),
) -> dict[str, Fraction]:
    given = dict.fromkeys(ceilings, Fraction(0))
    for level in sorted({priority[name] for name in ceilings}, reverse=True):
        names = [name for name in ceilings if priority[name] == level and weights[name]]
        while amount > 0 and (hungry := [name for name in names if given[name] < ceilings[name]]):
            parts = _parts({name: weights[name] for name in hungry}, past or {}, k)
            steps = [(ceilings[name] - given[name]) / part for name, part in parts.items() if part]
            step = min(amount / sum(parts.values()), *steps)
            for name, part in parts.items():
                given[name] += step * part
            amount -= step * sum(parts.values())
    return given


def _parts(weights: dict[str, int], past: Mapping[str, int], k: Fraction) -> dict[str, Fraction]:
    """Section 2, step 3: max(0, n + k(n - u)), both as parts of what the still unsatisfied have; all zero: plain."""
    total, used = sum(weights.values()), sum(past.get(name, 0) for name in weights)
    plain = {name: Fraction(weight, total) for name, weight in weights.items()}
    if not k or not used:
        return plain
    parts = {name: max(Fraction(0), n + k * (n - Fraction(past.get(name, 0), used))) for name, n in plain.items()}
    return parts if any(parts.values()) else plain
