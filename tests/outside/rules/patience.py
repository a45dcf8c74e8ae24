"""R24: which jobs wait behind an older job of their project that has run out of patience, and which may not start."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Job, Placement, Reservation, State
from ..places import empty_room, fits, fits_empty, give, take
from ..steps import Step
from .beside import end_if_started, ends_at, fits_beside, own_order, packs_beside
from .entitlement import surely_within_guarantee, within_guarantee
from .limits import admits

Found = Iterator[tuple[str, str]]

FOREVER = 1 << 62


def check(step: Step) -> Found:
    """No job starts that an older one surely holds back. Borrowers delay none, and are not judged."""
    giving = list(step.giving())
    for at, action in enumerate(giving):
        job = step.before.jobs.get(action.workload)
        known = {*step.before.reserved, *step.before.held}
        if job is None or not job.waits or job.id in known or action.borrower:
            continue
        firsts = _firsts(step, job, {one.workload for one in giving[at + 1 :]})
        if firsts and all(one in _older(step, job) and _surely_holds_back(step, one, job) for one in firsts):
            older = firsts[0]
            yield "R24", f"{job.id} gets devices; {older.id}, submitted before, has waited {_waited_s(step, older)} s"


def held_back(step: Step, job: Job) -> bool:
    """Whether an older job of its project may keep a job waiting."""
    return any(_may_hold_back(step, one, job) for one in _older(step, job))


def _firsts(step: Step, job: Job, started_later: set[str]) -> list[Job]:
    """The first of its project's overdue jobs, when the plan served a job; the others hold nobody back.

    One beside the backfill reservation before the plan, and one beside that after it; empty if either has none.
    """
    served_later = [step.before.jobs[name] for name in sorted(started_later) if name in step.before.jobs]
    waiting = [one for one in step.after.waiting(job.pool) if one.id not in step.after.reserved]
    waiting += [one for one in served_later if one.waits]
    overdue = sorted((one for one in waiting if one.project == job.project and _is_overdue(step, one)), key=own_order)
    held = [{one.workload for one in state.backfill.values()} for state in (step.before, step.after)]
    firsts = [next((one for one in overdue if one.id not in holders), None) for holders in held]
    return [] if None in firsts else [one for one in firsts if one is not None]


def _is_overdue(step: Step, job: Job) -> bool:
    """Whether a job may be one; the certain part is left to the caller."""
    waits = job.attempt == 0 and job.id not in step.before.reserved
    may_start = fits_empty(job, step.after) and fits_beside(step, job)
    return waits and may_start and _waited_s(step, job) >= step.before.policy.patience_s


def _older(step: Step, job: Job) -> Iterator[Job]:
    """The waiting jobs of its project that were submitted no later, have no lower priority, and never started."""
    patience_s = step.before.policy.patience_s
    if job.id in _holders(step):
        return
    for one in step.after.waiting(job.pool):
        first = (one.submitted_at, one.id) < (job.submitted_at, job.id) and one.priority >= job.priority
        mine = one.project == job.project and first and one.id != job.id
        if mine and one.attempt == 0 and _waited_s(step, one) >= patience_s:
            yield one


def _waited_s(step: Step, job: Job) -> float:
    return (step.before.now - job.submitted_at) / 1000


def _holders(step: Step) -> set[str]:
    return {one.workload for one in (*step.before.backfill.values(), *step.backfill.values())}


def _may_hold_back(step: Step, older: Job, job: Job) -> bool:
    if not (fits_empty(older, step.after) and fits_beside(step, older)):
        return False
    if end_if_started(job, step.before) <= _earliest_start(step.before, older):
        return False
    larger = older.milli > step.in_force(job.pool).most(job.project)
    return not (larger and surely_within_guarantee(step, job))


def _surely_holds_back(step: Step, older: Job, job: Job) -> bool:
    """The same of a job without the backfill reservation that waits for devices only, and was submitted before.

    With whatever is certain of quotas.
    """
    just_now = _waited_s(step, older) == step.before.policy.patience_s or older.submitted_at == job.submitted_at
    if just_now or older.id in {*step.after.reserved, *_holders(step)} or _has_limit(step, older):
        return False
    if _may_have_held(step, older):
        return False
    latest = _latest_start(step, older, job)
    if latest is None or end_if_started(job, step.before) <= latest:
        return False
    if not packs_beside(step, older) or not admits(older, step.after, step.ledger):
        return False
    larger = older.milli > step.in_force(job.pool).least(job.project)
    return not (larger and within_guarantee(step, job))


def _may_have_held(step: Step, job: Job) -> bool:
    """Whether a job may have had the backfill reservation until that passed: its holder before the plan was served."""
    was, kept = step.before.backfill.get(job.pool), step.backfill.get(job.pool)
    served = was is not None and was.workload in {one.workload for one in step.giving()}
    return served and kept is not None and kept.workload not in (job.id, was.workload if was else "")


def _has_limit(step: Step, job: Job) -> bool:
    """Whether the limit of its project or department may delay its planned start."""
    project = step.before.policy.project(job.project)
    owners = [project, step.before.policy.departments.get(project.department or "")]
    return any(one is not None and one.of(job.pool).limit is not None for one in owners)


def _earliest_start(state: State, job: Job) -> int:
    """When a job fits at the earliest if all running work uses its time limit, whatever is reserved."""
    room = empty_room(state, job.pool)
    for parts in state.held.values():
        take(room, parts)
    if fits(job, room, state):
        return state.now
    running = [one for one in state.in_pool(job.pool) if one.id in state.held]
    for one in sorted(running, key=lambda one: ends_at(one, state)):
        give(room, state.held[one.id])
        if fits(job, room, state):
            return ends_at(one, state)
    return state.now


def _latest_start(step: Step, older: Job, job: Job) -> int | None:
    """The latest instant that may have been the planned start of a job when the plan decided on another; None: never.

    What the plan starts may count, and the reservation, whose job runs to its time limit.
    """
    starts = list[int | None]()
    for state in (step.before, step.after):
        for kept in (step.before.backfill.get(job.pool), step.backfill.get(job.pool), None):
            starts.append(_planned_start(state, older, job, kept))
    return None if None in starts else max(one for one in starts if one is not None)


def _planned_start(state: State, older: Job, job: Job, kept: Reservation | None) -> int | None:
    """When a job fits if all work but another job, and the reservation, end by their time limits; None: never."""
    room, grace_ms = empty_room(state, job.pool), state.policy.grace_s * 1000
    works = [(parts, _ends_at(state, name)) for name, parts in _occupied(state).items() if name != job.id]
    holder = None if kept is None else state.jobs.get(kept.workload)
    if kept is not None and holder is not None and holder.id not in {older.id, job.id}:
        works.append((kept.placements, kept.planned_start + holder.time_limit_s * 1000 + grace_ms))
    for parts, _ in works:
        take(room, parts)
    if fits(older, room, state):
        return state.now + grace_ms
    for parts, ends in sorted(works, key=lambda row: row[1]):
        give(room, parts)
        if fits(older, room, state):
            return max(ends, state.now + grace_ms)
    return None


def _occupied(state: State) -> dict[str, tuple[Placement, ...]]:
    """What each workload has, or will have when others have left."""
    staying = {name: parts for name, parts in state.held.items() if name not in state.jobs or state.jobs[name].runs}
    return staying | {name: one.placements for name, one in state.reserved.items()}


def _ends_at(state: State, name: str) -> int:
    """The end by the time limit, grace included; a notebook's slice is there for ever."""
    job = state.jobs.get(name)
    if job is None:
        return FOREVER
    if name in state.reserved:
        return end_if_started(job, state) + state.policy.grace_s * 1000
    return ends_at(job, state)
