"""The class in which a waiting job is queued, and whether its pauses are used up."""

from __future__ import annotations

from ..lifecycle import WAITING
from ..model import MS_PER_S, Job, Policy
from ..placement.place import request_of
from .job_queue import ClassQueue, JobClass
from .pool_state import PoolState


def is_exhausted(policy: Policy, job: Job, now: int) -> bool:
    """Whether a job has used up its pauses in the period that ends now.

    With ``max_pauses`` 0 a running job always has: it is protected (R53). A waiting one has while a pause of it is
    counted (R54).
    """
    if len(job.paused_at) < policy.preemption.max_pauses:
        return False
    begins = now - policy.preemption.per_s * MS_PER_S
    if policy.preemption.max_pauses == 0 and job.state in WAITING:
        return any(begins < at for at in job.paused_at)
    return sum(begins < at for at in job.paused_at) >= policy.preemption.max_pauses


def class_of(pool: PoolState, job: Job) -> JobClass:
    """The class in which a waiting job is queued."""
    paused = bool(job.paused_at)
    exhausted = paused and is_exhausted(pool.policy, job, pool.now)
    return JobClass(request_of(job, job.least_ranks), job.preemptible, job.priority, paused, exhausted)


def queue_of(pool: PoolState, job: Job) -> ClassQueue | None:
    """The queue of a waiting job's class; None if it could not start in the empty pool."""
    return pool.project(job.project).queue.classes.get(class_of(pool, job))
