"""Quotas of notebooks and of work that may not be preempted (P2, P3, R6, R8), limits and ceilings (R12)."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Owner, State, total
from ..places import free_later, lent_milli
from ..shares import notebooks_milli
from ..steps import STARTS, Step

Found = Iterator[tuple[str, str]]


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
    """R7: booked slices stay within the notebook quota, and each user's within the ceiling."""
    state = step.after
    for owner, names in owners(state):
        amounts = owner.of(pool)
        booked = [one for one in state.slices(pool) if one.project in names and one.state != "requested"]
        if (used := sum(one.gpu_milli for one in booked)) > amounts.notebook:
            yield "P2", f"{owner.name} has notebooks of {used} milli; its notebook quota is {amounts.notebook}"
        for user in sorted({one.user for one in booked}):
            used = sum(one.gpu_milli for one in booked if one.user == user)
            if amounts.user_notebooks is not None and used > amounts.user_notebooks:
                yield "R12", f"{user} has notebooks of {used} milli in {owner.name}, ceiling {amounts.user_notebooks}"


def _refused(step: Step) -> Found:
    """P2: a notebook's request that fits its quota and ceilings is not refused."""
    state = step.before
    for action in step.of_kind("refuse"):
        notebook = state.notebooks.get(action.workload)
        if notebook is None:
            yield "P12", f"{action.workload} is refused, and is no notebook"
            continue
        mine = [one for one in state.slices(notebook.pool) if one.project == notebook.project]
        owner = state.policy.projects[notebook.project].of(notebook.pool)
        used = sum(one.gpu_milli for one in mine)
        of_user = sum(one.gpu_milli for one in state.slices(notebook.pool) if one.user == notebook.user)
        if used <= owner.notebook and not _has_ceiling(state, notebook.project, notebook.pool, of_user):
            yield "P2", f"{notebook.id} is refused; with all requests {notebook.project} has {used} of {owner.notebook}"


def _has_ceiling(state: State, project: str, pool: str, milli: int) -> bool:
    owner = state.policy.projects[project]
    above = state.policy.departments.get(owner.department or "")
    ceilings = [one.of(pool).user_notebooks for one in (owner, above) if one is not None]
    return any(one is not None and milli > one for one in ceilings)


def _notebook_quota_is_kept(step: Step, pool: str) -> Found:
    """R6: work that does not borrow leaves room for all notebook quota that is not booked."""
    state = step.after
    unbooked = sum(
        max(0, one.of(pool).notebook - notebooks_milli(one.name, state, pool)) for one in state.policy.projects.values()
    )
    capacity = sum(1000 - one.foreign for one in state.healthy(pool))
    booked = sum(one.gpu_milli for one in state.slices(pool) if one.state != "requested")
    jobs = sum(state.held_milli(job.id) for job in state.in_pool(pool) if job.runs and not job.borrower)
    if unbooked and jobs + booked + unbooked > capacity and any(one.workload in state.jobs for one in _starts(step)):
        yield "R6", f"{jobs} milli of jobs that do not borrow, {booked} booked, {unbooked} unbooked, of {capacity}"


def _few_devices(step: Step, pool: str) -> Found:
    """R76: a slice is placed on a device that has slices, if one has room beside what stays there, and what is lent."""
    state = step.before
    room = {device: milli - lent_milli(step.after, device) for device, milli in free_later(step.after, pool).items()}
    with_slices = {one.device for one in state.slices(pool) if one.device}
    with_slices |= {part.device for one in state.slices(pool) for part in state.held.get(one.id, ())}
    for action in step.giving():
        if action.workload in state.reserved:
            continue
        if action.workload in state.notebooks and state.notebooks[action.workload].pool == pool:
            (part,) = action.placements
            better = [name for name in sorted(with_slices) if room.get(name, 0) >= part.gpu_milli]
            if part.device not in with_slices and better and not state.notebooks[action.workload].woken:
                yield "R76", f"notebook {action.workload} gets {part.device}; {better[0]} has slices, and room"
            with_slices.add(part.device)


def _starts(step: Step) -> Iterator[object]:
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
    state = step.after
    leaving = {job.id for job in state.in_pool(pool) if job.leaves}
    now = {job.id: state.held_milli(job.id) for job in state.in_pool(pool)}
    later = {
        job.id: _milli(state, job.id) if job.id not in leaving else _reserved_milli(state, job.id)
        for job in state.in_pool(pool)
    }
    for owner, names in owners(state):
        amounts = owner.of(pool)
        slices = sum(notebooks_milli(name, state, pool) for name in names)
        for milli in (now, later):
            jobs = [job for job in state.in_pool(pool) if job.project in names]
            used = slices + sum(milli[job.id] for job in jobs)
            if amounts.limit is not None and used > amounts.limit:
                yield "R12", f"{owner.name} has {used} milli; its limit is {amounts.limit}"
            for user in sorted({job.user for job in jobs}):
                used = sum(milli[job.id] for job in jobs if job.user == user)
                if amounts.user_jobs is not None and used > amounts.user_jobs:
                    yield "R12", f"{user}'s jobs have {used} milli in {owner.name}; the ceiling is {amounts.user_jobs}"


def _reserved_milli(state: State, workload: str) -> int:
    kept = state.reserved.get(workload)
    return 0 if kept is None else total(kept.placements)
