"""The reasons that ``decide`` gives, each with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..backfill.planned_start import OverdueJob, delaying_projects
from ..backfill.reservation import BackfillReservation, fits_beside_guarantees
from ..frozen import with_changes
from ..model import MS_PER_S, Job, Notebook, NotebookState, Policy
from ..placement.place import Piece, request_of
from ..preemption.result import Preemption
from ..preemption.rules import Preemptor
from ..queue.job_queue import ClassQueue, MakeReason
from ..queue.pool_state import PoolState, could_start_alone, wanted_by_project
from ..queue.quota_state import NO_LIMIT, Entitlement, QuotaState, Victim
from ..reason_codes import ReasonCode
from ..reasons import (
    AboveFairShare,
    AboveLimit,
    AboveTrainingQuota,
    AboveUserCeiling,
    BackfillReserved,
    BehindOthers,
    BehindOverdueJob,
    BorrowerReturns,
    BorrowsNotebookQuota,
    BorrowsReservedDevices,
    FairShareReclaimed,
    Grown,
    IdleSurplus,
    Moved,
    NeverFits,
    NoFreeGpu,
    NonPreemptibleWithinQuota,
    NoSuchProject,
    PausesUsedUp,
    PreemptedInProject,
    Reason,
    Reclaimed,
    ReservationBegins,
    Shrunk,
    VictimsProtected,
    Waiting,
    WaitsForDrain,
    WithinFairShare,
    WithinGuarantee,
    WithinNotebookQuota,
)

_Pause = Reclaimed | FairShareReclaimed | PreemptedInProject | BorrowerReturns
CanBeReserved = Waiting | PausesUsedUp | WaitsForDrain | AboveLimit | AboveTrainingQuota | AboveUserCeiling
"""Reasons of a job that may have a backfill reservation."""

MAX_NAMED = 3
"""A reason names at most this many projects."""


_STARTED: dict[Entitlement, type[WithinGuarantee | WithinFairShare | IdleSurplus]] = {
    Entitlement.GUARANTEE: WithinGuarantee,
    Entitlement.FAIR: WithinFairShare,
    Entitlement.SURPLUS: IdleSurplus,
}


def started(
    project: QuotaState, size: int, counted: int, entitlement: Entitlement, *, preemptible: bool, borrowed: bool
) -> Reason:
    """Why a job starts. ``counted`` is what of its size the project's use does not count yet."""
    if not preemptible and entitlement is not Entitlement.GUARANTEE:
        return NonPreemptibleWithinQuota(
            project=project.name,
            asked_milli=size,
            used_milli=project.use + counted - size,
            non_preemptible_milli=project.non_preemptible_use + counted - size,
            quota_milli=project.quota,
        )
    kind = BorrowsNotebookQuota if borrowed else _STARTED[entitlement]
    return kind(
        project=project.name,
        asked_milli=size,
        used_milli=project.use + counted - size,
        guarantee_milli=project.guarantee,
        fair_milli=project.entitled,
    )


def slice_started(pool: PoolState, notebook: Notebook) -> Reason:
    project = pool.project(notebook.project)
    return WithinNotebookQuota(
        project=project.name,
        asked_milli=notebook.gpu_milli,
        used_milli=project.booked - notebook.gpu_milli,
        quota_milli=project.notebook_quota,
        was="lent" if notebook.state is NotebookState.LENT else None,
    )


def paused(pool: PoolState, preemption: Preemption, victim: Victim, grace_s: int) -> Reason:
    """Why a running job is paused: preemptor, rule and figures."""
    preemptor, owner = preemption.preemptor, victim.project
    project, kind = preemptor.project, _pause_kind(preemptor, victim)
    reason = kind(
        preemptor=preemptor.id,
        preemptor_project=project.name,
        asked_milli=preemptor.request.size,
        preemptor_used_milli=preemption.used[project.name],
        preemptor_guarantee_milli=project.guarantee,
        preemptor_fair_milli=project.entitled,
        project=owner.name,
        used_milli=preemption.used[owner.name],
        guarantee_milli=owner.guarantee,
        fair_milli=owner.entitled,
        priority=victim.priority,
        preemptor_priority=preemptor.priority,
        grace_s=grace_s,
    )
    if not victim.protected or kind is BorrowerReturns:
        return reason
    # a claim within a guarantee sets the protection aside where nothing else satisfies it
    rules, ran_s = pool.policy.preemption, (pool.now - victim.started_at) // MS_PER_S
    if ran_s < rules.min_runtime_s:
        return with_changes(reason, ran_s=ran_s, min_runtime_s=rules.min_runtime_s)
    return with_changes(reason, max_pauses=rules.max_pauses, per_s=rules.per_s)


