"""P6 and R43: no victim of a plan could be left out. P7: a plan evicts only for work that then starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..model import Job, Placement
from ..places import Room, fits_beside_notebooks, free_later, free_now, give, take
from ..places import fits as fits_on
from ..steps import Action, Claim, Rank, Step
from .beside import own_order
from .claims import Case, of_claim
from .entitlement import was_within_fair, within_fair
from .limits import admits
from .reservation import entered_by_right, has_right, may_enter

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    for claim in step.claims:
        yield from _starts(step, claim)
        if claim.preemptor in step.before.jobs and claim.placements:
            yield from _fewest(step, claim)
    yield from _own_starts(step)


def _starts(step: Step, claim: Claim) -> Found:
    """P7, for one plan: the preemptor starts, or devices are reserved for it."""
    state = step.after
    served = claim.preemptor in state.reserved or claim.preemptor in step.started
    holder = any(one.workload == claim.preemptor for one in step.backfill.values())
    woken = claim.preemptor in step.before.notebooks
    if not served and not holder and not woken:
        yield "P7", f"{[job.id for job in claim.evicted]} are paused for {claim.preemptor}, which gets no devices"


def _own_starts(step: Step) -> Found:
    """R43: a plan never pauses work that it starts."""
    for action in step.of_kind("pause", "stop"):
        if action.workload in step.started:
            yield "R43", f"{action.workload} is started and paused by the same plan"


def _fewest(step: Step, claim: Claim) -> Found:
    job = step.before.jobs[claim.preemptor]
    room = _room(step, claim, job)
    fits: Callable[[Room], bool] = lambda left: (  # noqa: E731
        _stays(left) and not moved_onto_victims(step, claim) and _fits(step, claim, left)
    )
    for victim in claim.evicted:
        left = _minus(room, step.before.held[victim.id])
        if fits(left) and _allowed(step, claim, victim):
            yield "P6", f"{victim.id} is paused for {job.id}, which fits without that: {_free(left)} free"
    for victim in claim.moved:
        left = dict(room)
        give(left, step.after.reserved[victim.id].placements)
        left = _minus(left, step.before.held[victim.id])
        if fits(left):
            yield "P6", f"{victim.id} is moved for {job.id}, which fits without that: {_free(left)} free"
    for rank in {one.job.id: one for one in claim.shrunk}.values():
        given = step.ranks_given_up(rank.job.id)
        if any(fits(_minus(room, one.parts)) for one in given) and _allowed(step, claim, rank):
            yield "P6", f"{rank.job.id} gives up a rank for {job.id} more than it needs"


def moved_onto_victims(step: Step, claim: Claim) -> bool:
    """Whether the backfill reservation has moved to what the victims leave, where the claim may not enter it.

    If one stays, the reservation needs other devices, on which the claim might be; this is not judged. By its time
    limit alone a claim enters what is free or being left before its turn, and pauses no work there (R30, R40).
    """
    job = step.before.jobs[claim.preemptor]
    was, kept = step.before.backfill.get(job.pool), step.backfill.get(job.pool)
    if kept is None or kept.workload == job.id:
        return False
    planned_behind = {one.device for one in kept.placements} & {one.device for one in claim.placements}
    by_right = has_right(step, job, step.before.jobs[kept.workload], certain=True)
    if by_right and not planned_behind:  # else it may have been too late for the claim at its turn
        return False
    known = {one.device for one in was.placements} if was is not None else set()
    left = {part.device for one in claim.evicted for part in step.before.held[one.id]}
    return any(one.device in left - known for one in kept.placements)


def _fits(step: Step, claim: Claim, room: Room) -> bool:
    """Whether a claim fits beside the backfill reservation, unless it may enter that."""
    job, left = step.before.jobs[claim.preemptor], dict(room)
    ranks = len({one.rank for one in claim.placements})
    given = {one.device for one in claim.placements}
    was, kept = step.before.backfill.get(job.pool), step.backfill.get(job.pool)
    if was is not None and was.workload != job.id:
        beside = set() if may_enter(step, job, was) else given  # it has its place beside what is reserved there
        take(left, (one for one in was.placements if one.device in beside or one.device not in given))
    passed = (
        was is not None and kept is not None and was.workload != kept.workload
    )  # devices unknown at the claim's turn
    enters = kept is not None and not passed and may_enter(step, job, kept) and not entered_by_right(step, kept)
    if kept is not None and kept.workload != job.id and not enters:
        known = {one.device for one in was.placements} if was is not None and was.workload != job.id else set()
        take(left, (one for one in kept.placements if one.device not in given | known))
    left.update(dict.fromkeys(reserved_meanwhile(step, claim) - given, 0))
    return fits_beside_notebooks(job, left, step.after, ranks)


def reserved_meanwhile(step: Step, claim: Claim) -> set[str]:
    """The devices that the backfill reservation may have kept from a claim at its turn, and has left since (R43).

    Its job fitted on what was free, and had that reserved until its own turn. Or another job entered it by right (R32),
    so that it moved to devices that claims behind got; its planned start is later now, or was earlier for a while.
    """
    job = step.before.jobs[claim.preemptor]
    was, kept = step.before.backfill.get(job.pool), step.backfill.get(job.pool)
    if was is None or kept is None or was.workload != kept.workload or may_enter(step, job, was):
        return set()
    jobs, found = step.before.jobs, set[str]()
    free = free_now(step.before, job.pool)
    if was.workload != job.id and fits_on(jobs[was.workload], free, step.before):
        found |= {device for device, milli in free.items() if milli > 0}
    entered = list[tuple[Placement, ...]]()
    if kept.planned_start <= was.planned_start:
        given = [one for one in step.reserving.values() if one.workload in jobs and _takes_the_rest(step, one)]
        entered = [one.placements for one in given if has_right(step, jobs[one.workload], jobs[kept.workload])]
    elif entered_by_right(step, kept):
        entered = [one.placements for one in step.claims[step.claims.index(claim) + 1 :]]
    return found | {part.device for placements in entered for part in placements}


def _room(step: Step, claim: Claim, job: Job) -> Room:
    """What the claim could have: what is free when all has left, and what this plan gave to work behind it."""
    holders = {one.workload for one in step.before.backfill.values()}
    later = [name for name, one in {**step.reserving, **step.started}.items() if _takes_the_rest(step, one)]
    behind = {name for name in later if _is_behind(step, name, job)} - holders
    if may_have_been_bound(step, job) or job.runs:  # what runs grows after all other work was served (R49)
        behind -= step.started.keys()
    losing = {victim.project for victim in claim.evicted}  # their use with what starts is what makes the claim legal
    behind -= {name for name in step.started if name in step.before.jobs and step.before.jobs[name].project in losing}
    return free_later(step.after, job.pool, {job.id, *behind})


def may_have_been_bound(step: Step, job: Job) -> bool:
    """R30: whether the reservation is new, and may have been for a job before the claim of its project meanwhile.

    It bound the claim then (R40, R43), and may have passed before other work started.
    """
    was, kept = step.before.backfill.get(job.pool), step.backfill.get(job.pool)
    if kept is None or (was is not None and was.workload == kept.workload):
        return False
    order = (-job.priority, job.submitted_at, job.id)
    waiting = [one for one in step.after.waiting(job.pool) if one.project == job.project and one.milli > job.milli]
    return any((-one.priority, one.submitted_at, one.id) < order for one in waiting)


def _takes_the_rest(step: Step, action: Action) -> bool:
    """Whether a job gets devices without a victim of its own, and does not continue on others."""
    return action.workload not in step.before.held and not step.claimed(action.workload)


def _is_behind(step: Step, name: str, job: Job) -> bool:
    """Whether a served job is above its fair share and the claim is not.

    A job that precedes the claim inside its project may have been served before work of the project was paused.
    """
    other = step.before.jobs.get(name)
    if other is None or other.pool != job.pool or name in step.before.reserved:
        return False
    precedes = other.project == job.project and own_order(other) < own_order(job) and not was_within_fair(step, job)
    return within_fair(step, job) and not within_fair(step, other) and not precedes


def _allowed(step: Step, claim: Claim, lost: Job | Rank) -> bool:
    """Whether every claim of the plan is legal if a victim stays, or a rank of it; some cases are not judged."""
    job = step.before.jobs[claim.preemptor]
    victim, milli = (lost.job, lost.milli) if isinstance(lost, Rank) else (lost, step.before.held_milli(lost.id))
    if victim.borrower and step.before.backfill.get(job.pool) is not None:
        return False
    if not admits_with(step, job, victim):
        return False
    policy = step.before.policy
    mine, other = policy.project(job.project), policy.project(victim.project)
    if mine.name != other.name and mine.department is not None and mine.department == other.department:
        return False  # R36: what siblings lose may be what entitles the claim
    behind = step.claims[step.claims.index(claim) + 1 :]
    cases = [Case.of(step, claim.without(lost)), *(Case.of(step, one.beside(victim, milli)) for one in behind)]
    return all(_is_surely_legal(case) for case in cases if case.job.pool == job.pool)


def _is_surely_legal(case: Case) -> bool:
    """Whether a claim is legal; one above its guarantee is not surely, where fair shares are not known exactly."""
    known = case.certain or case.use_at_entry <= case.step.in_force(case.job.pool).least(case.project.name)
    return known and not any(True for _ in of_claim(case))


def admits_with(step: Step, job: Job, victim: Job) -> bool:
    """Whether limits and ceilings admit the claim beside the victim as it was."""
    ledger = step.ledger.copy()
    ledger.milli[victim.id] = step.before.held_milli(victim.id)
    return admits(job, step.after, ledger)


def _minus(room: Room, parts: tuple[Placement, ...] | list[Placement]) -> Room:
    left = dict(room)
    take(left, parts)
    return left


def _stays(room: Room) -> bool:
    """Whether a victim can be put back where it was: nothing else of the plan has its devices."""
    return all(milli >= 0 for milli in room.values())


def _free(room: Room) -> str:
    return ", ".join(f"{name} {milli}" for name, milli in sorted(room.items()) if milli > 0)
