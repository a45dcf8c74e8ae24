"""Quotas of notebooks and of work that may not be preempted (P2, P3, R6, R8), limits and ceilings (R12)."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import WHOLE, Job, Owner, State, total
from ..places import free_later, lent_milli
from ..shares import notebooks_milli
from ..steps import STARTS, Action, Step

Found = Iterator[tuple[str, str]]
NOT_BY_QUOTA = ("no_device", "no_such_pool", "no_such_project")


def check(step: Step) -> Found:
    for pool in step.pools:
        yield from _notebooks(step, pool)
        yield from _fixed(step, pool)
        yield from _limits(step, pool)
        yield from _notebook_quota_is_kept(step, pool)
        yield from _few_devices(step, pool)
    yield from _refused(step)


def owners(state: State) -> Iterator[tuple[Owner, tuple[str, ...]]]:
    """Every project and department, with the names of its projects."""
    for project in state.policy.projects.values():
        yield project, (project.name,)
    for department in state.policy.departments.values():
        yield department, members(state, department.name)


def members(state: State, department: str) -> tuple[str, ...]:
    return tuple(one.name for one in state.policy.projects.values() if one.department == department)


# --- notebooks --------------------------------------------------------------------------------------------------------
def _notebooks(step: Step, pool: str) -> Found:
    """R7: booked slices grow neither above the notebook quota, nor above the ceiling for each user."""
    for owner, names in owners(step.after):
        amounts = owner.of(pool)
        was, booked = (_booked(state, pool, names) for state in (step.before, step.after))
        if (used := sum(booked.values())) > max(amounts.notebook, sum(was.values())):
            yield "P2", f"{owner.name} has notebooks of {used} milli; its notebook quota is {amounts.notebook}"
        for user, used in sorted(booked.items()):
            if amounts.user_notebooks is not None and used > max(amounts.user_notebooks, was.get(user, 0)):
                yield "R12", f"{user} has notebooks of {used} milli in {owner.name}, ceiling {amounts.user_notebooks}"


def _booked(state: State, pool: str, names: tuple[str, ...]) -> dict[str, int]:
    """The slices of projects by user, in milli."""
    found: dict[str, int] = {}
    for one in state.slices(pool):
        if one.project in names and one.state != "requested":
            found[one.user] = found.get(one.user, 0) + one.gpu_milli
    return found


def _refused(step: Step) -> Found:
    """P2: a notebook's request that fits its quota and ceilings is not refused."""
    state = step.before
    for action in step.of_kind("refuse"):
        if action.code in NOT_BY_QUOTA:
            continue
        notebook = state.notebooks.get(action.workload)
        if notebook is None:
            yield "P12", f"{action.workload} is refused, and is no notebook"
            continue
        of_user = sum(one.gpu_milli for one in state.slices(notebook.pool) if one.user == notebook.user)
        fits = all(_has_room(state, notebook.pool, *one) for one in owners(state) if notebook.project in one[1])
        if fits and not _has_ceiling(state, notebook.project, notebook.pool, of_user):
            yield "P2", f"{notebook.id} is refused; all requests of {notebook.project} fit its quota and ceilings"


def _has_room(state: State, pool: str, owner: Owner, names: tuple[str, ...]) -> bool:
    """Whether all slices and requests of an owner fit its notebook quota."""
    return sum(one.gpu_milli for one in state.slices(pool) if one.project in names) <= owner.of(pool).notebook


def _has_ceiling(state: State, project: str, pool: str, milli: int) -> bool:
    owner = state.policy.project(project)
    above = state.policy.departments.get(owner.department or "")
    ceilings = [one.of(pool).user_notebooks for one in (owner, above) if one is not None]
    return any(one is not None and milli > one for one in ceilings)


def _notebook_quota_is_kept(step: Step, pool: str) -> Found:
    """R6: work that does not borrow leaves room for all notebook quota that is not booked."""
    capacity = sum(1000 - one.foreign for one in step.after.healthy(pool))
    before, after = (_firm_milli(state, pool) for state in (step.before, step.after))
    booked, unbooked = _notebook_milli(step.after, pool)
    lost = any(not one.healthy for one in step.before.devices.values())
    known = step.before.reserved if lost else ()  # a claim that had its devices before others were out
    starts = any(step.after.jobs[one.workload].pool == pool and one.workload not in known for one in _starts(step))
    if starts and unbooked and after + booked + unbooked > capacity and after > before:
        yield "R6", f"{after} milli of jobs that do not borrow, {booked} booked, {unbooked} unbooked, of {capacity}"


