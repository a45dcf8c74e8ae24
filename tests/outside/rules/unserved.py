"""P10 and R40: a claim with a legal set of victims does not wait, and gets no dearer set than the search here finds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from ..model import Job, Reservation, State, total, used_up
from ..places import Room, fits, free_later, give, take
from ..steps import Action, Claim, Ledger, Step
from .claims import Case
from .entitlement import within_guarantee
from .large import set_on_a_node
from .limits import admits
from .patience import held_back
from .reservation import is_taken_over, may_borrow
from .search import Option, cost_of, options
from .victims import may_have_been_bound, moved_onto_victims, reserved_meanwhile

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    if step.actions:
        yield from _dear(step)
        yield from _taken_over(step)
    elif not any(job.leaves for job in step.before.jobs.values()):
        for pool in step.pools:
            yield from _waiting(step, pool)
            yield from _growth(step, pool)


# --- claims that are not served ---------------------------------------------------------------------------------------
def _waiting(step: Step, pool: str) -> Found:
    """Only plans without actions are judged, when no work is leaving."""
    for job, kind in _candidates(step, pool):
        room = _room(step, job)
        if fits(job, room, step.before):
            continue
        found = next(options(step, job, room, step.ledger), None)
        if found is None and kind == "P10":
            found = set_on_a_node(step, job, room, step.ledger)
        if found is not None:
            rule = kind if _without_moves(found) else "R40"
            yield rule, f"{job.id} ({job.least} x {job.gpu_milli}) waits, and could: {found}"


def _without_moves(found: Option) -> bool:
    return all(one.kind != "move" for one in found.parts)


def _candidates(step: Step, pool: str) -> Iterator[tuple[Job, str]]:
    """The first job of each project within its guarantee (P10), or else within its fair share (R40)."""
    state = step.before
    for name, project in state.policy.projects.items():
        quota = step.in_force(pool).least(name)
        fair = step.shares(pool).fair.get(name, 0) if step.is_certain(pool) else 0
        use = step.ledger.use(pool).get(name, 0)
        jobs = sorted((job for job in state.waiting(pool) if job.project == name), key=_order)
        if any(job.id in state.reserved for job in jobs) or _several_users(state, jobs):
            continue
        jobs = [job for job in jobs if not held_back(step, job)]
        jobs = [job for job in jobs if admits(job, state, step.ledger) and not used_up(job, state)]
        within = [job for job in jobs if use + job.milli <= quota and _department_has_room(step, job)]
        if within:
            yield within[0], "P10"
        elif project.of(pool).weight and (
            inside := [job for job in jobs if job.preemptible and use + job.milli <= fair]
        ):
            yield inside[0], "R40"


def _order(job: Job) -> tuple[int, int, str]:
    return (-job.priority, job.submitted_at, job.id)


def _several_users(state: State, jobs: list[Job]) -> bool:
    """Whether users take turns, so that the order is not known from the jobs alone."""
    return state.policy.within_project != "first_come" and len({job.user for job in jobs}) > 1


def _department_has_room(step: Step, job: Job) -> bool:
    name = step.before.policy.project(job.project).department
    if name is None:
        return True
    policy = step.before.policy
    use = sum(one for key, one in step.ledger.use(job.pool).items() if policy.project(key).department == name)
    return use + job.milli <= step.in_force(job.pool).department_least_of[name]


def _room(step: Step, job: Job) -> Room:
    room = free_later(step.before, job.pool)
    kept = step.backfill.get(job.pool)
    if kept is not None and kept.workload != job.id:
        take(room, kept.placements)
    return room


# --- claims that take more than they need -----------------------------------------------------------------------------
def _dear(step: Step) -> Found:
    """R40, for plans with one claim, whose devices serve no other work: no legal set costs less.

    A claim for which the bound on the work ended the comparison is not judged, nor one that the backfill reservation
    may have kept from other devices than those that it has after the plan, nor one beside a reservation that another
    job takes over: until then its devices are in use.
    """
    if (
        len(step.claims) != 1
        or not all(step.is_certain(pool) for pool in step.pools)
        or step.claims[0].preemptor not in step.before.jobs
    ):
        return
    claim = step.claims[0]
    if not claim.placements or claim.preemptor in {*step.before.reserved, *step.plan["searches_ended_early"]}:
        return
    case = Case.of(step, claim)
    cost = cost_of(case)
    if may_have_been_bound(step, case.job) or any(one.code == "drain_taken_over" for one in step.of_kind("unreserve")):
        return
    if moved_onto_victims(step, claim):
        return
    if cost <= (0, 0, 0, 1) or len({one.rank for one in claim.placements}) != case.job.least:
        return
    room = _room_without(step, claim)
    if any(milli < 0 for milli in room.values()):
        return
    _take_backfill(room, step, case.job)
    room.update(dict.fromkeys(reserved_meanwhile(step, claim) - {one.device for one in claim.placements}, 0))
    for found in options(step, case.job, room, claim.ledger):
        if found.cost < cost:
            yield "R40", f"the claim of {claim.preemptor} costs {cost}; {found} would cost {found.cost}"
            return


def _take_backfill(room: Room, step: Step, job: Job) -> None:
    """Subtract the devices of the backfill reservation of another job: a claim enters them at last, or not (R32)."""
    for rows in (step.before.backfill, step.backfill):
        kept = rows.get(job.pool)
        if kept is not None and kept.workload != job.id:
            take(room, kept.placements)


def _room_without(step: Step, claim: Claim) -> Room:
    """What would be free if the plan did all but this claim."""
    job = step.before.jobs[claim.preemptor]
    room = free_later(step.after, job.pool, {job.id})
    for victim in (*claim.evicted, *claim.moved, *{one.job.id: one.job for one in claim.shrunk}.values()):
        if victim.id in step.after.reserved:
            give(room, step.after.reserved[victim.id].placements)
        take(room, step.before.held[victim.id])
    return room


def _taken_over(step: Step) -> Found:
    """R26: only the reservation of a claim above its guarantee is taken over, or by a notebook that of a borrower.

    Preemptible work that its project started since the reservation was made is surplus, and does not count against it.
    R40: a project is left below its quota by that only if nothing else serves.
    """
    for action in step.of_kind("unreserve"):
        loser, kept = step.before.jobs.get(action.workload), step.before.reserved.get(action.workload)
        if action.code != "drain_taken_over" or loser is None or kept is None:
            continue
        if loser.id not in {**step.started, **step.reserving} and not is_taken_over(step, kept, loser):
            yield (
                "R26",
                f"the reservation of {loser.id} is dropped; no notebook or claim within guarantee has its devices",
            )
        if _goes_to_notebook(step, loser, kept):
            continue
        if _older_use(step, loser, kept) + total(kept.placements) <= _quota(step, loser):
            yield "R26", f"the reservation of {loser.id}, within guarantee when it was made, is taken over"
        else:
            yield from _other_way(step, loser, {one.device for one in kept.placements})


def _goes_to_notebook(step: Step, loser: Job, kept: Reservation) -> bool:
    """R6, R26: whether a notebook gets devices reserved for a borrower, or for a claim of a project above its quota."""
    given = [one.placements for one in step.giving() if one.workload in step.before.notebooks]
    devices = {part.device for parts in given for part in parts}
    jobs, milli = step.before.in_pool(loser.pool), Ledger(step.before).milli
    use = sum(milli.get(job.id, 0) for job in jobs if job.project == loser.project)
    may_take = may_borrow(loser, step.before) or use > _quota(step, loser)
    return may_take and not devices.isdisjoint(one.device for one in kept.placements)


def _quota(step: Step, job: Job) -> int:
    return step.in_force(job.pool).least(job.project)


def _older_use(step: Step, loser: Job, kept: Reservation) -> int:
    """What the project had when the reservation was made, and has still, and what may not be preempted."""
    state = step.before
    jobs = [job for job in state.in_pool(loser.pool) if job.project == loser.project and job.id != loser.id]
    use = Ledger(state).milli
    return sum(use.get(job.id, 0) for job in jobs if not job.preemptible or _since(job, state) <= kept.reserved_at)


def _since(job: Job, state: State) -> int:
    """Since when a job has its devices, or their reservation; 0 for one that restarts, which does not run now (R26)."""
    if job.id in state.reserved:
        return 0 if job.leaves else state.reserved[job.id].reserved_at
    return job.started_at or 0


def _other_way(step: Step, loser: Job, devices: set[str]) -> Found:
    """Each claim within guarantee that has one of the devices could have others: the reservation is not needed."""
    rightful = [
        job
        for name, gained in {**step.reserving, **step.started}.items()
        if (job := step.before.jobs.get(name)) is not None
        and devices & {one.device for one in gained.placements}
        and within_guarantee(step, job)
    ]
    if not rightful or step.before_start[rightful[0].id].use(loser.pool).get(loser.project, 0) >= _quota(step, loser):
        return
    found = [_way_beside_others(step, job) for job in rightful]
    if all(found):
        yield "R40", f"{rightful[0].id} takes over the reservation of {loser.id}, which falls below quota; {found[0]}"


def _way_beside_others(step: Step, job: Job) -> Option | None:
    """A legal set for a job without a take-over, beside the backfill reservation and what others got before.

    It touches no protected job: a take-over touches none, and that is compared first. The reservation may have been
    where its job starts in the same plan.
    """
    ledger = step.before_start[job.id].copy()
    ledger.milli.pop(job.id, None)
    room = free_later(step.before, job.pool, {job.id})
    holders = {one.workload for one in step.before.backfill.values()}
    started = [one for name, one in step.started.items() if name in holders]
    for earlier in (*_earlier(step, job.id), *started):
        take(room, earlier.placements if earlier.workload not in step.before.held else ())
    _take_backfill(room, step, job)
    stopped = {one.workload for one in step.actions if one.kind == "pause"}
    for found in options(step, job, room, ledger):
        if found.cost[:2] == (0, 0) and stopped.isdisjoint(part.job.id for part in found.parts):
            return found
    return None


def _earlier(step: Step, name: str) -> Iterator[Action]:
    """The actions that give devices, before those for one workload."""
    return takewhile(lambda one: one.workload != name, step.giving())


# --- growth -----------------------------------------------------------------------------------------------------------
def _growth(step: Step, pool: str) -> Found:
    """R50: growth within guarantee shrinks what elastic jobs of others have above their quota.

    The devices of the backfill reservation are not judged: R32 lets jobs in, and says nothing of growth.
    """
    state = step.before
    waits_ms = 10_000 * state.policy.grace_s
    for job in state.in_pool(pool):
        quota = state.policy.project(job.project).of(pool).training
        ripe = job.runs and job.started_at is not None and state.now > job.started_at + waits_ms
        room = step.ledger.use(job.pool).get(job.project, 0) + job.gpu_milli <= quota
        if not ripe or not room or job.min_ranks is None or state.held_milli(job.id) >= job.ranks * job.gpu_milli:
            continue
        for other in state.in_pool(pool):
            if other.project != job.project and _could_shrink(step, other, job):
                yield "R50", f"{job.id} is within its guarantee of {quota} with a rank more; {other.id} could shrink"
                return


def _could_shrink(step: Step, other: Job, job: Job) -> bool:
    """Whether a rank of another elastic job is above its project's quota, and as large as a rank of the claim."""
    state = step.before
    if other.min_ranks is None or not other.runs or not other.preemptible or other.gpu_milli != job.gpu_milli:
        return False
    owner = state.policy.project(other.project)
    alike = owner.department == state.policy.project(job.project).department
    kept = step.backfill.get(job.pool)
    reserved = {one.device for one in kept.placements} if kept is not None else set()
    held = state.held.get(other.id, ())
    ranks = len({one.rank for one in held})
    if {one.rank for one in held} == {one.rank for one in held if one.device in reserved}:
        return False
    above = step.ledger.use(job.pool).get(other.project, 0) - other.gpu_milli >= owner.of(job.pool).training
    return alike and ranks > other.min_ranks and above and not other.borrower
