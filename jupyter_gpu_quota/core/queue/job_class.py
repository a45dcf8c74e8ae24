"""The class in which a waiting job is queued, and whether its pauses are used up."""

from __future__ import annotations

from ..model import MS_PER_S, Job, Policy
from ..placement.place import request_of
from .job_queue import ClassQueue, JobClass
from .pool_state import PoolState


def is_exhausted(policy: Policy, job: Job, now: int) -> bool:
    """Whether a job has used up its pauses in the period that ends now."""
    if len(job.paused_at) < policy.preemption.max_pauses:
        return False
    begins = now - policy.preemption.per_s * MS_PER_S
    return sum(begins < at for at in job.paused_at) >= policy.preemption.max_pauses


def class_of(pool: PoolState, job: Job) -> JobClass:
    """The class in which a waiting job is queued."""
    paused = bool(job.paused_at)
    exhausted = paused and is_exhausted(pool.policy, job, pool.now)
    return JobClass(request_of(job, job.least_ranks), job.preemptible, job.priority, paused, exhausted)


def queue_of(pool: PoolState, job: Job) -> ClassQueue | None:
    """The queue of a waiting job's class; None if it could not start in the empty pool."""
    return pool.project(job.project).queue.classes.get(class_of(pool, job))
