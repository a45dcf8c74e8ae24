"""Elastic jobs: they grow into devices that nobody else takes, and shrink before anybody is paused.

A change of size is a pause and a start on a place that is reserved for the job itself; it counts in no limit of pauses.
Source: docs/scheduling.md, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model import Job, JobState, Policy
from ..placement.place import Fit, Piece, occupy, place, request_of
from ..queue.pool_state import Pool
from ..queue.quota_state import SECOND, Holder, Standing
from . import reasons
from .plan_builder import Draft

GRACES_BEFORE_GROWTH = 10
"""A running job grows when it has run for so many graces, so that what it gains is more than what a restart costs."""


def grow(pool: Pool, draft: Draft) -> None:
    """Give what is free after everybody was served to elastic jobs: those that start now, then those that run."""
    for job, pieces in draft.started_elastic():
        more = _more(pool, job, pieces)
        if more:
            draft.extend_start(job, (*pieces, *more))
    for job, base in _running_elastic(pool):
        pieces = (*base.pieces, *(base.above.pieces if base.above else ()))
        if _may_restart(pool, job, base) and len({piece.rank for piece in pieces}) == job.held_ranks:
            more = _more(pool, job, pieces)
            if more:
                larger = (*pieces, *more)
                draft.restart(job.id, larger, reasons.grown(pool, job, larger))


def may_grow_at(job: Job, policy: Policy) -> int | None:
    """When a running job could grow if there were room; None for one that is not elastic or has all its ranks."""
    if job.min_ranks is None or job.held_ranks in (None, job.ranks) or job.started_at is None:
        return None
    return job.started_at + GRACES_BEFORE_GROWTH * policy.preemption.grace_s * SECOND


def _running_elastic(pool: Pool) -> list[tuple[Job, Holder]]:
    jobs = {one.job.id: one.job for one in pool.running if one.job.min_ranks is not None}
    owners = {pool.standing(job.project) for job in jobs.values()}
    found = [(jobs[one.id], one) for owner in owners for one in owner.holders if one.id in jobs]
    found.sort(key=lambda row: (row[0].submitted_at, row[0].id))
    return found


def _may_restart(pool: Pool, job: Job, base: Holder) -> bool:
    ran_ms = pool.now - base.started_at
    long_enough = ran_ms >= GRACES_BEFORE_GROWTH * pool.policy.preemption.grace_s * SECOND
    whole = base.above is None or base.above in base.project.surplus
    return long_enough and whole and job.state is JobState.RUNNING


def _more(pool: Pool, job: Job, pieces: Iterable[Piece]) -> list[Piece]:
    """Places for further ranks, one after the other, until the job has all or no room is left."""
    ranks, standing = {piece.rank for piece in pieces}, pool.standing(job.project)
    more: list[Piece] = []
    request = request_of(job, 1)
    while len(ranks) < job.ranks and _may_use(standing, job):
        fit = place(pool.ledger, request)
        if not isinstance(fit, Fit):
            break
        rank = max(ranks) + 1
        found = [piece._replace(rank=rank) for piece in fit.pieces]
        occupy(pool.ledger, found, lent=False)
        standing.add(job.gpu_milli, job.user, fixed=not job.preemptible)
        ranks.add(rank)
        more += found
    return more


def _may_use(standing: Standing, job: Job) -> bool:
    fits_user = standing.has_room_for(job.gpu_milli)
    fixed = job.preemptible or standing.fixed_fits(job.gpu_milli)
    return fixed and not standing.at_limit(job.gpu_milli) and (fits_user is None or fits_user(job.user))
