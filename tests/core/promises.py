"""Checkers for the promises of docs/scheduling.md, written from its sentences and not from the code.

They are slow and simple on purpose: fractions instead of integers, every subset instead of an order.
:mod:`.evictions` checks victims and preemptors.
"""

from __future__ import annotations

import dataclasses as dc
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_gpu_quota.core.canonical import canonical
from jupyter_gpu_quota.core.model import (
    Activity,
    Health,
    Job,
    JobState,
    JobTarget,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Snapshot,
)
from jupyter_gpu_quota.core.plan import Lend, Pause, Plan, Refuse, Release, Reserve, Resume, Start, Stop
from jupyter_gpu_quota.core.reasons import Reason
from jupyter_gpu_quota.core.scheduling.decide import Decision, decide
from jupyter_gpu_quota.core.validate import violations
from tests.core.accounting import HOLDS, RUNS, WAITS, Books, divide_slowly, least, takes_model, whole
from tests.core.cluster import is_backfill
from tests.core.evictions import all_fit, check_evictions, check_minimal, reserved_after, started, stays_and_leaves

__all__ = ["Books", "check_guarantees", "check_instant", "check_order_is_irrelevant", "check_plan", "divide_slowly"]


def check_instant(snapshot: Snapshot) -> None:
    """P1: no device over 1000 milli or its memory; P12: what runs owns devices, what waits owns none."""
    assert not violations(snapshot), violations(snapshot)
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
        held = range(least(job), whole(job) + 1, job.gpu_milli) if job.state in HOLDS else (0,)
        assert owners[job.id] in held, f"P12: {job.id} is {job.state} and owns {owners[job.id]}"


def check_order_is_irrelevant(snapshot: Snapshot, policy: Policy, plan: Plan, seed: int) -> None:
    """P14: shuffled rows give the same bytes."""
    rng = random.Random(seed)
    rows: dict[str, Any] = {
        name: tuple(rng.sample(getattr(snapshot, name), len(getattr(snapshot, name))))
        for name in ("nodes", "devices", "jobs", "notebooks", "allocations", "reservations", "usage")
    }
    owners: dict[str, Any] = {name: tuple(rng.sample(rows, len(rows))) for name, rows in _owners(policy).items()}
    again = decide(dc.replace(snapshot, **rows), dc.replace(policy, **owners))
    assert canonical(again) == canonical(plan), "P14: the order of the input changed the plan"


def _owners(policy: Policy) -> dict[str, tuple[Any, ...]]:
    return {"projects": policy.projects, "departments": policy.departments}


def check_plan(snapshot: Snapshot, policy: Policy, decision: Decision) -> None:
    """P2, P3, P5, P6, P11 and P12 on one decision, in the state before it.

    Records of backfill reservations are left out: no device changes hands by them. Their borrowers that leave now have
    left, for what else is decided.
    """
    backfills = [one for one in snapshot.reservations if one.starts_at is not None]
    recorded = {one.workload for one in backfills}
    planned = recorded | {one.workload for one in decision.backfill}
    claims = tuple(one for one in snapshot.reservations if one.starts_at is None)
    actions = tuple(one for one in decision.plan.actions if not is_backfill(one, recorded, planned))
    gone = {one.workload for one in decision.plan.actions if isinstance(one, Pause)}
    gone -= {one.workload for one in actions if isinstance(one, Pause)}
    jobs = tuple(dc.replace(job, state=JobState.PAUSING) if job.id in gone else job for job in snapshot.jobs)
    snapshot = dc.replace(snapshot, reservations=claims, jobs=jobs)
    plan = dc.replace(decision.plan, actions=actions)
    decision = dc.replace(decision, plan=plan)
    for pool in policy.pools:
        books = Books(snapshot, policy, pool)
        check_notebooks(books, plan)
        check_lending(books, plan)
        check_stops(books, plan)
        check_shapes(books, plan)
        check_promised_room(books, plan)
        check_fixed_use(books, plan)
        check_limits(books, plan)
        check_users(books, plan)
        check_evictions(books, plan)
        check_minimal(books, plan, [place for place in decision.backfill if place.pool == pool], backfills)
        check_work_conserving(books, decision)
        check_reasons(books, plan, decision.waits)