def _pause_kind(preemptor: Preemptor, victim: Victim) -> type[_Pause]:
    if victim.borrower and preemptor.entitlement is Entitlement.NOTEBOOK:
        return BorrowerReturns
    if victim.project is preemptor.project and preemptor.entitlement is not Entitlement.NOTEBOOK:
        return PreemptedInProject
    return Reclaimed if preemptor.entitlement <= Entitlement.GUARANTEE else FairShareReclaimed


def shrunk(preemption: Preemption, above: Victim, grace_s: int) -> Reason:
    preemptor, base = preemption.preemptor, above.base
    return Shrunk(
        preemptor=preemptor.id,
        preemptor_project=preemptor.project.name,
        asked_milli=preemptor.request.size,
        project=above.project.name,
        given_milli=above.size,
        kept_milli=base.size if base else 0,
        grace_s=grace_s,
    )


def moved(preemption: Preemption, victim: Victim, grace_s: int) -> Reason:
    preemptor = preemption.preemptor
    return Moved(
        preemptor=preemptor.id,
        preemptor_project=preemptor.project.name,
        asked_milli=preemptor.request.size,
        project=victim.project.name,
        grace_s=grace_s,
    )


def grown(pool: PoolState, job: Job, pieces: Sequence[Piece]) -> Reason:
    size = sum(piece.gpu_milli for piece in pieces)
    return Grown(
        project=job.project,
        given_milli=size - job.held_milli,
        kept_milli=size,
        grace_s=pool.policy.preemption.grace_s,
    )


def reserved(preemptor: Preemptor, victims: Sequence[Victim], grace_s: int) -> Reason:
    """The work that must stop on the devices that are reserved for a claim."""
    return WaitsForDrain(
        project=preemptor.project.name,
        asked_milli=preemptor.request.size,
        leaving=sum([not victim.reserved for victim in victims]),
        grace_s=grace_s,
        took_over_from=tuple([victim.id for victim in victims if victim.reserved]),
    )


def waits_for_drain(pool: str, asked_milli: int, victims: Sequence[Victim]) -> Reason:
    """Devices are reserved for it, and other work on them is still stopping."""
    leaving = sum(not victim.reserved for victim in victims) if victims else None
    return WaitsForDrain(pool=pool, asked_milli=asked_milli, leaving=leaving)


_NO_ROOM: dict[ReasonCode, type[NoFreeGpu | AboveFairShare | VictimsProtected]] = {
    ReasonCode.NO_FREE_GPU: NoFreeGpu,
    ReasonCode.ABOVE_FAIR_SHARE: AboveFairShare,
    ReasonCode.VICTIMS_PROTECTED: VictimsProtected,
}


def no_room(project: QuotaState, size: int, code: ReasonCode, used: int) -> Reason:
    """Why a job finds no room now. ``used``: what its project used when that was found."""
    if code is ReasonCode.ABOVE_LIMIT:
        return _above_limit(project, size, used)
    limited = project.limit != NO_LIMIT
    return _NO_ROOM[code](
        project=project.name,
        asked_milli=size,
        used_milli=used,
        guarantee_milli=project.guarantee,
        fair_milli=project.entitled,
        limit_milli=project.limit if limited else None,
        notebook_milli=project.limit - project.ceiling if limited else None,
        department=project.name if limited and project.is_department else None,
    )


def _above_limit(project: QuotaState, size: int, used: int) -> Reason:
    """Above the limit of its project, or of its department where only that one forbids it."""
    limited = (level for level in project.levels if level.limit != NO_LIMIT)
    level = next((one for one in limited if one.use + one.leaving + size > one.ceiling), project)
    reason = AboveLimit(
        project=project.name,
        asked_milli=size,
        used_milli=level.use if level.is_department else used,
        guarantee_milli=project.guarantee,
        fair_milli=project.entitled,
    )
    return _with_limit(reason, level) if level.limit != NO_LIMIT else reason


