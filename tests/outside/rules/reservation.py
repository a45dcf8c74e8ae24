"""The backfill reservation: R27 to R33."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..model import WHOLE, Job, Placement, Reservation, State, ranks_of, total, used_up
from ..places import empty_room, fits, free_later, free_now, take
from ..shares import notebooks_milli
from ..steps import STARTS, Action, Ledger, Step
from ..world import TICK_MS
from .beside import end_if_started, ends_at, fits_beside, others_milli, own_order, packs_beside
from .entitlement import (
    may_be_above_fair,
    past,
    surely_within_fair,
    was_within_fair,
    was_within_guarantee,
    within_fair,
    within_guarantee,
)
from .limits import admits, admits_now
from .patience import held_back

Found = Iterator[tuple[str, str]]

LONG_MS = 60_000


def check(step: Step) -> Found:
    for pool in step.pools:
        yield from _only_one(step, pool)
        kept, was = step.backfill.get(pool), step.before.backfill.get(pool)
        if kept is not None:
            yield from _holder(step, kept)
            yield from _planned_start(step, kept)
        else:
            yield from _missing(step, pool)
        if was is not None:
            yield from _stays(step, was, kept)
        for action in step.giving():
            yield from _entry(step, action, was, kept)
        yield from _borrowers_leave(step, kept)


def _only_one(step: Step, pool: str) -> Found:
    """R27: a plan that reserves for another job drops the reservation of the one before."""
    was = step.before.backfill.get(pool)
    holders = {was.workload} if was is not None else set()
    for action in step.actions:
        if action.is_backfill and action.workload in step.before.jobs:
            holders |= {action.workload} if step.before.jobs[action.workload].pool == pool else set()
        elif action.kind in (*STARTS, "unreserve", "reserve"):
            holders.discard(action.workload)
    if len(holders) > 1:
        yield "R27", f"{', '.join(sorted(holders))} have backfill reservations in {pool}"


# --- which job has it -------------------------------------------------------------------------------------------------
def _holder(step: Step, kept: Reservation) -> Found:
    """R27: a waiting job that no limit or quota holds back, and that fits beside the guarantees of the others."""
    job = step.after.jobs.get(kept.workload)
    if job is None or not job.waits or job.id in step.after.reserved:
        yield "R27", f"{kept.workload} has a backfill reservation, and does not wait for devices"
        return
    was = step.before.backfill.get(job.pool)
    is_new = was is None or was.workload != job.id
    admitted = admits(job, step.after, step.ledger) or admits(job, step.before, Ledger(step.before))
    if is_new and not admitted:
        yield "R27", f"{job.id} gets the backfill reservation, and waits for a limit, ceiling or quota"
    if not fits_beside(step, job):
        yield (
            "R27",
            f"{job.id} ({job.milli}) has the backfill reservation beside guarantees of {others_milli(step, job)}",
        )
    yield from _shape(step, kept, job)


def _shape(step: Step, kept: Reservation, job: Job) -> Found:
    """Each rank has its amount, on devices that are in the pool."""
    room = empty_room(step.after, job.pool)
    take(room, kept.placements)
    ranks = ranks_of(kept.placements)
    if ranks < job.least or total(kept.placements) != ranks * job.gpu_milli or min(room.values(), default=0) < 0:
        yield "R27", f"{job.id} needs {job.least} x {job.gpu_milli} and has {total(kept.placements)} reserved"


def _missing(step: Step, pool: str) -> Found:
    """R27: there is a reservation if a job waits for devices only. Plans with actions are not judged."""
    if step.actions or any(job.leaves for job in step.after.in_pool(pool)):
        return
    for job in step.after.waiting(pool):
        if job.id in step.after.reserved or used_up(job, step.after) or job.needs_host:
            continue
        if (
            packs_beside(step, job)
            and admits(job, step.after, step.ledger)
            and not fits(job, free_later(step.after, pool), step.after)
        ):
            yield "R27", f"{job.id} ({job.milli}) waits for devices only; no backfill reservation in {pool}"
            return


# --- the planned start ------------------------------------------------------------------------------------------------
def _planned_start(step: Step, kept: Reservation) -> Found:
    """R27: beside what runs longer than until the planned start, the reserved devices have room for the job.

    R33: work that had devices before this plan and has not begun counts as if it ended in time, once that is planned.
    """
    state = step.after
    later = _later(state, kept)
    recorded = step.before.backfill.get(step.after.jobs[kept.workload].pool)
    if recorded is not None and recorded.workload == kept.workload:
        later = {name: parts for name, parts in later.items() if not _had_not_begun(step, name)}
    parts = [part for one in later.values() for part in one]
    for device in sorted(_overfull(state, kept, parts)):
        names = [name for name, one in later.items() if any(part.device == device for part in one)]
        yield "R27", f"{kept.workload} is to start on {device} before {', '.join(names)} there have to end"


def _had_not_begun(step: Step, workload: str) -> bool:
    job = step.before.jobs.get(workload)
    is_held = workload in step.before.held and job is not None and job.started_at is None
    return is_held or workload in step.before.reserved


def _later(state: State, kept: Reservation) -> dict[str, tuple[Placement, ...]]:
    """What may still be on the devices at the planned start, by workload: running work, and claims that will start."""
    found = {name: parts for name, parts in state.held.items() if _ends_later(name, kept, state)}
    for name, one in state.reserved.items():
        if name not in state.jobs or _claim_ends_later(state.jobs[name], kept, state):
            found[name] = (*found.get(name, ()), *one.placements)
    return found


def _claim_ends_later(job: Job, kept: Reservation, state: State) -> bool:
    """Whether a claim has devices after the planned start; it leaves before if it borrows notebook quota (R27, R31)."""
    return end_if_started(job, state) > kept.planned_start and not may_borrow(job, state)


def may_borrow(job: Job, state: State) -> bool:
    """Whether a claim may have notebook quota reserved: of a lent slice, or as less is free beside all claims (R6)."""
    if _has_lent_room(job, state):
        return True
    free = sum(max(0, milli) for milli in free_later(state, job.pool).values())
    projects = state.policy.projects.items()
    unbooked = sum(max(0, one.of(job.pool).notebook - notebooks_milli(name, state, job.pool)) for name, one in projects)
    return job.preemptible and free < unbooked


def _has_lent_room(job: Job, state: State) -> bool:
    """Whether a claim has room of a lent slice reserved (R59)."""
    mine, lent = Counter[str](), Counter[str]()
    for part in state.reserved[job.id].placements if job.id in state.reserved else ():
        mine[part.device] += part.gpu_milli
    for one in state.slices(job.pool):
        if one.state == "lent" and one.device is not None:
            lent[one.device] += one.gpu_milli
    return any(lent[device] and milli + lent[device] > WHOLE for device, milli in mine.items())


def _ends_later(workload: str, kept: Reservation, state: State) -> bool:
    """Whether a workload may have its devices after the planned start; borrowers leave before (R31)."""
    job = state.jobs.get(workload)
    return job is None or (not job.borrower and ends_at(job, state) > kept.planned_start)


def _overfull(state: State, kept: Reservation, others: list[Placement]) -> set[str]:
    """The reserved devices on which other work and the reservation are more than there is."""
    room = {name: 1000 - one.foreign for name, one in state.devices.items()}
    take(room, kept.placements)
    take(room, others)
    return {one.device for one in kept.placements if room[one.device] < 0}


def _stays(step: Step, was: Reservation, kept: Reservation | None) -> Found:
    """R28, R29 and R33: it stays with its job, and its planned start does not move later."""
    job = step.after.jobs.get(was.workload)
    if job is None or not job.waits or was.workload in step.after.reserved:
        return
    if kept is not None and kept.workload == was.workload:
        late = (kept.planned_start - was.planned_start) / 1000
        excused = _overtaken(step, was) or _has_failed(step, job) or _has_begun(step, was, kept)
        if late > 0 and was.planned_start > step.before.now and not excused:
            yield "R33", f"the planned start of {was.workload} moves {late:g} s later"
    elif not packs_beside(step, job) or not admits_now(job, step.after, step.ledger):
        return
    elif kept is None:
        yield "R28", f"the backfill reservation of {was.workload} ends, and it waits on"
    elif not _passes(step, was, kept):
        yield "R28", f"the backfill reservation of {was.workload} goes to {kept.workload}"


def _has_begun(step: Step, was: Reservation, kept: Reservation) -> bool:
    """R33: whether work that ends last before the planned start, or had its devices, has begun since then."""
    state, reserved = step.before, {one.device for one in was.placements}
    began = [one for one in state.jobs.values() if one.started_at and state.now - one.started_at <= TICK_MS]
    had_them = [one for one in began if any(part.device in reserved for part in state.held.get(one.id, ()))]
    is_last = any(ends_at(one, state) == kept.planned_start for one in began)
    return is_last or any(ends_at(one, state) >= kept.planned_start for one in had_them)


def _has_failed(step: Step, job: Job) -> bool:
    """Whether devices of the pool are out, so that what they had to do delays the reservation."""
    return any(one.pool == job.pool and not one.healthy for one in step.before.devices.values())


def _overtaken(step: Step, was: Reservation) -> bool:
    """Whether this plan, or one before it, let another job onto the reserved devices (R32)."""
    reserved = {one.device for one in was.placements}
    moved = [one.placements for one in step.after.reserved.values() if one.workload != was.workload]
    started = [one.placements for one in step.started.values()]
    return any(one.device in reserved for parts in (*moved, *started) for one in parts)


def _passes(step: Step, was: Reservation, kept: Reservation) -> bool:
    """R29, or R32: a job that is let in could not start for lack of devices.

    It may pass several times in a plan, each time by one of these rules, between jobs that may have it. A job that then
    finds devices leaves it to any.
    """
    jobs = step.after.jobs
    old, new = jobs[was.workload], jobs.get(kept.workload)
    if new is None:
        return False
    idle, reached = _reached(step, was, old)
    reserved = step.after.reserved
    return any(one.id in reserved or _passes_from(step, one, new, idle=idle) for one in reached)


def _reached(step: Step, was: Reservation, holder: Job) -> tuple[bool, list[Job]]:
    """Whether a reserved device stays idle, and the jobs that may have had the reservation in this plan, by R29."""
    idle = _is_idle(step, was)
    idle &= not _overtaken(step, was)  # else it was planned again, perhaps on devices that are not idle
    others = [] if idle else [one for one in step.after.waiting(holder.pool) if fits_beside(step, one)]
    reached = [holder]
    for one in reached:  # grows meanwhile
        reached += [other for other in others if other not in reached and _passes_from(step, one, other, idle=idle)]
    return idle, reached


def _passes_from(step: Step, old: Job, new: Job, *, idle: bool) -> bool:
    if old.project == new.project:
        weaker = not may_be_above_fair(step, old) and not (within_fair(step, new) or was_within_fair(step, new))
        return own_order(new) < own_order(old) and not weaker
    better = within_guarantee(step, new) or was_within_guarantee(step, new) or _better_right(step, new, old)
    certain = step.is_certain(old.pool)
    above = not certain or (may_be_above_fair(step, old) and not surely_within_fair(step, new))
    return better or (above and past(step, new) < past(step, old) and not idle)


def _is_idle(step: Step, was: Reservation) -> bool:
    """Whether a reserved device stays idle: a borrower that the plan starts there uses it (R31)."""
    return _idle_for(step, step.before, was) and _idle_for(step, step.after, was)


def _idle_for(step: Step, state: State, kept: Reservation) -> bool:
    """Whether another waiting job could start if the reserved devices were not reserved."""
    pool = state.jobs[kept.workload].pool
    room = free_now(state, pool)
    beside = dict(room)
    take(beside, kept.placements)
    served = {kept.workload, *state.reserved}
    others = [job for job in state.waiting(pool) if job.id not in served and admits(job, state, step.ledger)]
    kept_out = (job for job in others if fits(job, room, state) and not fits(job, beside, state))
    return any(not held_back(step, job) for job in kept_out)


# --- who may start there ----------------------------------------------------------------------------------------------
def _entry(step: Step, action: Action, was: Reservation | None, kept: Reservation | None) -> Found:
    """R30, R31 and R32, for the reservation that the plan found, or made earlier."""
    job = step.before.jobs.get(action.workload)
    if job is None or was is None or kept is None or kept.workload != was.workload or job.id == kept.workload:
        return
    if not (_moves_little(step, was, kept) or _moved_by_right(step, was, kept, job) or _has_lost_device(step, was)):
        kept = was
    ends = end_if_started(job, step.before)
    borrows = action.borrower and job.preemptible and not used_up(job, step.before)
    if (
        job.id in {*step.before.reserved, *step.before.held}
        or ends <= kept.planned_start
        or borrows
        or not _enters(step, action, kept)
    ):
        return
    holder = step.before.jobs[kept.workload]
    text = f"{job.id} gets devices reserved for {holder.id}"
    if _passed_in_project(step, was, holder) or _passes_to(step, was, job, holder):
        return
    if _came_back(step, was, job, holder):
        return
    if not any(has_right(step, job, one) for one in _reached(step, was, holder)[1]):
        yield "R32", f"{text}, without the better right"


def _passed_in_project(step: Step, was: Reservation, holder: Job) -> bool:
    """Whether a job of the same project that precedes the holder has devices: the reservation passed (R29).

    They may be others than the reserved ones, on which it was planned to start earlier.
    """
    served = [step.before.jobs[one.workload] for one in step.giving() if one.workload in step.before.jobs]
    before = [one for one in served if one.project == holder.project and own_order(one) < own_order(holder)]
    reserved = {one.device for one in was.placements}
    given = {
        part.device for one in step.giving() if one.workload in {job.id for job in before} for part in one.placements
    }
    return bool(before) and (not reserved.isdisjoint(given) or not _is_idle(step, was))


def _came_back(step: Step, was: Reservation, job: Job, holder: Job) -> bool:
    """R28 and R29: whether another job had the reservation until it found devices in the same plan.

    That is one that R32 lets in, which waits for them, or one to which the reservation passes.
    """
    served = [step.before.jobs[name] for name in {**step.started, **step.reserving} if name in step.before.jobs]
    others = [one for one in served if one.id != job.id and one.project != holder.project]
    waiting = [one for one in others if step.claimed(one.id) or one.id in step.reserving]
    by_right = any(within_guarantee(step, one) or _better_right(step, one, holder) for one in waiting)
    return by_right or any(_passes_to(step, was, one, holder) for one in others)


def _passes_to(step: Step, was: Reservation, job: Job, holder: Job) -> bool:
    """R29: whether a reservation above fair share passes to a job of another project, which is then served there."""
    above = not was_within_fair(step, holder) and not within_fair(step, job)
    return above and past(step, job) < past(step, holder) and not _is_idle(step, was)


def _moves_little(step: Step, was: Reservation, kept: Reservation) -> bool:
    """Whether the planned start is not later than the slowest drain makes it: a grace and two ticks (P10)."""
    return kept.planned_start <= was.planned_start + (step.before.policy.grace_s + 2) * 1000


def _has_lost_device(step: Step, was: Reservation) -> bool:
    """R33: whether a reserved device has failed, so that the reservation is planned again."""
    return any(not step.before.devices[one.device].healthy for one in was.placements)


def _moved_by_right(step: Step, was: Reservation, kept: Reservation, job: Job) -> bool:
    """Whether a notebook or another job of this plan has the right to move the planned start (R32, R33).

    Before that the reservation may have moved to others of the devices that are free by then, to start earlier there.
    """
    holder = step.before.jobs[was.workload]
    reserved = {one.device for one in (*was.placements, *kept.placements)}
    room = empty_room(step.before, job.pool)
    for parts in _later(step.before, was).values():
        take(room, parts)
    reserved |= {name for name, milli in room.items() if milli >= min(WHOLE, holder.gpu_milli)}
    for action in step.giving():
        other = step.before.jobs.get(action.workload)
        if action.workload == job.id or reserved.isdisjoint(_taken_by(step, action)):
            continue
        if other is None or has_right(step, other, holder):
            return True
    return False


def _taken_by(step: Step, action: Action) -> set[str]:
    """The devices that a job gets, and those to which its claim moves work."""
    moved = [job.id for claim in step.claims if claim.preemptor == action.workload for job in claim.moved]
    pieces = [*action.placements, *(part for name in moved for part in step.after.reserved[name].placements)]
    return {one.device for one in pieces}


def _enters(step: Step, action: Action, kept: Reservation) -> bool:
    """Whether a job gets room on reserved devices that it has not had before, and that the reservation needs."""
    others = [part for parts in _later(step.after, kept).values() for part in parts]
    had = {one.device for one in step.before.held.get(action.workload, ())}
    return bool({one.device for one in action.placements} & _overfull(step.after, kept, others) - had)


def may_enter(step: Step, job: Job, kept: Reservation) -> bool:
    """Whether a job certainly has the right to reserved devices by its time limit, or by R32."""
    holder = step.before.jobs[kept.workload]
    if end_if_started(job, step.before) <= kept.planned_start:
        return True
    return has_right(step, job, holder, certain=True)


def entered_by_right(step: Step, kept: Reservation) -> bool:
    """Whether the plan gave devices there to work for whose end the planned start waits now, or restarts work there.

    Claims that were decided before that met an earlier planned start (R43).
    """
    continues = [one for one in step.reserving.values() if one.workload in step.before.held]
    if any(part.device in {one.device for one in kept.placements} for one in continues for part in one.placements):
        return True
    jobs, reserved = step.before.jobs, {one.device for one in kept.placements}
    given = [one for one in step.giving() if one.workload in jobs and not one.borrower]
    there = [jobs[one.workload] for one in given if any(part.device in reserved for part in one.placements)]
    last = kept.planned_start - step.before.policy.grace_s * 1000  # a claim begins when its devices are free
    return any(end_if_started(job, step.before) >= last for job in there)


def has_right(step: Step, job: Job, holder: Job, *, certain: bool = False) -> bool:
    """R32: whether a job may start on reserved devices for as long as it runs."""
    if job.project == holder.project:
        return own_order(job) < own_order(holder)
    return within_guarantee(step, job) or _better_right(step, job, holder, certain=certain)


def _better_right(step: Step, job: Job, holder: Job, *, certain: bool = False) -> bool:
    """R32: a reservation above fair share lets in a job within its fair share, of no more past use.

    ``certain``: it is above, whether a notebook that waits is counted as booked or not, and also after the plan.
    Otherwise it is enough that the job was within its fair share at its turn, before other starts of its project.
    """
    above = not within_fair(step, holder) if certain else may_be_above_fair(step, holder)
    within = within_fair(step, job) or (not certain and was_within_fair(step, job))
    return above and within and past(step, job) <= past(step, holder)


def is_taken_over(step: Step, kept: Reservation, loser: Job) -> bool:
    """Whether a claim within guarantee, or a notebook, has one of the devices now, or needed room under a limit."""
    devices = {one.device for one in kept.placements}
    taken = [*step.started.values(), *step.reserving.values()]
    for one in taken:
        job = step.before.jobs.get(one.workload)
        rightful = job is None or within_guarantee(step, job)
        has_device = bool(devices & {part.device for part in one.placements})
        if (
            rightful
            and one.workload != loser.id
            and (has_device or (job is not None and _share_limit(step, job, loser)))
        ):
            return True
    return False


def _share_limit(step: Step, job: Job, other: Job) -> bool:
    """Whether two jobs of different projects are under the limit of one department."""
    names = {step.before.policy.project(one.project).department for one in (job, other)}
    department = step.before.policy.departments.get(names.pop() or "") if len(names) == 1 else None
    return department is not None and job.project != other.project and department.of(job.pool).limit is not None


def _borrowers_leave(step: Step, kept: Reservation | None) -> Found:
    """R31: one grace before the planned start, borrowers leave the reserved devices."""
    if kept is None or step.before.now < kept.planned_start - step.before.policy.grace_s * 1000:
        return
    state = step.after
    staying = [name for name in state.held if name not in state.jobs or state.jobs[name].runs]
    others = [part for name in staying for part in state.held[name]]
    others += [part for one in state.reserved.values() for part in one.placements]
    reserved = _overfull(state, kept, others)
    for name in sorted(name for name in staying if reserved & {one.device for one in state.held[name]}):
        job = state.jobs.get(name)
        if job is not None and job.borrower and not any(one.device for one in state.notebooks.values()):
            yield "R31", f"{name} borrows devices of {kept.workload}, whose planned start is a grace away"