def check_notebooks(books: Books, plan: Plan) -> None:
    """P2: exactly at the quota, or the ceiling for one user, is admitted, one milli more is not; at every level."""
    refused = {action.workload for action in plan.actions if isinstance(action, Refuse)}
    used, by_user = Counter(books.booked), Counter(books.booked_by)
    asked = [n for n in books.snapshot.notebooks if n.pool == books.pool and n.state is NotebookState.REQUESTED]
    for notebook in sorted(asked, key=lambda n: (n.requested_at, n.id)):
        fits = notebook.project in books.amounts
        for key in books.levels(notebook.project) if fits else ():
            amounts, user = books.amounts[key], (key, notebook.user)
            fits = fits and used[key] + notebook.gpu_milli <= amounts.notebook_milli
            if amounts.user_notebook_milli is not None:
                fits = fits and by_user[user] + notebook.gpu_milli <= amounts.user_notebook_milli
        assert fits == (notebook.id not in refused), f"P2: {notebook.id} of {notebook.gpu_milli}, used {used}"
        for key in books.levels(notebook.project) if fits else ():
            used[key] += notebook.gpu_milli
            by_user[key, notebook.user] += notebook.gpu_milli


def check_lending(books: Books, plan: Plan) -> None:
    """P13: a notebook that is not known to be idle lends nothing and gets its slice back, from borrowers; section 5."""
    mine = {one.id: one for one in books.snapshot.notebooks if one.pool == books.pool}
    reserved = {one.workload: one.placements for one in books.snapshot.reservations} | {
        action.workload: action.placements
        for action in plan.actions
        if isinstance(action, (Start, Reserve)) and action.workload in mine
    }
    for name, one in mine.items():
        if books.is_waking(one) and _has_room_at_home(books, one):
            where = [part.device for part in reserved.get(name, ())]
            assert where == [one.device], f"P13: {name} is {one.activity} and has {where} in place of {one.device}"
    for action in plan.actions:
        notebook = mine.get(action.workload)
        if isinstance(action, Pause) and action.preemptor in mine:
            returns = mine[action.preemptor].state is NotebookState.LENT and _has_room_at_home(
                books, mine[action.preemptor]
            )
            assert books.jobs[action.workload].borrower or not returns, (
                f"section 5: {action.preemptor} wakes and takes {action.workload}, which borrows nothing"
            )
        if isinstance(action, (Lend, Release)) and notebook is not None:
            _check_idle(books, notebook, released=isinstance(action, Release))


def _has_room_at_home(books: Books, notebook: Notebook) -> bool:
    """Whether a lent slice would fit on its device without borrowers; foreign work stays."""
    device = books.devices.get(notebook.device or "")
    if device is None:
        return False
    firm = [one for one in books.snapshot.allocations if one.device == device.id and not _borrows(books, one.workload)]
    return 1000 - device.foreign_milli - sum(one.gpu_milli for one in firm) >= notebook.gpu_milli


def _borrows(books: Books, workload: str) -> bool:
    return workload in books.jobs and books.jobs[workload].borrower


def _check_idle(books: Books, notebook: Notebook, *, released: bool) -> None:
    idle = notebook.activity is Activity.IDLE and notebook.seen_empty and books.policy.lending.enabled
    assert idle, f"P13: {notebook} is not idle"
    assert notebook.state is (NotebookState.LENT if released else NotebookState.BOOKED), notebook
    lent_ms = books.snapshot.now - (notebook.lent_at or books.snapshot.now)
    assert not released or lent_ms >= books.policy.lending.release_after_s * 1000, f"section 5: {notebook} too soon"


def check_stops(books: Books, plan: Plan) -> None:
    """Stopped jobs are those that a person held or cancelled, that are out of time or are evicted; all of them."""
    stopped = {action.workload for action in plan.actions if isinstance(action, Stop)}
    must = books.evicted | books.late
    assert must <= stopped, f"section 6: {must - stopped} stay and have to leave"
    for action in plan.actions:
        if isinstance(action, Stop) and action.workload in books.jobs:
            asked = action.workload in must and action.target is JobTarget.PAUSED
            assert asked or books.leaves(books.jobs[action.workload]), f"P5: no preemptor for {action}"


def check_shapes(books: Books, plan: Plan) -> None:
    """Section 7: all ranks or the minimum, each on one node, whole GPUs on whole devices, the model as asked."""
    for action in plan.actions:
        job = books.jobs.get(action.workload)
        if job is None or not isinstance(action, (Start, Resume, Reserve)):
            continue
        ranks: dict[int, list[Placement]] = defaultdict(list)
        for one in action.placements:
            ranks[one.rank].append(one)
        assert (job.min_ranks or job.ranks) <= len(ranks) <= job.ranks, f"section 1: {action} has {len(ranks)} ranks"
        for parts in ranks.values():
            _check_rank(books, job, parts, f"section 7: {action}")


