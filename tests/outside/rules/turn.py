"""The order of the queue, as far as single plans show it: R21 to R23 and R42."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Job, used_up
from ..places import fits_beside_notebooks, free_later, free_now, give, take
from ..steps import STARTS, Action, Ledger, Step
from .entitlement import surely_within_guarantee, within_division, within_fair, within_guarantee
from .limits import admits, admits_now, has_room_for_user
from .patience import held_back

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    for action in step.giving():
        job = step.before.jobs.get(action.workload)
        if job is None or job.id in step.before.reserved or not job.waits or action.borrower:
            continue
        yield from _own_order(step, action, job)
        if action.kind in STARTS and not within_fair(step, job) and step.is_certain(job.pool):
            yield from _better_class(step, action, job)


def _own_order(step: Step, action: Action, job: Job) -> Found:
    """R23 and R42: no job of higher priority of the same project waits that could have had these devices.

    The job that has the backfill reservation may start as soon as any devices are free (R33).
    """
    holders = {one.workload for one in (*step.before.backfill.values(), *step.backfill.values())}
    if job.id in holders or _is_backfilled(step, action, job):
        return
    ledger = step.ledger.copy()
    ledger.milli.pop(job.id, None)
    room = free_later(step.after, job.pool)
    give(room, action.placements)
    for other in _waiting(step, job):
        if held_back(step, other) or not _could_claim(step, other, job):
            continue
        if not has_room_for_user(other, step.after, ledger):
            continue
        same = other.project == job.project and other.priority > job.priority and other.milli <= job.milli
        ranked = surely_within_guarantee(step, other) if within_guarantee(step, job) else True
        at_once = action.kind in STARTS or not other.preemptible
        admitted = (admits_now if at_once else admits)(other, step.after, ledger)
        if same and ranked and admitted and fits_beside_notebooks(other, room, step.after):
            if _has_lost_its_start(step, other):
                continue
            yield (
                "R23",
                f"{job.id} ({job.priority}) gets devices before {other.id} ({other.priority}), which fits there",
            )
            return


def _has_lost_its_start(step: Step, other: Job) -> bool:
    """Whether a job fitted on free devices before the plan; a claim may have them now, so that a victim stays (R43)."""
    return fits_beside_notebooks(other, free_now(step.before, other.pool), step.before)


def _could_claim(step: Step, other: Job, job: Job) -> bool:
    """Whether a job could take what the claim of a started one takes, if that takes anything (R37, R46, R48)."""
    victims = [one for claim in step.claims if claim.preemptor == job.id for one in claim.evicted]
    if not step.claimed(job.id):
        return True
    if other.paused_for in {one.id for one in victims} or not (other.preemptible or within_guarantee(step, other)):
        return False
    again = [
        one for one in victims if one.project == other.project and max(one.paused_at, default=-1) >= other.submitted_at
    ]
    return not again or surely_within_guarantee(step, other)


def _better_class(step: Step, action: Action, job: Job) -> Found:
    """R22: surplus goes to no job while one within its fair share fits there; a reservation binds that one (R30)."""
    if _is_backfilled(step, action, job) or job.id in {one.workload for one in step.before.backfill.values()}:
        return
    room = free_now(step.after, job.pool)
    give(room, action.placements)
    kept = step.backfill.get(job.pool)
    if kept is not None:
        take(room, kept.placements)
    at_its_turn = step.before_start.get(job.id, step.ledger).use(job.pool)
    for other in _waiting(step, job):
        share = max(step.in_force(job.pool).most(other.project), step.shares(job.pool).fair.get(other.project, 0))
        if at_its_turn.get(other.project, 0) + other.milli > share:
            continue  # only a later claim of the plan, for a job of that project, brought it below its share
        fair = surely_within_guarantee(step, other) or (other.preemptible and within_fair(step, other))
        fair = fair and (_quotas_fit(step, job.pool) or within_division(step, other))
        first = fair and _is_first(step, other)
        admitted = first and admits_now(other, step.after, _without(step, job))
        if admitted and fits_beside_notebooks(other, room, step.after):
            yield "R22", f"{job.id} starts above its fair share; {other.id}, within its own, fits there and waits"
            return


def _quotas_fit(step: Step, pool: str) -> bool:
    """R5: whether the capacity holds all quotas; otherwise they are in force only in part."""
    quotas = sum(one.of(pool).training for one in step.before.policy.projects.values())
    return quotas <= step.shares(pool).capacity


def _is_backfilled(step: Step, action: Action, job: Job) -> bool:
    """Whether it gets devices that are reserved, or were before the plan: R30 decides there."""
    kept = step.backfill.get(job.pool), step.before.backfill.get(job.pool)
    reserved = {part.device for one in kept if one is not None for part in one.placements}
    return any(one.device in reserved for one in action.placements)


def _waiting(step: Step, job: Job) -> list[Job]:
    state = step.after
    return [
        one
        for one in state.waiting(job.pool)
        if one.id in step.before.jobs
        and step.before.jobs[one.id].waits
        and one.id not in state.reserved
        and not used_up(one, state)
    ]


def _is_first(step: Step, job: Job) -> bool:
    """R21: whether no other job within the fair share of its project waits before it; that is then the candidate."""
    waiting = step.after.waiting(job.pool)
    if held_back(step, job):
        return False
    others = [one for one in waiting if one.project == job.project and one.id != job.id and within_fair(step, one)]
    mine = (-job.priority, job.submitted_at, job.id)
    first_come = step.before.policy.within_project == "first_come"
    return all(first_come and mine < (-one.priority, one.submitted_at, one.id) for one in others)


def _without(step: Step, job: Job) -> Ledger:
    ledger = step.ledger.copy()
    ledger.milli.pop(job.id, None)
    return ledger
