"""What a waiting job may claim: why its class may not start at all, and whose work may make room for it."""

from __future__ import annotations

from functools import partial

from ..preemption.rules import Preemptor
from ..queue.job_queue import ClassQueue, MakeReason
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState
from . import reasons


def why_forbidden(
    pool: PoolState, project: QuotaState, queue: ClassQueue, entitlement: Entitlement
) -> MakeReason | None:
    """Why no job of a class may start: its training quota is used, or its pauses are used up above guarantee.

    Rule R43.
    """
    if not queue.job_class.preemptible and not project.fixed_fits(queue.size):
        return partial(reasons.above_training_quota, project, queue.size, project.fixed_use)
    if queue.job_class.exhausted and entitlement is not Entitlement.GUARANTEE:
        return partial(reasons.pauses_used_up, project, queue.size, project.use, pool.policy)
    return None


def victim_scope(project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> QuotaState | None:
    """The project or department that all victims must belong to; None for any.

    Above the fair share a job takes from its own project only, and so does a job of a project with weight 0 or a
    non-preemptible one above its guarantee. At a limit a job takes from the work under that limit only.
    """
    if entitlement is Entitlement.SURPLUS or (
        entitlement is Entitlement.FAIR and (project.weight == 0 or not queue.job_class.preemptible)
    ):
        return project
    return next((one for one in project.levels if one.use + one.leaving + queue.size > one.ceiling), None)


def preemptor_of(
    project: QuotaState, queue: ClassQueue, entitlement: Entitlement, within: QuotaState | None
) -> Preemptor:
    job, job_class = queue.first(), queue.job_class
    return Preemptor(
        id=job.id,
        project=project,
        user=job.user,
        request=job_class.request,
        entitlement=entitlement,
        priority=job_class.priority,
        preemptible=job_class.preemptible,
        can_borrow=job_class.preemptible and entitlement is not Entitlement.GUARANTEE,
        spares=None if entitlement is Entitlement.GUARANTEE else job.paused_for,
        within=within,
    )