def _with_limit(reason: AboveLimit, level: QuotaState) -> Reason:
    """With the limit of a project or its department, and the part of it that is reserved for notebooks."""
    return with_changes(
        reason,
        limit_milli=level.limit,
        notebook_milli=level.limit - level.ceiling,
        department=level.name if level.is_department else None,
    )


def above_training_quota(project: QuotaState, size: int, used: int) -> Reason:
    """A non-preemptible job must fit inside the training quota, of which so much is used, whatever else is idle."""
    return AboveTrainingQuota(project=project.name, asked_milli=size, used_milli=used, quota_milli=project.quota)


def above_user_ceiling(project: QuotaState, size: int, user: str) -> Reason:
    """A user's jobs are at the ceiling that the project, or its department, has for each user."""
    above = (level for level in project.levels if level.by_user.get(user, 0) + size > level.user_ceiling)
    level = next(above, project)
    return _user_ceiling(level, user, size, level.by_user.get(user, 0), level.user_ceiling)


def above_user_notebooks(project: QuotaState, notebook: Notebook, used_milli: int) -> Reason:
    """A user's notebooks are at the ceiling that a project or department has for each user."""
    return _user_ceiling(project, notebook.user, notebook.gpu_milli, used_milli, project.user_notebooks)


def _user_ceiling(project: QuotaState, user: str, asked: int, used: int | None, ceiling: int) -> Reason:
    """``used``: None where it does not matter, because the ceiling is below the request."""
    return AboveUserCeiling(
        project=f"department {project.name}" if project.is_department else project.name,
        user=user,
        asked_milli=asked,
        used_milli=used,
        ceiling_milli=ceiling,
    )


def pauses_used_up(project: QuotaState, size: int, used: int, policy: Policy) -> Reason:
    """Its pauses are used up, so it starts only where no guarantee can reclaim its devices."""
    return PausesUsedUp(
        project=project.name,
        asked_milli=size,
        used_milli=used,
        guarantee_milli=project.guarantee,
        fair_milli=project.entitled,
        max_pauses=policy.preemption.max_pauses,
        per_s=policy.preemption.per_s,
    )


def behind_others(project: QuotaState, size: int) -> Reason:
    """No rule forbids the start; other jobs come first."""
    return BehindOthers(
        project=project.name,
        asked_milli=size,
        used_milli=project.use,
        guarantee_milli=project.guarantee,
        fair_milli=project.entitled,
    )


def backfill_reserved(pool: PoolState, backfill: BackfillReservation, why: Reason) -> Reason:
    """Devices are reserved; ``within_s`` is the planned start. A reason other than ``NoFreeGpu`` stays."""
    if isinstance(why, NoFreeGpu):
        why = backfill_planned(backfill, pool.now)
    if isinstance(why, Waiting):
        found = delaying_projects(pool, backfill)
        why = with_changes(why, delaying=len(found), delayed_by=found[:MAX_NAMED])
    return with_changes(why, within_s=_until(backfill.starts_at, pool.now)) if isinstance(why, CanBeReserved) else why


def backfill_planned(backfill: BackfillReservation, now: int) -> Reason:
    """Why devices are reserved: the job starts there when the work has ended, within ``within_s``."""
    return BackfillReserved(
        project=backfill.project.name,
        asked_milli=sum(piece.gpu_milli for piece in backfill.pieces),
        used_milli=backfill.project.use,
        guarantee_milli=backfill.project.guarantee,
        fair_milli=backfill.project.entitled,
        within_s=_until(backfill.starts_at, now),
    )


