"""The possible victims: preemptible running work, in which projects, and when it is protected.

A project's lists of victims are made when a preemptor first reads them: in most ticks none does, and building them
would be a large part of the cost of reading a pool. :mod:`.candidates` chooses among them, :mod:`.rules` compares.
Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby

from ..model import MS_PER_S, Job, Policy
from ..placement.place import request_of
from ..queue.job_class import is_exhausted
from ..queue.job_queue import ClassQueue
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState, Running, Victim


def victim_scope(project: QuotaState, queue: ClassQueue, entitlement: Entitlement) -> QuotaState | None:
    """The project or department that all victims must belong to; None for any.

    Above the fair share a job takes from its own project only, and so does a job of a project with weight 0 or a
    non-preemptible one above its guarantee. At a limit a job takes from the work under that limit only.
    """
    if entitlement is Entitlement.SURPLUS or (
        entitlement is Entitlement.FAIR and (project.weight == 0 or not queue.job_class.preemptible)
    ):
        return project
    for level in project.levels:
        if level.use + level.leaving + queue.size > level.ceiling:
            return level
    return None


def is_protected(policy: Policy, job: Job, started_at: int, now: int) -> bool:
    """Whether a job is within its minimum run time, or has used up its pauses. Rule R53."""
    return now - started_at < policy.preemption.min_runtime_s * MS_PER_S or is_exhausted(policy, job, now)


def may_restart(project: QuotaState, user: str, *, less: int = 0) -> bool:
    """Whether a job with reserved devices could start again: its project is known, and no limit or ceiling forbids it.

    ``less``: the milli-GPU that it gives up.
    """
    return project.known and all(
        level.use_before_plan - less <= level.ceiling
        and level.by_user_before_plan.get(user, 0) - less <= level.user_ceiling
        for level in project.levels
    )


def newest_above(reserved: Iterable[Victim], above: Callable[[QuotaState], int]) -> list[Victim]:
    """The reservations that are above a bound, the newest first: an older one is not, if later ones are all of that.

    ``above``: the milli by which the use of a project is above the bound.
    """
    found, later = list[Victim](), Counter[QuotaState]()
    for _, rows in groupby(sorted(reserved, key=lambda one: -one.started_at), key=lambda one: one.started_at):
        together = list(rows)
        found += [one for one in together if above(one.project) > later[one.project]]
        for one in together:
            later[one.project] += one.size
    return found


def has_protected(pool: PoolState) -> bool:
    """Whether any running job of a pool is protected now."""
    if pool.has_protected is None:
        policy, now = pool.policy, pool.now
        pool.has_protected = any(
            is_protected(policy, one.job, now if one.job.started_at is None else one.job.started_at, now)
            for one in pool.running.values()
        )
    return pool.has_protected


def make_victims(policy: Policy, now: int, project: QuotaState) -> None:
    """Fill a project's lists of victims, each in order."""
    usual, protected, surplus = project.victims, project.protected_victims, project.elastic_surplus
    gone = project.not_listed
    for running in project.running:
        for victim in parts_of(policy, now, project, running):
            if gone and victim.key in gone:
                continue
            if victim.base is not None:
                surplus.append(victim)
            elif victim.protected:
                protected.append(victim)
            else:
                usual.append(victim)
    for rows in (usual, protected, surplus):
        rows.sort(key=lambda victim: victim.order)


def parts_of(policy: Policy, now: int, project: QuotaState, running: Running) -> list[Victim]:
    """A running job; an elastic job above its minimum as two: the minimum, and what it has above. Made once."""
    known = project.parts_by_job
    found = known.get(running.id)
    if found is None:
        found = known[running.id] = _parts(policy, now, project, running)
    return found


def _parts(policy: Policy, now: int, project: QuotaState, running: Running) -> list[Victim]:
    job, pieces = running.job, running.pieces
    if job.min_ranks is None:
        return [victim_of(policy, now, project, running)]
    available = tuple(piece for piece in pieces if piece.gpu_milli)
    if running.size > sum(piece.gpu_milli for piece in available):  # a new size would lose all ranks elsewhere
        return [victim_of(policy, now, project, running._replace(pieces=available))]
    kept = sorted({piece.rank for piece in pieces})[: job.min_ranks]
    stays = tuple(piece for piece in pieces if piece.rank in kept)
    goes = tuple(piece for piece in pieces if piece.rank not in kept)
    if not goes or not may_restart(project, job.user, less=running.size - job.gpu_milli * len(kept)):
        return [victim_of(policy, now, project, running)]
    base = victim_of(policy, now, project, running._replace(pieces=stays, size=job.gpu_milli * len(kept)))
    above = victim_of(policy, now, project, running._replace(pieces=goes, size=running.size - base.size))
    above.base, base.above = base, above
    return [base, above]


def victim_of(policy: Policy, now: int, project: QuotaState, running: Running) -> Victim:
    job = running.job
    started_at = now if job.started_at is None else job.started_at
    return Victim(
        id=job.id,
        project=project,
        user=job.user,
        size=running.size,
        pieces=running.pieces,
        request=request_of(job, job.held_ranks or job.ranks),
        elastic=job.min_ranks is not None,
        preemptible=job.preemptible,
        priority=job.priority,
        lost_ms=max(0, job.unsaved_ms(now)),
        started_at=started_at,
        submitted_at=job.submitted_at,
        paused_at=job.paused_at[-1] if job.paused_at else -1,
        borrower=job.borrower,
        protected=is_protected(policy, job, started_at, now),
    )
