"""Elastic jobs: they grow into devices that no other work needs, and shrink before any job is paused.

A change of size is a pause and a start on devices that are reserved for the job itself; no limit of pauses counts it.
Source: docs/scheduling.md, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model import MS_PER_S, Job, JobState, Policy
from ..placement.place import Fit, Piece, occupy, place, request_of
from ..preemption.rules import Preemptor
from ..preemption.search.find import find_shrinks
from ..queue.job_class import class_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState, Victim
from . import reasons
from .plan_builder import PlanBuilder

GRACES_BEFORE_GROWTH = 10
"""A running job grows after it has run for this many graces, so that it gains more than a restart costs."""


def grow(pool: PoolState, builder: PlanBuilder) -> None:
    """Give the devices that are left free to elastic jobs: those that start now, then those that run.

    Rule R49.
    """
    _grow_starts(pool, builder)
    if not pool.has_elastic:
        return
    elastic = [one.job for one in pool.running.values() if one.job.min_ranks is not None]
    jobs = {job.id: job for job in elastic}
    owners = {pool.project(job.project) for job in jobs.values()}
    running = [(jobs[one.id], one) for owner in owners for one in owner.victims if one.id in jobs]
    for job, base in sorted(running, key=lambda row: (row[0].submitted_at, row[0].id)):
        pieces = (*base.pieces, *(base.above.pieces if base.above else ()))
        is_whole = len({piece.rank for piece in pieces}) == job.held_ranks
        if not is_whole or not _may_restart(pool, job, base):
            continue
        larger = [*pieces, *_more(pool, job, pieces)]
        larger += _more_from_others(pool, builder, job, larger)
        if len(larger) > len(pieces):
            builder.restart(job.id, tuple(larger), reasons.grown(pool, job, larger))


def _grow_starts(pool: PoolState, builder: PlanBuilder) -> None:
    """Extend the elastic jobs that start now: each within its project's guarantee, then all into what is left.

    A job whose pauses are used up gets none of the rest: no other work could take it back (R54).
    """
    pieces = {job.id: (job, list(found)) for job, found in builder.started_elastic()}
    for within_guarantee in (True, False):
        for job, found in pieces.values():
            if not within_guarantee and class_of(pool, job).exhausted:
                continue
            if more := _more(pool, job, found, within_guarantee=within_guarantee):
                found += more
                builder.extend_start(job, tuple(found))


def may_grow_at(job: Job, policy: Policy) -> int | None:
    """When a running job could grow if there were room; None for one that is not elastic or has all its ranks."""
    if job.min_ranks is None or job.held_ranks in (None, job.ranks) or job.started_at is None:
        return None
    return job.started_at + GRACES_BEFORE_GROWTH * policy.preemption.grace_s * MS_PER_S


def _may_restart(pool: PoolState, job: Job, base: Victim) -> bool:
    ran_ms = pool.now - base.started_at
    long_enough = ran_ms >= GRACES_BEFORE_GROWTH * pool.policy.preemption.grace_s * MS_PER_S
    whole = base.above is None or base.above in base.project.elastic_surplus
    return long_enough and whole and job.state is JobState.RUNNING


def _more(pool: PoolState, job: Job, pieces: Iterable[Piece], *, within_guarantee: bool = False) -> list[Piece]:
    """Pieces for further ranks, one rank after the other, until the job has all or no room is left."""
    ranks, project = {piece.rank for piece in pieces}, pool.project(job.project)
    more: list[Piece] = []
    request = request_of(job, 1)
    while len(ranks) < job.ranks and _may_use_more(project, job):
        if within_guarantee and project.use + job.gpu_milli > project.guarantee:
            break
        fit = place(pool.ledger, request)
        if not isinstance(fit, Fit):
            break
        rank = max(ranks) + 1
        found = [piece._replace(rank=rank) for piece in fit.pieces]
        occupy(pool.ledger, found, borrowed=False)
        project.add(job.gpu_milli, job.user, preemptible=job.preemptible)
        ranks.add(rank)
        more += found
    return more


def _more_from_others(pool: PoolState, builder: PlanBuilder, job: Job, pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces for further ranks within the project's guarantee, from what elastic jobs of others run with above theirs.

    Rule R50.
    """
    ranks, project = {piece.rank for piece in pieces}, pool.project(job.project)
    more: list[Piece] = []
    while len(ranks) < job.ranks and project.use + job.gpu_milli <= project.guarantee and _may_use_more(project, job):
        preemptor = Preemptor(
            id=job.id,
            project=project,
            user=job.user,
            request=request_of(job, 1),
            entitlement=Entitlement.GUARANTEE,
            priority=job.priority,
            preemptible=job.preemptible,
        )
        mark = pool.ledger.mark()
        found = find_shrinks(pool, preemptor)
        if found is None:
            break
        if not found.victims:  # it would wait for devices that other work leaves
            pool.ledger.undo(mark)
            project.remove(job.gpu_milli, job.user, preemptible=job.preemptible)
            break
        builder.shrink(found)
        rank = max(ranks) + 1
        more += [piece._replace(rank=rank) for piece in found.pieces]
        ranks.add(rank)
    return more


def _may_use_more(project: QuotaState, job: Job) -> bool:
    fits_user = project.ceiling_test(job.gpu_milli)
    fits_quota = job.preemptible or project.fits_non_preemptible(job.gpu_milli)
    return fits_quota and not project.at_limit(job.gpu_milli) and (fits_user is None or fits_user(job.user))
