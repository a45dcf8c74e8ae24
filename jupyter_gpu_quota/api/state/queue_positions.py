"""The order in which the waiting jobs of a pool are served."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.queue.order import QueueOrder
from ...core.queue.pool_state import PoolState
from ...core.queue.quota_state import Entitlement

MAX_ORDERED = 5_000
"""The order is exact for this many jobs; the others follow by priority and age."""


def queue_order(pool: PoolState, planned: Iterable[str]) -> list[str]:
    """The ids of a pool's waiting jobs in the order of the queue, as if each job before had started.

    ``planned``: the workloads of the plan of a scheduling cycle, which come first. It takes the pool state that the
    cycle left, and changes it. Jobs that cannot start at present, as they are above a limit or ceiling, come last.
    """
    order = {job: None for job in planned if job in pool.waiting}
    for project in pool.projects.values():
        project.queue.reopen()
    queue = QueueOrder(pool.projects.values(), Entitlement.SURPLUS)
    while len(order) < MAX_ORDERED and (found := queue.first()) is not None:
        project, job_class = found
        job = job_class.take()
        project.add(job_class.size, job.user, preemptible=job_class.job_class.preemptible)
        queue.update(project)
        if job.id in pool.waiting:
            order[job.id] = None
    rest = [job for job in pool.waiting.values() if job.id not in order]
    rest.sort(key=lambda job: (-job.priority, job.submitted_at, job.id))
    return [*order, *(job.id for job in rest)]
