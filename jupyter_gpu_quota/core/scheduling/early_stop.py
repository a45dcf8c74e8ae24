"""Stops a scheduling cycle once it is known whether one workload starts: for explanations, which need no whole plan."""

from __future__ import annotations

from dataclasses import dataclass

from ..queue.pool_state import PoolState
from .plan_builder import PlanBuilder


@dataclass(slots=True, kw_only=True)
class EarlyStop:
    """The workload whose start ends the cycle. ``most_work``: so does this much work of searches for victims.

    ``gave_up``: the cycle ended for its work, so that the workload's part of the plan is not known. ``work``: that of
    the searches so far, in tests of room.
    """

    workload: str
    most_work: int | None = None
    gave_up: bool = False
    work: int = 0

    def is_over(self, builder: PlanBuilder) -> bool:
        """Whether the cycle may end. A claim may be taken out of a plan again, and a start beside claims."""
        self.work = _work_of(builder.pool, builder.count_of_claims)
        if builder.starts(self.workload):
            return True
        self.gave_up |= self.most_work is not None and self.work > self.most_work
        return self.gave_up


def _work_of(pool: PoolState, claims: int) -> int:
    """A search reads the running work, and a claim with victims is made by several."""
    running = len(pool.running)
    return pool.search_work + pool.searches * (1 + running // RUNNING_OF_SEARCH) + claims * running // RUNNING_OF_CLAIM


RUNNING_OF_SEARCH, RUNNING_OF_CLAIM = 300, 12
"""The running jobs that a search, and a claim, read with the work of one test of room."""
