"""Worlds that must get equal plans: departments that add no rule change no plan."""

from __future__ import annotations

import dataclasses as dc
from collections import Counter

from jupyter_gpu_quota.core.model import Amounts, Department, Policy, Snapshot
from jupyter_gpu_quota.core.plan import Pause, Plan, Reserve, Resume, Start
from jupyter_gpu_quota.core.scheduling.decide import Decision, decide
from tests.core.accounting import in_force


def check_departments_that_change_nothing(snapshot: Snapshot, policy: Policy, decision: Decision) -> None:
    """One department that has everything, or one for each project with what that has: the same start and leave.

    A place is kept for when the department, too, is within its fair share, and all that borrows in it counts: so with
    one for all it may be kept for another time than without. And what drains from one project may be within the quota
    of a department that has all.
    """
    policy, expected = in_force(policy, snapshot.now), spelled(decision.plan)
    kinds = {"one for each": one_for_each(policy)}
    if (not decision.backfill or not any(job.borrower for job in snapshot.jobs)) and not drains(snapshot, policy):
        kinds["one for all"] = one_for_all(policy)
    for kind, other in kinds.items():
        found = spelled(decide(snapshot, other))
        assert found == expected, f"section 1: {kind}: {found} and not {expected}"


def one_for_all(policy: Policy) -> Policy:
    amounts = {
        pool: Amounts(
            notebook_milli=sum(one.amounts.get(pool, Amounts()).notebook_milli for one in policy.projects),
            training_milli=sum(one.amounts.get(pool, Amounts()).training_milli for one in policy.projects),
        )
        for pool in policy.pools
    }
    projects = tuple(dc.replace(one, department="all") for one in policy.projects)
    return dc.replace(policy, windows=(), projects=projects, departments=(Department(name="all", amounts=amounts),))


def drains(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether non-preemptible work is above its project's quota in any pool."""
    quotas = {
        (one.name, pool): one.amounts.get(pool, Amounts()).training_milli
        for one in policy.projects
        for pool in policy.pools
    }
    return any(milli > quotas.get(whose, 0) for whose, milli in non_preemptible_use(snapshot).items())


def non_preemptible_use(snapshot: Snapshot) -> Counter[tuple[str, str]]:
    """The use of non-preemptible jobs, by project and pool."""
    fixed = {job.id: (job.project, job.pool) for job in snapshot.jobs if not job.preemptible}
    use = Counter[tuple[str, str]]()
    for one in snapshot.allocations:
        if one.workload in fixed:
            use[fixed[one.workload]] += one.gpu_milli
    return use


def one_for_each(policy: Policy) -> Policy:
    departments = tuple(
        Department(
            name=one.name,
            priority=one.priority,
            amounts={
                pool: dc.replace(row, user_jobs_milli=None, user_notebook_milli=None)
                for pool, row in one.amounts.items()
            },
        )
        for one in policy.projects
    )
    projects = tuple(dc.replace(one, department=one.name) for one in policy.projects)
    return dc.replace(policy, windows=(), projects=projects, departments=departments)


def spelled(plan: Plan) -> list[tuple[object, ...]]:
    """The actions without the figures of their reasons."""
    rows: list[tuple[object, ...]] = []
    for action in plan.actions:
        where = action.placements if isinstance(action, (Start, Resume, Reserve)) else ()
        whom = action.preemptor if isinstance(action, Pause) else ""
        rows.append((type(action).__name__, action.workload, whom, where))
    return rows