def _until(at: int, now: int) -> int:
    """Seconds until an instant, rounded up."""
    return max(0, -(-(at - now) // MS_PER_S))


def beyond_guarantees(pool: PoolState, project: QuotaState, queue: ClassQueue, why: Reason) -> Reason:
    """The reason, with what the others want within their quotas, if the jobs of a class do not fit beside that.

    Such a job has no backfill reservation.
    """
    if not isinstance(why, Waiting) or fits_beside_guarantees(pool, project, queue.job_class.request):
        return why
    others = (one for one in pool.projects.values() if one is not project)
    training = sum(min(one.guarantee, wanted_by_project(one)) for one in others)
    notebooks = sum(max(one.notebook_quota, one.booked) for one in pool.projects.values())
    return with_changes(why, others_milli=training + notebooks, capacity_milli=sum(pool.ledger.capacity))


def may_wait_for_overdue_job(why: Reason) -> bool:
    """Whether a job that waits for this reason may be kept from the next devices by an overdue job."""
    has_no_room = isinstance(why, NoFreeGpu | AboveFairShare) and why.others_milli is None
    return has_no_room or isinstance(why, BehindOverdueJob)


def behind_overdue_job(pool: PoolState, project: QuotaState, size: int, overdue: OverdueJob) -> Reason:
    """An older job of the project waited long without ever starting: only jobs that end before it starts are served."""
    planned_s = _until(overdue.starts_at, pool.now)
    most_s = overdue.longest_time_limit_s(pool)
    return BehindOverdueJob(
        project=project.name,
        asked_milli=size,
        workload=overdue.job.id,
        waited_s=(pool.now - overdue.job.submitted_at) // MS_PER_S,
        planned_s=planned_s,
        most_s=most_s if most_s > 0 else None,
    )


def with_overdue_wait(pool: PoolState, overdue: OverdueJob, why: Reason) -> Reason:
    """The reason of an overdue job, with its wait and its planned start."""
    if not isinstance(why, Waiting):
        return why
    waited_s = (pool.now - overdue.job.submitted_at) // MS_PER_S
    return with_changes(why, waited_s=waited_s, planned_s=_until(overdue.starts_at, pool.now))


def reservation_begins(backfill: BackfillReservation, victim: Victim, grace_s: int) -> Reason:
    """Why a borrower of the backfill reservation stops: the planned start is one grace away."""
    project, owner = backfill.project, victim.project
    return ReservationBegins(
        preemptor=backfill.job,
        preemptor_project=project.name,
        asked_milli=backfill.queue.size,
        preemptor_used_milli=project.use,
        preemptor_guarantee_milli=project.guarantee,
        preemptor_fair_milli=project.entitled,
        project=owner.name,
        used_milli=owner.use,
        guarantee_milli=owner.guarantee,
        fair_milli=owner.entitled,
        priority=victim.priority,
        preemptor_priority=backfill.queue.job_class.priority,
        grace_s=grace_s,
    )


def borrows_reserved(project: QuotaState, size: int) -> Reason:
    """Why a job starts that its project's use does not count yet: as a borrower of the backfill reservation."""
    return BorrowsReservedDevices(
        project=project.name,
        asked_milli=size,
        used_milli=project.use,
        guarantee_milli=project.guarantee,
        fair_milli=project.entitled,
    )


def unstartable(pool: PoolState, job: Job) -> Reason:
    """Why a job could not start in the empty pool either."""
    project = pool.project(job.project)
    request = request_of(job, job.least_ranks)
    if not project.known:
        return NoSuchProject(project=job.project, pool=pool.name, asked_milli=request.size)
    short = next((level for level in project.levels if request.size > level.ceiling), None)
    if short is not None:
        return _with_limit(AboveLimit(project=job.project, pool=pool.name, asked_milli=request.size), short)
    lowest = min(project.levels, key=lambda level: level.user_ceiling)
    if request.size > lowest.user_ceiling:
        return _user_ceiling(lowest, job.user, request.size, None, lowest.user_ceiling)
    if could_start_alone(pool, project, request, preemptible=True):
        return above_training_quota(project, request.size, project.non_preemptible_use)
    return NeverFits(
        project=job.project,
        pool=pool.name,
        asked_milli=request.size,
        capacity_milli=sum(pool.ledger.capacity),
        ranks=request.ranks,
        possible_ranks=pool.empty.ranks(request) if request.gpu_milli > 0 else 0,
        gpu_model=", ".join(job.gpu_models) or None,
    )


def why_forbidden(
    pool: PoolState, project: QuotaState, queue: ClassQueue, entitlement: Entitlement
) -> MakeReason | None:
    """Why no job of a class may start: its training quota is used, or its pauses are used up above guarantee.

    Rule R54.
    """
    if not queue.job_class.preemptible and not project.fits_non_preemptible(queue.size):
        return partial(above_training_quota, project, queue.size, project.non_preemptible_use)
    if queue.job_class.exhausted and entitlement is not Entitlement.GUARANTEE:
        return partial(pauses_used_up, project, queue.size, project.use, pool.policy)
    return None
