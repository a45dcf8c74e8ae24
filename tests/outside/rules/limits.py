"""Whether a waiting job could start as far as limits, ceilings and quotas go."""

from __future__ import annotations

from ..model import Amounts, Job, Owner, State
from ..shares import notebooks_milli
from ..steps import Ledger
from .quotas import members


def admits(job: Job, state: State, ledger: Ledger) -> bool:
    """Whether neither limit, ceiling nor quota keeps a job from starting."""
    levels = _levels(job, state)
    return bool(levels) and all(_admits(job, owner, names, state, ledger) for owner, names in levels)


def _levels(job: Job, state: State) -> list[tuple[Owner, tuple[str, ...]]]:
    """Its project and that one's department, each with the names of its projects; none without amounts there."""
    project = state.policy.projects.get(job.project)
    if project is None or job.pool not in project.amounts:
        return []
    levels = [(project, (project.name,))]
    if project.department is not None:
        department = state.policy.departments[project.department]
        levels.append((department, members(state, department.name)))
    return levels


def admits_now(job: Job, state: State, ledger: Ledger) -> bool:
    """The same at once: work that is being stopped counts until it has ended."""
    return admits(job, state, _with_leaving(state, ledger))


def _with_leaving(state: State, ledger: Ledger) -> Ledger:
    """The books with the work that is being stopped."""
    held = ledger.copy()
    for one in state.jobs.values():
        if one.leaves:
            held.milli[one.id] = max(held.milli.get(one.id, 0), state.held_milli(one.id))
    return held


def has_room_for_user(job: Job, state: State, ledger: Ledger) -> bool:
    """R12: whether the ceilings for each user admit a job at once."""
    held = _with_leaving(state, ledger)
    return all(_fits_user(job, owner.of(job.pool), names, state, held) for owner, names in _levels(job, state))


def _admits(job: Job, owner: Owner, names: tuple[str, ...], state: State, ledger: Ledger) -> bool:
    amounts = owner.of(job.pool)
    mine = {name: milli for name, milli in ledger.milli.items() if _counts(state.jobs[name], job, names)}
    used = sum(mine.values())
    fixed = sum(milli for name, milli in mine.items() if not state.jobs[name].preemptible)
    slices = max(amounts.notebook, sum(notebooks_milli(name, state, job.pool) for name in names))
    return (
        (amounts.limit is None or used + job.milli + slices <= amounts.limit)
        and _fits_user(job, amounts, names, state, ledger)
        and (job.preemptible or fixed + job.milli <= amounts.training)
    )


def _fits_user(job: Job, amounts: Amounts, names: tuple[str, ...], state: State, ledger: Ledger) -> bool:
    jobs = [state.jobs[name] for name in ledger.milli if _counts(state.jobs[name], job, names)]
    by_user = sum(ledger.milli[one.id] for one in jobs if one.user == job.user)
    return amounts.user_jobs is None or by_user + job.milli <= amounts.user_jobs


def _counts(other: Job, job: Job, names: tuple[str, ...]) -> bool:
    return other.id != job.id and other.pool == job.pool and other.project in names
