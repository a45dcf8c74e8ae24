"""Whether a waiting job could start as far as limits, ceilings, quotas and the patience of older jobs go."""

from __future__ import annotations

from collections.abc import Iterable

from ..model import Job, Owner, State
from ..shares import notebooks_milli
from ..steps import Ledger
from .quotas import members


def admits(job: Job, state: State, ledger: Ledger) -> bool:
    """Whether neither limit, ceiling nor quota keeps a job from starting."""
    project = state.policy.projects.get(job.project)
    if project is None or job.pool not in project.amounts:
        return False
    levels = [(project, (project.name,))]
    if project.department is not None:
        department = state.policy.departments[project.department]
        levels.append((department, members(state, department.name)))
    return all(_admits(job, owner, names, state, ledger) for owner, names in levels)


def admits_now(job: Job, state: State, ledger: Ledger) -> bool:
    """The same at once: work that is being stopped counts until it has ended."""
    held = ledger.copy()
    for one in state.jobs.values():
        if one.leaves:
            held.milli[one.id] = max(held.milli.get(one.id, 0), state.held_milli(one.id))
    return admits(job, state, held)


def _admits(job: Job, owner: Owner, names: tuple[str, ...], state: State, ledger: Ledger) -> bool:
    amounts = owner.of(job.pool)
    mine = {name: milli for name, milli in ledger.milli.items() if _counts(state.jobs[name], job, names)}
    used = sum(mine.values())
    by_user = sum(milli for name, milli in mine.items() if state.jobs[name].user == job.user)
    fixed = sum(milli for name, milli in mine.items() if not state.jobs[name].preemptible)
    slices = max(amounts.notebook, sum(notebooks_milli(name, state, job.pool) for name in names))
    return (
        (amounts.limit is None or used + job.milli + slices <= amounts.limit)
        and (amounts.user_jobs is None or by_user + job.milli <= amounts.user_jobs)
        and (job.preemptible or fixed + job.milli <= amounts.training)
    )


def _counts(other: Job, job: Job, names: tuple[str, ...]) -> bool:
    return other.id != job.id and other.pool == job.pool and other.project in names


# --- patience ---------------------------------------------------------------------------------------------------------
def hidden_by_patience(job: Job, waiting: Iterable[Job], state: State) -> bool:
    """R24: whether an older job of its project that has waited too long may keep a job waiting."""
    others = [one for one in waiting if one.id != job.id and one.project == job.project]
    return any(_out_of_patience(one, state) for one in others)


def _out_of_patience(job: Job, state: State) -> bool:
    return job.attempt == 0 and state.now - job.submitted_at >= state.policy.patience_s * 1000