def _firm_milli(state: State, pool: str) -> int:
    """What jobs that do not borrow have of healthy devices."""
    healthy = {one.id for one in state.healthy(pool)}
    jobs = [job for job in state.in_pool(pool) if job.runs and not job.borrower]
    return sum(part.gpu_milli for job in jobs for part in state.held.get(job.id, ()) if part.device in healthy)


def _notebook_milli(state: State, pool: str) -> tuple[int, int]:
    """The slices that are booked or lent, and the notebook quota that is not."""
    booked = sum(one.gpu_milli for one in state.slices(pool) if one.state != "requested")
    projects = state.policy.projects.values()
    return booked, sum(max(0, one.of(pool).notebook - notebooks_milli(one.name, state, pool)) for one in projects)


def _few_devices(step: Step, pool: str) -> Found:
    """R76: a slice is placed on a device that has slices, if one has room beside what stays there, and what is lent.

    Not judged where the notebook quota needs more devices than have slices: others are reserved for them then.
    """
    state = step.before
    quota = sum(one.of(pool).notebook for one in state.policy.projects.values())
    room = {device: milli - lent_milli(step.after, device) for device, milli in free_later(step.after, pool).items()}
    with_slices = {one.device for one in state.slices(pool) if one.device}
    with_slices |= {part.device for one in state.slices(pool) for part in state.held.get(one.id, ())}
    for action in step.giving():
        if action.workload in state.reserved:
            continue
        if action.workload in state.notebooks and state.notebooks[action.workload].pool == pool:
            (part,) = action.placements
            better = [name for name in sorted(with_slices) if room.get(name, 0) >= part.gpu_milli]
            few = quota > WHOLE * len(with_slices)
            if part.device not in with_slices and better and not few and not state.notebooks[action.workload].woken:
                yield "R76", f"notebook {action.workload} gets {part.device}; {better[0]} has slices, and room"
            with_slices.add(part.device)


def _starts(step: Step) -> Iterator[Action]:
    return (one for one in step.of_kind(*STARTS) if not one.borrower and one.workload in step.before.jobs)


# --- jobs -------------------------------------------------------------------------------------------------------------
def _fixed(step: Step, pool: str) -> Found:
    """P3: what may not be preempted does not grow above the training quota."""
    before, after = _fixed_milli(step.before, pool), _fixed_milli(step.after, pool)
    for owner, names in owners(step.after):
        was, now = (sum(one.get(name, 0) for name in names) for one in (before, after))
        if now > max(was, owner.of(pool).training):
            yield "P3", f"{owner.name} has {now} milli that may not be preempted; quota {owner.of(pool).training}"


def _fixed_milli(state: State, pool: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for job in state.in_pool(pool):
        if not job.preemptible:
            found[job.project] = found.get(job.project, 0) + _milli(state, job.id)
    return found


def _milli(state: State, workload: str) -> int:
    """What a workload has, or what is reserved for it if that is more."""
    kept = state.reserved.get(workload)
    return max(state.held_milli(workload), 0 if kept is None else total(kept.placements))


def _limits(step: Step, pool: str) -> Found:
    """R12, of the devices in use now, and of those in use when all that leaves has left."""
    pairs = [(of(step.before, pool), of(step.after, pool)) for of in (_milli_now, _milli_later)]
    for owner, names in owners(step.after):
        amounts = owner.of(pool)
        before, after = (sum(notebooks_milli(one, state, pool) for one in names) for state in (step.before, step.after))
        for was, milli in pairs:
            jobs = [job for job in step.after.in_pool(pool) if job.project in names]
            used, had = after + _sum(jobs, milli), before + _sum(jobs, was)
            if amounts.limit is not None and used > max(amounts.limit, had):
                yield "R12", f"{owner.name} has {used} milli; its limit is {amounts.limit}"
            for user in sorted({job.user for job in jobs}):
                mine = [job for job in jobs if job.user == user]
                used = _sum(mine, milli)
                if amounts.user_jobs is not None and used > max(amounts.user_jobs, _sum(mine, was)):
                    yield "R12", f"{user}'s jobs have {used} milli in {owner.name}; the ceiling is {amounts.user_jobs}"


def _sum(jobs: list[Job], milli: dict[str, int]) -> int:
    return sum(milli.get(job.id, 0) for job in jobs)


def _milli_now(state: State, pool: str) -> dict[str, int]:
    return {job.id: state.held_milli(job.id) for job in state.in_pool(pool)}


def _milli_later(state: State, pool: str) -> dict[str, int]:
    """What each job has when all that is being stopped has left."""
    jobs = state.in_pool(pool)
    return {job.id: _reserved_milli(state, job.id) if job.leaves else _milli(state, job.id) for job in jobs}


def _reserved_milli(state: State, workload: str) -> int:
    kept = state.reserved.get(workload)
    return 0 if kept is None else total(kept.placements)
