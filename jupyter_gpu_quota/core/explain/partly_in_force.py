"""Training quotas of which only a part is in force: other work has not drained yet, or devices are missing.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from ..scheduling.cycle import SchedulingCycle
from ..scheduling.early_stop import EarlyStop
from ..scheduling.read_pool import read_pools
from .counterfactual import WhatIf
from .explanation import QuotaInForce


def quotas_in_force(what_if: WhatIf) -> tuple[QuotaInForce, ...]:
    """The quotas of a job's project and department that are in force only in part."""
    if what_if.is_notebook or not what_if.amounts.training_milli:
        return ()
    pool = next(one for one in read_pools(what_if.snapshot, what_if.policy) if one.name == what_if.pool)
    SchedulingCycle(pool, EarlyStop(workload=what_if.id, most_work=-1)).run()  # it ends before the queue is served
    project = pool.project(what_if.project)
    return tuple(
        QuotaInForce(
            owner=one.name,
            is_department=one.is_department,
            pool=what_if.pool,
            set_milli=one.quota,
            in_force_milli=one.guarantee,
        )
        for one in project.levels
        if one.guarantee < one.quota
    )