def _check_rank(books: Books, job: Job, parts: list[Placement], said: str) -> None:
    devices = {part.device for part in parts}
    assert devices <= set(books.devices), f"{said} goes where nothing may be given out"
    assert len({books.devices[name].node for name in devices}) == 1, f"{said} has a rank on two nodes"
    assert len(devices) == len(parts) == max(1, job.gpu_milli // 1000), said
    assert all(part.gpu_milli == min(job.gpu_milli, 1000) for part in parts), said
    assert all(takes_model(job, books.devices[name]) for name in devices), f"{said} is on another model"


def check_promised_room(books: Books, plan: Plan) -> None:
    """P1 and P7: after all drains every reservation has room."""
    room, _ = stays_and_leaves(books, plan)
    for where in reserved_after(books, plan).values():
        for part in where:
            room[part.device] += part.gpu_milli
    for name, device in books.devices.items():
        assert room[name] + device.foreign_milli <= 1000, f"P7: {room[name]} is promised on {name}"


def given(books: Books, plan: Plan) -> dict[str, int]:
    """Milli-GPU that start, or are reserved, once a plan is applied."""
    kept = reserved_after(books, plan) | {name: action.placements for name, action in started(plan).items()}
    return {name: sum(part.gpu_milli for part in where) for name, where in kept.items() if name in books.jobs}


def after_plan(books: Books, plan: Plan) -> dict[str, int]:
    """The same with running and stopping work; work that restarts counts once, with the larger size."""
    here = {job.id: books.size(job) for job in books.jobs.values() if job.state in HOLDS}
    return here | {name: max(milli, here.get(name, 0)) for name, milli in given(books, plan).items()}


def sums(books: Books, sizes: Mapping[str, int], which: Callable[[Job], bool] = lambda job: True) -> Counter[str]:
    """What these jobs come to, by owner."""
    found = Counter[str]()
    for name, milli in sizes.items():
        for key in books.levels(books.jobs[name].project) if which(books.jobs[name]) else ():
            found[key] += milli
    return found


def holding(books: Books, plan: Plan | None = None) -> dict[str, int]:
    """The work on the devices now, or, with a plan, once it is applied; without reservations."""
    here = {job.id: books.size(job) for job in books.jobs.values() if job.state in HOLDS}
    starts = started(plan) if plan else {}
    return here | {name: after_plan(books, plan)[name] for name in starts if plan and name in books.jobs}


def check_fixed_use(books: Books, plan: Plan) -> None:
    """P3: non-preemptible use never grows above the quota, at any level."""
    before = sums(books, holding(books), lambda job: not job.preemptible)
    for key, used in sums(books, holding(books, plan), lambda job: not job.preemptible).items():
        quota = books.amounts[key].training_milli if key in books.amounts else 0
        assert used <= max(before[key], quota), f"P3: {key} would use {used} of {quota} non-preemptibly"


def check_limits(books: Books, plan: Plan) -> None:
    """The limit is a ceiling on everything, work that leaves included, at both levels."""
    before = sums(books, holding(books))
    for key, used in sums(books, holding(books, plan)).items():
        if used > before[key]:
            assert used <= books.ceiling(key), f"limit: {key} would use {used} of {books.ceiling(key)}"
    before = sums(books, remaining(books, None))
    for key, used in sums(books, remaining(books, plan)).items():
        if used > before[key]:
            assert used <= books.ceiling(key), f"limit: {key} is promised {used} of {books.ceiling(key)}"


def remaining(books: Books, plan: Plan | None) -> dict[str, int]:
    """The work that stays, starts, or has a reservation, now or once a plan is applied; without stopping work."""
    if plan is None:
        return {
            job.id: books.size(job) for job in books.jobs.values() if books.stays(job) or job.id in books.reserved()
        }
    asked = {action.workload for action in plan.actions if isinstance(action, (Pause, Stop))}
    stays = {job.id: books.size(job) for job in books.jobs.values() if books.stays(job) and job.id not in asked}
    return stays | given(books, plan)


def check_users(books: Books, plan: Plan) -> None:
    """The ceiling for each user: work that stays, starts and has a reservation, at both levels."""
    had, have = remaining(books, None), remaining(books, plan)
    for user in {job.user for job in books.jobs.values()}:
        before, after = (sums(books, sizes, lambda job: job.user == user) for sizes in (had, have))  # noqa: B023
        for key, used in after.items():
            if key in books.amounts and used > before[key]:
                assert used <= books.user_ceiling(key), f"per user: {user} of {key} would use {used}"


def check_work_conserving(books: Books, decision: Decision) -> None:
    """P11: no free GPU that an eligible queued job fits on, unless reserved or kept from a job out of pauses.

    A place is kept for the first job that cannot start from who would still run there at its planned start.
    """
    plan = decision.plan
    stays, leaves = stays_and_leaves(books, plan)
    kept = Counter[str]()
    for where in reserved_after(books, plan).values():
        for placement in where:
            kept[placement.device] += placement.gpu_milli
    room = {
        name: max(0, 1000 - device.foreign_milli - stays[name] - max(leaves[name], kept[name]))
        for name, device in books.devices.items()
    }
    had = {one.workload for one in books.snapshot.reservations}
    for job in books.jobs.values():
        waits = job.state in WAITS and job.target is JobTarget.RUNNING and job.id not in after_plan(books, plan)
        if waits and job.id not in had and is_eligible(books, plan, job):  # who just lost its place is served next tick
            free = _not_kept_from(books, decision, job, room)
            assert not all_fit(books, free, [job]), f"P11: {job.id} fits on {free} and waits"


def _not_kept_from(books: Books, decision: Decision, job: Job, room: dict[str, int]) -> dict[str, int]:
    """Section 3: the room that is left to a job beside the places kept for others that it would not have left."""
    left = dict(room)
    for place in decision.backfill:
        ends_at = books.snapshot.now + (job.time_limit_s + books.policy.preemption.grace_s) * 1000
        ends_before = ends_at <= place.starts_at
        if place.pool == books.pool and place.workload != job.id and not ends_before:
            for part in place.placements:
                left[part.device] -= part.gpu_milli
    return left


def is_eligible(books: Books, plan: Plan, job: Job) -> bool:
    """Whether a waiting job lacks only devices to start, once a plan is applied."""
    if job.project not in books.amounts or out_of_pauses(books, job):
        return False
    if not job.preemptible and any(books.amounts[name].notebook_milli for name in books.projects):
        return False  # it may not run on unbooked notebook quota
    here = after_plan(books, plan)
    used, fixed, mine = _beside(books, here, job)
    for key in books.levels(job.project):
        if used[key] + least(job) > books.ceiling(key) or mine[key] + least(job) > books.user_ceiling(key):
            return False
        if not job.preemptible and fixed[key] + least(job) > books.amounts[key].training_milli:
            return False
    return True


def _beside(books: Books, sizes: Mapping[str, int], job: Job) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By owner: all use, non-preemptible use, and the use of the job's user."""
    return (
        sums(books, sizes),
        sums(books, sizes, lambda other: not other.preemptible),
        sums(books, sizes, lambda other: other.user == job.user),
    )


def out_of_pauses(books: Books, job: Job) -> bool:
    rules = books.policy.preemption
    return sum(at > books.snapshot.now - rules.per_s * 1000 for at in job.paused_at) >= rules.max_pauses


def check_reasons(books: Books, plan: Plan, waits: Mapping[str, Reason]) -> None:
    """P12: whatever waits has a reason, and where the reason is a plain sum, the sum is true."""
    for job in books.jobs.values():
        if job.state in WAITS and job.target is JobTarget.RUNNING and job.id not in started(plan):
            assert job.id in waits, f"P12: {job.id} waits without a reason"
            _check_reason(books, plan, job, waits[job.id].code)


def _check_reason(books: Books, plan: Plan, job: Job, code: str) -> None:
    said = f"P12: {job.id} waits, it is said, as {code}"
    here = {name: milli for name, milli in after_plan(books, plan).items() if name != job.id}
    used, fixed, mine = _beside(books, here, job)
    owners = [key for key in books.levels(job.project) if key in books.amounts]
    match code:
        case "never_fits":
            assert not books.fits_empty(job), said
        case "above_limit":
            assert any(used[key] + least(job) > books.ceiling(key) for key in owners), said
        case "above_training_quota":
            assert not job.preemptible, said
            assert any(fixed[key] + least(job) > books.amounts[key].training_milli for key in owners), said
        case "above_user_ceiling":
            assert any(mine[key] + least(job) > books.user_ceiling(key) for key in owners), said
        case "pauses_used_up":
            assert out_of_pauses(books, job), said
        case _:
            pass


def check_guarantees(snapshot: Snapshot, policy: Policy, pool: str) -> None:
    """P10: a claim within guarantee has its devices or a reservation, once no work is stopping.

    For pools whose quotas fit in sum and shape, and a snapshot to which the plan was applied.
    """
    books = Books(snapshot, policy, pool)
    if any(job.state is JobState.PAUSING or books.leaves(job) for job in books.jobs.values()):
        return
    reserved = books.reserved()
    here = {job.id: books.size(job) for job in books.jobs.values() if job.state in RUNS or job.id in reserved}
    for job in books.jobs.values():
        waits = job.state in WAITS and job.target is JobTarget.RUNNING and job.id not in here
        if waits and job.project in books.amounts and books.could_start(job):
            used, _, mine = _beside(books, here, job)
            within = used[job.project] + least(job) <= books.amounts[job.project].training_milli
            within = within and all(
                mine[key] + least(job) <= books.user_ceiling(key) for key in books.levels(job.project)
            )
            assert not within, f"P10: {job.id} is within the guarantee and waits"
