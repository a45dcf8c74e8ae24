"""R24: which jobs wait behind an older job of their project that has run out of patience, and which may not start."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Job, State
from ..places import empty_room, fits, fits_empty, give, take
from ..steps import Step
from .limits import admits
from .reservation import (
    end_if_started,
    ends_at,
    fits_beside,
    own_order,
    packs_beside,
    surely_within_guarantee,
    within_guarantee,
)

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    """No job starts that an older one surely holds back. Borrowers delay none, and are not judged."""
    for action in step.giving():
        job = step.before.jobs.get(action.workload)
        known = {*step.before.reserved, *step.before.held}
        if job is None or not job.waits or job.id in known or action.borrower:
            continue
        older = next((one for one in _older(step, job) if _surely_holds_back(step, one, job)), None)
        if older is not None:
            yield "R24", f"{job.id} gets devices; {older.id}, submitted before, has waited {_waited_s(step, older)} s"


def held_back(step: Step, job: Job) -> bool:
    """Whether an older job of its project may keep a job waiting."""
    return any(_may_hold_back(step, one, job) for one in _older(step, job))


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
    if not (fits_empty(older, step.after) and fits_beside(step, older)) or _ends_before(step, older, job):
        return False
    larger = older.milli > step.in_force(job.pool).most(job.project)
    return not (larger and surely_within_guarantee(step, job))


def _surely_holds_back(step: Step, older: Job, job: Job) -> bool:
    """The same of a job without the backfill reservation that waits for devices only, and was submitted before.

    With whatever is certain of quotas.
    """
    just_now = _waited_s(step, older) == step.before.policy.patience_s or older.submitted_at == job.submitted_at
    if just_now or older.id in {*step.after.reserved, *_holders(step)} or _ends_before(step, older, job):
        return False
    if not packs_beside(step, older) or not admits(older, step.after, step.ledger):
        return False
    larger = older.milli > step.in_force(job.pool).least(job.project)
    return not (larger and within_guarantee(step, job))


def _ends_before(step: Step, older: Job, job: Job) -> bool:
    """Whether a job ends, grace included, by the planned start of the older one.

    An older one without the reservation starts no earlier than the time limits of running work allow, and not before
    one of their project that precedes it and has the reservation.
    """
    ends = end_if_started(job, step.before)
    if ends <= _earliest_start(step.before, older):
        return True
    for kept in (step.before.backfill.get(job.pool), step.backfill.get(job.pool)):
        holder = None if kept is None else step.before.jobs.get(kept.workload)
        if kept is None or holder is None or holder.project != older.project:
            continue
        precedes = holder.id == older.id or own_order(holder) < own_order(older)
        if precedes and ends <= kept.planned_start:
            return True
    return False


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
