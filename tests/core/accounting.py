"""The sums of docs/scheduling.md, computed row by row and in fractions; :mod:`.promises` compares plans with them.

Departments and projects are *owners*. A department's key ends in ``/`` so that it never equals a project's name.
"""

from __future__ import annotations

import dataclasses as dc
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jupyter_gpu_quota.core.model import (
    Activity,
    Amounts,
    Change,
    Department,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Notebook,
    NotebookState,
    Policy,
    Project,
    Snapshot,
    Upkeep,
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
    """Section 6: the base amounts with the changes of every open window, in order."""
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
        closed = {node.id for node in snapshot.nodes if not node.is_open}
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
        self.evicted = self._evicted()
        self.late = self._late()
        for name in self.evicted | self.late:
            self.jobs[name] = dc.replace(self.jobs[name], state=JobState.PAUSING, target=JobTarget.PAUSED)
        self.sizes = self._sizes()
        self.kept = self._kept()
        self.booked, self.booked_by = Counter[str](), Counter[tuple[str, str]]()
        for notebook in snapshot.notebooks:
            if notebook.pool == pool and notebook.state in (NotebookState.BOOKED, NotebookState.LENT):
                for key in self.levels(notebook.project):
                    self.booked[key] += notebook.gpu_milli
                    self.booked_by[key, notebook.user] += notebook.gpu_milli
        self.capacity = sum(1000 - device.foreign_milli for device in self.devices.values())

    def size(self, job: Job) -> int:
        """Milli-GPU of a job's devices or reservation, else of all its ranks."""
        return self.sizes.get(job.id, whole(job))

    def counted(self, job: Job) -> int:
        """Milli-GPU that a job counts with; a job that restarts on a reservation counts with that."""
        return self._reserved()[job.id] if job.state is JobState.PAUSING else self.size(job)

    def _reserved(self) -> Counter[str]:
        promised = Counter[str]()
        for reservation in self.snapshot.reservations:
            promised[reservation.workload] = sum(part.gpu_milli for part in reservation.placements)
        return promised

    def _sizes(self) -> Counter[str]:
        sizes = self._reserved()
        for name in {one.workload for one in self.snapshot.allocations}:
            sizes[name] = sum(one.gpu_milli for one in self.snapshot.allocations if one.workload == name)
        return sizes

    def _evicted(self) -> set[str]:
        """Section 6: work that is queued again without a preemptor: preemptible work on an unhealthy device or a node
        that is drained, and all jobs on one whose drain is past its deadline."""
        unhealthy = {device.id for device in self.snapshot.devices if device.health is Health.UNHEALTHY}
        drained, overdue = self._on_drained(None), self._on_drained(self.snapshot.now)
        return {
            name
            for name, job in self.jobs.items()
            if self.stays(job)
            and (self._is_on(name, overdue) or (job.preemptible and self._is_on(name, unhealthy | drained)))
        }

    def _late(self) -> set[str]:
        """Section 6: past the deadline of a drain, the fewest jobs that bring every owner to its quota."""
        by = self.policy.drain_by_at
        if by is None or self.snapshot.now < by:
            return set()
        held = Counter[str]()
        for one in self.snapshot.allocations:
            held[one.workload] += one.gpu_milli
        non_preemptible = [job for job in self.jobs.values() if not job.preemptible and self.stays(job)]
        non_preemptible = sorted((job for job in non_preemptible if job.id not in self.evicted), key=self._least_missed)
        late = set[str]()
        for key in [*sorted({job.project for job in non_preemptible}), *self.departments]:
            mine = [job for job in non_preemptible if key in self.levels(job.project) and job.id not in late]
            over = sum(held[job.id] for job in mine) - self.amounts.get(key, NOTHING).training_milli
            chosen = [job for at, job in enumerate(mine) if sum(held[one.id] for one in mine[:at]) < over]
            for job in chosen[::-1]:
                if sum(held[one.id] for one in chosen) - held[job.id] >= over:
                    chosen.remove(job)
            late |= {job.id for job in chosen}
        return late

    def _least_missed(self, job: Job) -> tuple[int, int, int, int]:
        """The order of victims: lowest job priority, least work lost, newest."""
        started = self.snapshot.now if job.started_at is None else job.started_at
        return job.priority, self.snapshot.now - max(started, job.checkpoint_at or 0), -started, -job.submitted_at

    def _on_drained(self, past: int | None) -> set[str]:
        """The devices of nodes that are drained, or whose drain has a deadline before an instant."""
        nodes = {
            node.id
            for node in self.snapshot.nodes
            if node.upkeep is Upkeep.DRAINING
            if past is None or (node.drain_by_at is not None and node.drain_by_at <= past)
        }
        return {device.id for device in self.snapshot.devices if device.node in nodes}

    def _is_on(self, workload: str, devices: set[str]) -> bool:
        return any(one.workload == workload and one.device in devices for one in self.snapshot.allocations)

    def is_waking(self, notebook: Notebook) -> bool:
        """P13: whether a lent slice has to return: always, unless its notebook is known to be idle."""
        idle = notebook.activity is Activity.IDLE and notebook.seen_empty and self.policy.lending.enabled
        return notebook.state is NotebookState.LENT and not idle

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
            if self.stays(job) or job.id in reserved:
                for key in self.levels(job.project):
                    use[key] += self.counted(job)
        return use

    def reserved(self) -> set[str]:
        """Jobs that wait or restart, with a reservation on devices that are available, or that is kept (R25)."""
        return self.kept | {
            one.workload
            for one in self.snapshot.reservations
            if one.workload in self.jobs and self._comes_back(self.jobs[one.workload])
            if all(part.device in self.devices for part in one.placements)
        }

    def _kept(self) -> set[str]:
        """R25: claims of several devices, and restarts, some devices of which are quarantined, for a bounded time."""
        closed = {node.id for node in self.snapshot.nodes if not node.is_open}
        of_pool = [one for one in self.snapshot.devices if one.pool == self.pool and one.node not in closed]
        quarantined = {one.id for one in of_pool if one.health is Health.QUARANTINED}
        found = set[str]()
        for one in (one for one in self.snapshot.reservations if one.workload in self.jobs and one.starts_at is None):
            job, devices = self.jobs[one.workload], {part.device for part in one.placements}
            in_time = self.snapshot.now < one.reserved_at + 10_000 * (self.policy.preemption.grace_s + 10)
            is_kept = self._comes_back(job) and (job.state is JobState.PAUSING or len(devices) > 1)
            if is_kept and in_time and devices & quarantined and devices <= quarantined | self.devices.keys():
                found.add(job.id)
        return found

    def _comes_back(self, job: Job) -> bool:
        return job.state in WAITS or (job.state is JobState.PAUSING and job.target is JobTarget.PAUSED)

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
        """In the empty pool: it fits devices, limits, its user's ceiling and, if not preemptible, the quotas."""
        if job.project not in self.parent or not self.fits_empty(job):
            return False
        return all(
            least(job) <= min(self.ceiling(key), self.user_ceiling(key))
            and (job.preemptible or least(job) <= self.amounts[key].training_milli)
            for key in self.levels(job.project)
        )

    def wanted(self) -> Counter[str]:
        """Running and queued demand under the limit, of jobs that could start in the empty pool, by owner.

        Each user counts up to the ceiling for one user, non-preemptible work up to the quota, an elastic job with its
        minimum: it grows into surplus only. A running non-preemptible one does not shrink.
        """
        firm, rest, non_preemptible_use = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
        for job in self.jobs.values():
            waits = job.state in WAITS or (job.state is JobState.PAUSING and job.target is JobTarget.PAUSED)
            if self.stays(job) or (waits and self.could_start(job)):
                shrinks = job.preemptible or not self.stays(job)
                (rest if job.preemptible else firm)[job.project, job.user] += least(job) if shrinks else self.size(job)
            if not job.preemptible and job.state in HOLDS:
                non_preemptible_use[job.project] += self.size(job)
        wanted = Counter({name: self._wanted(name, firm, rest, non_preemptible_use[name]) for name in self.projects})
        for key in self.departments:
            by_user = Counter[str]()
            for (name, user), milli in (*firm.items(), *rest.items()):
                by_user[user] += milli if self.parent.get(name) == key else 0
            under_caps = sum(min(self.user_ceiling(key), milli) for milli in by_user.values())
            wanted[key] = min(self.ceiling(key), under_caps, sum(wanted[name] for name in self.children(key)))
            wanted[key] = max(wanted[key], self.non_preemptible()[key])
        return wanted

    def non_preemptible(self) -> Counter[str]:
        """What runs here and may not be preempted, by owner: it is wanted whatever was lowered since."""
        non_preemptible = Counter[str]()
        for one in self.snapshot.allocations:
            job = self.jobs.get(one.workload)
            if job is not None and not job.preemptible and self.stays(job) and one.device in self.devices:
                for key in self.levels(job.project):
                    non_preemptible[key] += one.gpu_milli
        return non_preemptible

    def _wanted(
        self, name: str, firm: Counter[tuple[str, str]], rest: Counter[tuple[str, str]], non_preemptible_use: int
    ) -> int:
        cap = min(self.user_ceiling(key) for key in self.levels(name))
        quota = max(self.amounts[name].training_milli, non_preemptible_use)
        users = {user for project, user in (*firm, *rest) if project == name}
        everything = sum(min(cap, rest[name, user] + firm[name, user]) for user in users)
        preemptible = sum(min(cap, rest[name, user]) for user in users)
        return max(self.non_preemptible()[name], min(self.ceiling(name), everything, preemptible + quota))

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
        lent = [n for n in self.snapshot.notebooks if n.pool == self.pool and n.state is NotebookState.LENT]
        back = sum(n.gpu_milli for n in lent if self.is_waking(n))
        out = sum(n.gpu_milli for n in lent if not self.is_waking(n))
        unbooked = out + sum(max(0, self.amounts[name].notebook_milli - self.booked[name]) for name in self.projects)
        booked = {n.id for n in self.snapshot.notebooks if n.state is NotebookState.BOOKED}
        used = sum(
            one.gpu_milli for one in self.snapshot.allocations if one.device in self.devices and one.workload in booked
        )
        amount = Fraction(max(0, self.capacity - used - booked_now - back))
        firm = max(Fraction(0), amount - (unbooked - booked_now))
        guarantee, fair = self._divide(self.departments or self.projects, amount, firm)
        for key in self.departments:
            want = sum(self.wanted()[name] for name in self.children(key))
            there = max(fair[key], min(guarantee[key], want))  # a user's ceiling there takes no project's quota
            inside = self._divide(self.children(key), there, min(there, guarantee[key]))
            guarantee |= {name: min(milli, guarantee[key]) for name, milli in inside[0].items()}
            fair |= inside[1]
        return guarantee, fair

    def _divide(
        self, owners: list[str], amount: Fraction, firm: Fraction
    ) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        amounts = {key: self.amounts[key] for key in owners}
        k = Fraction(self.policy.history.k_milli, 1000)
        return divide_slowly(
            amounts,
            self.priority,
            self.wanted(),
            amount,
            firm,
            past=self.past(),
            k=k,
            non_preemptible=self.non_preemptible(),
        )


def divide_slowly(
    amounts: dict[str, Amounts],
    priority: dict[str, int],
    wanted: Counter[str],
    amount: Fraction,
    firm: Fraction,
    *,
    past: Mapping[str, int] | None = None,
    k: Fraction = Fraction(0),
    non_preemptible: Mapping[str, int] | None = None,
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Section 2, by repeated small steps. ``non_preemptible``: what runs and may not be preempted.

    Section 6: what of that is above a quota drains: until it has ended it is the least that its owner gets of the rest.
    """
    quota = {name: Fraction(row.training_milli) for name, row in amounts.items()}
    kept = {name: Fraction((non_preemptible or {}).get(name, 0)) for name in amounts}
    drains = {name: max(Fraction(0), kept[name] - quota[name]) for name in amounts}
    firm = max(Fraction(0), firm - sum(drains.values()))
    first = {name: min(quota[name], Fraction(wanted[name])) for name in amounts}
    guarantee = dict(quota)
    if sum(first.values()) > firm:
        floor = {name: min(first[name], kept[name]) for name in amounts}
        got = _in_proportion(first, floor, quota, priority, firm)
        first, guarantee = got, got
    weights = {name: row.weight for name, row in amounts.items()}
    more = {name: wanted[name] - first[name] for name in amounts}
    rest = amount - sum(first.values()) - sum(drains.values())
    weighted = {name: more[name] for name in amounts if weights[name]}
    extra = _levels(weighted, weights, priority, rest, drains, past or {}, k)
    rest -= sum(extra[name] - drains[name] for name in extra)
    others = {name: more[name] for name in amounts if not weights[name]}
    extra |= _levels(others, dict.fromkeys(amounts, 1), dict.fromkeys(amounts, 0), rest, drains)
    return guarantee, {name: first[name] + extra[name] for name in amounts}


def _in_proportion(
    ceilings: Mapping[str, Fraction],
    floors: Mapping[str, Fraction],
    quota: Mapping[str, Fraction],
    priority: dict[str, int],
    amount: Fraction,
) -> dict[str, Fraction]:
    """High to low priority, so much of each quota as is there, between what each has for certain and what it wants."""
    given = dict(floors)
    for level in sorted({priority[name] for name in ceilings}, reverse=True):
        names = [name for name in ceilings if priority[name] == level and quota[name]]
        rest = max(Fraction(0), amount - sum(given[name] for name in given if name not in names))
        turns = sorted({bound[name] / quota[name] for bound in (ceilings, floors) for name in names})

        def at(part: Fraction, names: list[str] = names) -> dict[str, Fraction]:
            return {name: max(floors[name], min(ceilings[name], part * quota[name])) for name in names}

        low = max((turn for turn in turns if sum(at(turn).values()) <= rest), default=Fraction(0))
        rising = [name for name in names if floors[name] <= low * quota[name] < ceilings[name]]
        more = max(Fraction(0), rest - sum(at(low).values()))
        given |= at(low + more / sum(quota[name] for name in rising) if rising else low)
    return given


def _levels(
    ceilings: dict[str, Fraction],
    weights: dict[str, int],
    priority: dict[str, int],
    amount: Fraction,
    floors: Mapping[str, Fraction],
    past: Mapping[str, int] | None = None,
    k: Fraction = Fraction(0),
) -> dict[str, Fraction]:
    """Divide the amount beside the floors. All rise by their parts; what somebody gets below its floor is its own."""
    given = dict.fromkeys(ceilings, Fraction(0))
    for level in sorted({priority[name] for name in ceilings}, reverse=True):
        names = [name for name in ceilings if priority[name] == level and weights[name]]
        while amount > 0 and (hungry := [name for name in names if given[name] < ceilings[name]]):
            parts = _parts({name: weights[name] for name in hungry}, past or {}, k)
            below = {name for name in hungry if given[name] < floors[name]}
            steps = [
                ((floors if name in below else ceilings)[name] - given[name]) / part
                for name, part in parts.items()
                if part
            ]
            cost = sum(part for name, part in parts.items() if name not in below)
            step = min([amount / cost, *steps] if cost else steps)
            for name, part in parts.items():
                given[name] += step * part
            amount -= step * cost
    return {name: max(floors[name], milli) for name, milli in given.items()}


def _parts(weights: dict[str, int], past: Mapping[str, int], k: Fraction) -> dict[str, Fraction]:
    """Section 2, step 3: max(0, n + k(n - u)), both as parts of what the still unsatisfied have; all zero: plain."""
    total, used = sum(weights.values()), sum(past.get(name, 0) for name in weights)
    plain = {name: Fraction(weight, total) for name, weight in weights.items()}
    if not k or not used:
        return plain
    parts = {name: max(Fraction(0), n + k * (n - Fraction(past.get(name, 0), used))) for name, n in plain.items()}
    return parts if any(parts.values()) else plain
