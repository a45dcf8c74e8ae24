"""The division of one pool: among departments and projects without one, then among the projects of each department.

Both levels use :func:`.fair_share.divide`. Source: docs/scheduling.md, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..quota.fair_share import Owner, divide
from .pool_state import PoolState, wanted_by_project, wanted_by_users
from .quota_state import NO_LIMIT, QuotaState


def divide_pool(pool: PoolState, amount_milli: int, firm_milli: int) -> None:
    """Set the guarantee and fair share of every project and department of the pool.

    ``firm_milli``: the part of the amount that guarantees may use. A department's ceiling for each user lowers what the
    department wants, but not the guarantees of its projects: any of them may be the one that the user works in.
    Rule R15.
    """
    projects = list(pool.projects.values())
    if not pool.departments:
        _divide(pool, projects, [wanted_by_project(one) for one in projects], amount_milli, firm_milli)
        return
    alone = [one for one in projects if one.parent is None]
    departments = list(pool.departments.values())
    children = {one.name: [child for child in projects if child.parent is one] for one in departments}
    for one in departments:
        one.preemptible_use.above_minimum = sum(child.preemptible_use.above_minimum for child in children[one.name])
    sums = {one.name: sum(wanted_by_project(child) for child in children[one.name]) for one in departments}
    wanted = [_demand_of(one, sums[one.name]) for one in departments]
    for one in departments:
        one.past_use_milli_s = sum(child.past_use_milli_s for child in children[one.name])
    rows = [*departments, *alone]
    _divide(pool, rows, [*wanted, *(wanted_by_project(one) for one in alone)], amount_milli, firm_milli)
    for one in departments:
        inside = children[one.name]
        wants = [wanted_by_project(child) for child in inside]
        _divide(pool, inside, wants, max(one.fair, one.guarantee), one.guarantee)


def _demand_of(department: QuotaState, children_milli: int) -> int:
    """The demand of a department: the sum of its projects, within its limit and its ceiling for each user."""
    if department.user_ceiling != NO_LIMIT:
        children_milli = min(children_milli, wanted_by_users(department))
    return max(department.non_preemptible_on_devices, min(department.ceiling, children_milli))


def _divide(pool: PoolState, rows: Sequence[QuotaState], wanted: Sequence[int], amount: int, firm: int) -> None:
    owners = [
        Owner(
            name=one.key,
            quota_milli=one.quota,
            wanted_milli=wants,
            weight=one.weight,
            priority=one.priority,
            past_use_milli_s=one.past_use_milli_s,
            non_preemptible_milli=one.non_preemptible_on_devices,
            above_minimum_milli=one.preemptible_use.above_minimum,
        )
        for one, wants in zip(rows, wanted, strict=True)
    ]
    shares = divide(owners, amount, firm_milli=firm, history_milli=pool.policy.history.k_milli)
    for one in rows:
        share = shares[one.key]
        one.guarantee, one.fair = share.guarantee_milli, share.fair_milli
