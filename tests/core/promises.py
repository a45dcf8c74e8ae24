"""Checkers for the promises of docs/scheduling.md, written from its sentences and not from the code.

They are slow and plain on purpose: fractions instead of integers, every subset instead of an order.
"""

from __future__ import annotations

import dataclasses as dc
import itertools
import random
from collections import Counter, defaultdict
from fractions import Fraction

from jupyter_gpu_quota.core.canonical import canonical
from jupyter_gpu_quota.core.model import (
    Amounts,
    Health,
    Job,
    JobState,
    JobTarget,
    NotebookState,
    Placement,
    Policy,
    Snapshot,
)
from jupyter_gpu_quota.core.plan import Pause, Plan, ReasonCode, Refuse, Reserve, Resume, Start, Stop, Unreserve
from jupyter_gpu_quota.core.schedule import decide, decide_and_explain

RUNS = (JobState.STARTING, JobState.RUNNING)
WAITS = (JobState.QUEUED, JobState.PAUSED)


def size(job: Job) -> int:
    return job.gpu_milli * job.ranks


class Books:
    """The sums of one pool that the contract speaks of, counted row by row."""

    def __init__(self, snapshot: Snapshot, policy: Policy, pool: str) -> None:
        self.snapshot, self.policy, self.pool = snapshot, policy, pool
        closed = {node.id for node in snapshot.nodes if not node.schedulable}
        self.devices = {
            device.id: device
            for device in snapshot.devices
            if device.pool == pool and device.health is Health.HEALTHY and device.node not in closed
        }
        self.amounts = {
            project.name: project.amounts.get(pool, Amounts(limit_milli=0, weight=0)) for project in policy.projects
        }
        self.priority = {project.name: project.priority for project in policy.projects}
        self.jobs = {job.id: job for job in snapshot.jobs if job.pool == pool}
        self.booked = Counter[str]()
        for notebook in snapshot.notebooks:
            if notebook.pool == pool and notebook.state is NotebookState.BOOKED:
                self.booked[notebook.project] += notebook.gpu_milli
        self.capacity = sum(1000 - device.foreign_milli for device in self.devices.values())

    def leaves(self, job: Job) -> bool:
        ran = 0 if job.started_at is None else self.snapshot.now - job.started_at
        stopped = job.target in (JobTarget.HELD, JobTarget.CANCELLED) or ran >= job.time_limit_s * 1000
        return job.state in RUNS and stopped

    def stays(self, job: Job) -> bool:
        return job.state in RUNS and not self.leaves(job)

    def use(self) -> Counter[str]:
        """Running, and reserved for on devices that can still be given out."""
        use = Counter[str]()
        reserved = self.reserved()
        for job in self.jobs.values():
            if self.stays(job) or (job.state in WAITS and job.id in reserved):
                use[job.project] += size(job)
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
            if job.gpu_model in (None, device.model):
                rooms[device.node].append(1000 - device.foreign_milli)
        if job.gpu_milli > 1000:
            each = job.gpu_milli // 1000
            return sum(sum(room == 1000 for room in row) // each for row in rooms.values()) >= job.ranks
        return sum(room // job.gpu_milli for row in rooms.values() for room in row) >= job.ranks

    def ceiling(self, project: str) -> int:
        amounts = self.amounts[project]
        if amounts.limit_milli is None:
            return 1 << 60
        return max(0, amounts.limit_milli - max(amounts.notebook_milli, self.booked[project]))

    def wanted(self) -> Counter[str]:
        """Running and queued demand under the limit, of jobs that could start in the empty pool."""
        firm, rest = Counter[str](), Counter[str]()
        for job in self.jobs.values():
            if job.project not in self.amounts:
                continue
            waits = job.state in WAITS or (job.state is JobState.PAUSING and job.target is JobTarget.PAUSED)
            quota = self.amounts[job.project].training_milli
            could = self.fits_empty(job) and size(job) <= self.ceiling(job.project)
            could = could and (job.preemptible or size(job) <= quota)
            if self.stays(job) or (waits and could):
                (rest if job.preemptible else firm)[job.project] += size(job)
        fixed_use = Counter[str]()
        for job in self.jobs.values():
            if not job.preemptible and job.state in (*RUNS, JobState.PAUSING):
                fixed_use[job.project] += size(job)
        return Counter(
            {
                name: min(
                    self.ceiling(name),
                    rest[name] + min(firm[name], max(self.amounts[name].training_milli, fixed_use[name])),
                )
                for name in self.amounts
            }
        )

    def shares(self, booked_now: int) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        """Guarantees and fair shares, in exact fractions."""
        unbooked = sum(max(0, row.notebook_milli - self.booked[name]) for name, row in self.amounts.items())
        used = sum(
            one.gpu_milli
            for one in self.snapshot.allocations
            if one.device in self.devices
            and any(n.id == one.workload and n.state is NotebookState.BOOKED for n in self.snapshot.notebooks)
        )
        amount = Fraction(max(0, self.capacity - used - booked_now))
        firm = max(Fraction(0), amount - (unbooked - booked_now))
        return divide_slowly(self.amounts, self.priority, self.wanted(), amount, firm)


def divide_slowly(
    amounts: dict[str, Amounts], priority: dict[str, int], wanted: Counter[str], amount: Fraction, firm: Fraction
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
    extra = _levels({n: open_names[n] for n in amounts if weights[n]}, weights, priority, rest)
    rest -= sum(extra.values())
    zero = dict.fromkeys(amounts, 0)
    extra |= _levels({n: open_names[n] for n in amounts if not weights[n]}, dict.fromkeys(amounts, 1), zero, rest)
    return guarantee, {name: first[name] + extra[name] for name in amounts}


def _levels(
    ceilings: dict[str, Fraction], weights: dict[str, int], priority: dict[str, int], amount: Fraction
) -> dict[str, Fraction]:
    given = dict.fromkeys(ceilings, Fraction(0))
    for level in sorted({priority[name] for name in ceilings}, reverse=True):
        names = [name for name in ceilings if priority[name] == level and weights[name]]
        while amount > 0 and (hungry := [name for name in names if given[name] < ceilings[name]]):
            total = sum(weights[name] for name in hungry)
            step = min(amount / total, *((ceilings[name] - given[name]) / weights[name] for name in hungry))
            for name in hungry:
                given[name] += step * weights[name]
            amount -= step * total
    return given


# -- one instant ---------------------------------------------------------------------------------------------------


def check_instant(snapshot: Snapshot) -> None:
    """P1: no device over 1000 milli or its memory; P12: what runs owns devices, what waits owns none."""
    milli, memory = Counter[str](), Counter[str]()
    for one in snapshot.allocations:
        milli[one.device] += one.gpu_milli
        memory[one.device] += one.memory_mib
    for device in snapshot.devices:
        if device.health is Health.HEALTHY:
            assert milli[device.id] + device.foreign_milli <= 1000, f"P1: {device.id} carries {milli[device.id]}"
        assert memory[device.id] <= device.memory_mib, f"P1: {device.id} has {memory[device.id]} MiB promised"
    owners = Counter[str]()
    for one in snapshot.allocations:
        owners[one.workload] += one.gpu_milli
    for job in snapshot.jobs:
        held = size(job) if job.state in (*RUNS, JobState.PAUSING) else 0
        assert owners[job.id] == held, f"P12: {job.id} is {job.state} and owns {owners[job.id]}"


def check_order_is_irrelevant(snapshot: Snapshot, policy: Policy, plan: Plan, seed: int) -> None:
    """P14: shuffled rows give the same bytes."""
    rng = random.Random(seed)
    rows = {
        name: tuple(rng.sample(getattr(snapshot, name), len(getattr(snapshot, name))))
        for name in ("nodes", "devices", "jobs", "notebooks", "allocations", "reservations")
    }
    projects = tuple(rng.sample(policy.projects, len(policy.projects)))
    again = decide(dc.replace(snapshot, **rows), dc.replace(policy, projects=projects))
    assert canonical(again) == canonical(plan), "P14: the order of the input changed the plan"


def check_plan(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """P2, P3, P5, P6, P11 and P12 on one plan, in the state before it."""
    for pool in policy.pools:
        books = Books(snapshot, policy, pool)
        check_notebooks(books, plan)
        check_fixed_use(books, plan)
        check_limits(books, plan)
        check_evictions(books, plan)
        check_minimal(books, plan)
        check_work_conserving(books, plan)
        check_reasons(books, policy)


def check_notebooks(books: Books, plan: Plan) -> None:
    """P2: exactly at the quota is admitted, one milli more is not."""
    refused = {action.workload for action in plan.actions if isinstance(action, Refuse)}
    used = Counter(books.booked)
    asked = [n for n in books.snapshot.notebooks if n.pool == books.pool and n.state is NotebookState.REQUESTED]
    for notebook in sorted(asked, key=lambda n: (n.requested_at, n.id)):
        amounts = books.amounts.get(notebook.project)
        fits = amounts is not None and used[notebook.project] + notebook.gpu_milli <= amounts.notebook_milli
        assert fits == (notebook.id not in refused), f"P2: {notebook.id} of {notebook.gpu_milli}, used {used}"
        if fits:
            used[notebook.project] += notebook.gpu_milli


def started(plan: Plan) -> dict[str, Start | Resume]:
    return {action.workload: action for action in plan.actions if isinstance(action, (Start, Resume))}


def check_fixed_use(books: Books, plan: Plan) -> None:
    """P3: non-preemptible use never grows above the quota."""
    before, after = Counter[str](), Counter[str]()
    for job in books.jobs.values():
        if not job.preemptible:
            runs = job.state in (*RUNS, JobState.PAUSING)
            before[job.project] += size(job) if runs else 0
            after[job.project] += size(job) if runs or job.id in started(plan) else 0
    for name, used in after.items():
        quota = books.amounts[name].training_milli if name in books.amounts else 0
        assert used <= max(before[name], quota), f"P3: {name} would use {used} of {quota} non-preemptibly"


def check_limits(books: Books, plan: Plan) -> None:
    """The limit is a ceiling on everything, work that leaves included."""
    before, after = Counter[str](), Counter[str]()
    for job in books.jobs.values():
        runs = job.state in (*RUNS, JobState.PAUSING)
        before[job.project] += size(job) if runs else 0
        after[job.project] += size(job) if runs or job.id in started(plan) else 0
    for name, used in after.items():
        if used > before[name]:
            assert used <= books.ceiling(name), f"limit: {name} would use {used} of {books.ceiling(name)}"


def check_evictions(books: Books, plan: Plan) -> None:
    """P5: each pause is legal in the state before it, those already picked counted; protection is kept."""
    asked = {n.id: n for n in books.snapshot.notebooks if n.pool == books.pool}
    refused = {action.workload for action in plan.actions if isinstance(action, Refuse)}
    booked_now = sum(n.gpu_milli for n in asked.values() if n.state is NotebookState.REQUESTED and n.id not in refused)
    guarantee, fair = books.shares(booked_now)
    use = books.use()
    for action in plan.actions:
        match action:
            case Unreserve() if action.workload in books.jobs and action.workload in books.reserved():
                job = books.jobs[action.workload]
                use[job.project] -= size(job)
            case Start() | Resume() if action.workload in books.jobs:
                job = books.jobs[action.workload]
                if action.workload not in books.reserved():
                    use[job.project] += size(job)
            case Reserve() if action.workload in books.jobs:
                job = books.jobs[action.workload]
                use[job.project] += size(job)
            case Pause() if action.workload in books.jobs:
                _check_pause(books, action, use, guarantee, fair, plan)
                job = books.jobs[action.workload]
                use[job.project] -= size(job)
            case _:
                pass


def _check_pause(
    books: Books, pause: Pause, use: Counter[str], guarantee: dict[str, Fraction], fair: dict[str, Fraction], plan: Plan
) -> None:
    victim = books.jobs[pause.workload]
    said = f"P5: {pause.claimer} paused {pause.workload} ({pause.reason.code})"
    assert victim.preemptible and books.stays(victim), f"{said}, which may not be paused"
    assert victim.id not in started(plan), f"{said}, which the same plan starts"
    owner = victim.project
    above_quota = victim.borrower or owner not in guarantee or use[owner] > guarantee[owner]
    if pause.claimer not in books.jobs:
        assert above_quota, f"{said}: {owner} uses {use[owner]} of {guarantee[owner]}"
        return
    claimer = books.jobs[pause.claimer]
    name = claimer.project
    # Within the claim, its earlier victims of the same project are already counted out.
    within_guarantee = use[name] + size(claimer) <= guarantee[name]
    protected = _is_protected(books, victim)
    if name == owner:
        assert victim.priority < claimer.priority, f"{said}: job priority {victim.priority} >= {claimer.priority}"
        assert not protected or pause.reason.code is ReasonCode.PREEMPTED_IN_PROJECT
        return
    if within_guarantee:
        assert above_quota, f"{said}: {owner} uses {use[owner]} of {guarantee[owner]}"
        return
    assert not protected, f"{said}, which is protected, and the claim is not within the guarantee"
    rounded = 1  # shares are rounded to milli once
    assert use[name] + size(claimer) <= fair[name] + rounded, f"{said}: {name} would be above its fair share"
    assert use[owner] > fair.get(owner, 0) - rounded, f"{said}: {owner} is not above its fair share"


def _is_protected(books: Books, job: Job) -> bool:
    rules = books.policy.preemption
    young = books.snapshot.now - (job.started_at or 0) < rules.min_runtime_s * 1000
    recent = sum(at > books.snapshot.now - rules.per_s * 1000 for at in job.paused_at)
    return young or recent >= rules.max_pauses


def after_plan(books: Books, plan: Plan) -> tuple[Counter[str], Counter[str]]:
    """Per device: what stays (or starts) there, and what leaves, once the plan is applied."""
    stays, leaves = Counter[str](), Counter[str]()
    asked = {action.workload for action in plan.actions if isinstance(action, (Pause, Stop))}
    booked = {n.id for n in books.snapshot.notebooks if n.state is NotebookState.BOOKED}
    for one in books.snapshot.allocations:
        job = books.jobs.get(one.workload)
        firm = one.workload in booked or (job is not None and books.stays(job) and job.id not in asked)
        (stays if firm else leaves)[one.device] += one.gpu_milli
    for action in started(plan).values():
        for placement in action.placements:
            stays[placement.device] += placement.gpu_milli
    return stays, leaves


def reserved_after(books: Books, plan: Plan) -> dict[str, tuple[Placement, ...]]:
    kept = {one.workload: one.placements for one in books.snapshot.reservations}
    for action in plan.actions:
        if isinstance(action, Unreserve):
            kept.pop(action.workload, None)
        elif isinstance(action, Reserve):
            kept[action.workload] = action.placements
        elif isinstance(action, (Start, Resume)):
            kept.pop(action.workload, None)
    return kept


def check_minimal(books: Books, plan: Plan) -> None:
    """P6: with any one victim put back, the claims of the plan do not all find room (looked for exhaustively)."""
    pauses = [a for a in plan.actions if isinstance(a, Pause) and a.workload in books.jobs]
    claims = [a.workload for a in plan.actions if isinstance(a, Reserve) and a.workload in books.jobs]
    if not pauses or len(claims) > 4 or any(row.notebook_milli for row in books.amounts.values()):
        return
    if any(row.limit_milli is not None for row in books.amounts.values()):
        return
    stays, _ = after_plan(books, plan)
    for name, where in reserved_after(books, plan).items():
        if name not in claims:
            for placement in where:
                stays[placement.device] += placement.gpu_milli
    claimers = {books.jobs[name].project for name in claims}
    for pause in pauses:
        if books.jobs[pause.workload].project in claimers:
            continue  # with it back, that project's own claim would have less right
        back = Counter(stays)
        for one in books.snapshot.allocations:
            if one.workload == pause.workload:
                back[one.device] += one.gpu_milli
        room = {name: 1000 - d.foreign_milli - back[name] for name, d in books.devices.items()}
        assert not _all_fit(books, room, [books.jobs[name] for name in claims]), f"P6: {pause.workload} need not leave"


def _all_fit(books: Books, room: dict[str, int], jobs: list[Job]) -> bool:
    ranks = [job for job in jobs for _ in range(job.ranks)]
    return _fit_ranks(books, room, ranks)


def _fit_ranks(books: Books, room: dict[str, int], ranks: list[Job]) -> bool:
    if not ranks:
        return True
    job, rest = ranks[0], ranks[1:]
    for chosen in _spots(books, room, job):
        left = dict(room)
        for name in chosen:
            left[name] -= min(job.gpu_milli, 1000)
        if _fit_ranks(books, left, rest):
            return True
    return False


def _spots(books: Books, room: dict[str, int], job: Job) -> list[tuple[str, ...]]:
    fitting = [
        name
        for name in room
        if room[name] >= min(job.gpu_milli, 1000) and job.gpu_model in (None, books.devices[name].model)
    ]
    if job.gpu_milli <= 1000:
        return [(name,) for name in fitting]
    by_node: dict[str, list[str]] = defaultdict(list)
    for name in fitting:
        by_node[books.devices[name].node].append(name)
    each = job.gpu_milli // 1000
    return [chosen for names in by_node.values() for chosen in itertools.combinations(names, each)]


def check_work_conserving(books: Books, plan: Plan) -> None:
    """P11: no free GPU that an eligible queued job fits on, unless reserved or kept from a job out of pauses."""
    stays, leaves = after_plan(books, plan)
    kept = Counter[str]()
    for where in reserved_after(books, plan).values():
        for placement in where:
            kept[placement.device] += placement.gpu_milli
    room = {
        name: max(0, 1000 - device.foreign_milli - stays[name] - max(leaves[name], kept[name]))
        for name, device in books.devices.items()
    }
    use = Counter[str]()
    for job in books.jobs.values():
        if job.state in (*RUNS, JobState.PAUSING) or job.id in started(plan) or job.id in reserved_after(books, plan):
            use[job.project] += size(job)
    for job in books.jobs.values():
        waits = job.state in WAITS and job.id not in started(plan) and job.id not in reserved_after(books, plan)
        if not waits or job.project not in books.amounts or not job.preemptible or _out_of_pauses(books, job):
            continue
        if job.id in {one.workload for one in books.snapshot.reservations}:
            continue  # it just lost its place and is served again next tick
        if use[job.project] + size(job) <= books.ceiling(job.project):
            assert not _all_fit(books, room, [job]), f"P11: {job.id} fits on {room} and waits"


def _out_of_pauses(books: Books, job: Job) -> bool:
    rules = books.policy.preemption
    return sum(at > books.snapshot.now - rules.per_s * 1000 for at in job.paused_at) >= rules.max_pauses


def check_reasons(books: Books, policy: Policy) -> None:
    """P12: whatever waits has a reason."""
    decision = decide_and_explain(books.snapshot, policy)
    starts = started(decision.plan)
    for job in books.jobs.values():
        if job.state in WAITS and job.target is JobTarget.RUNNING and job.id not in starts:
            assert job.id in decision.waits, f"P12: {job.id} waits without a reason"
