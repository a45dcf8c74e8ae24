"""Where a job stands: within its project's quota, within its fair share or above it, and its project's past use."""

from __future__ import annotations

from fractions import Fraction

from ..model import Job
from ..steps import Ledger, Step


def within_guarantee(step: Step, job: Job) -> bool:
    """Within the quota in force; where that is not certain, within the most that it may be."""
    return _use_with(step, job) <= step.in_force(job.pool).most(job.project)


def surely_within_guarantee(step: Step, job: Job) -> bool:
    return _use_with(step, job) <= step.in_force(job.pool).least(job.project)


def within_fair(step: Step, job: Job) -> bool:
    quota = step.in_force(job.pool).most(job.project)
    return _use_with(step, job) <= max(quota, step.shares(job.pool).fair.get(job.project, 0))


def within_division(step: Step, job: Job) -> bool:
    """Whether a job is within what its project got by the division, whatever its quota (R5)."""
    return _use_with(step, job) <= step.shares(job.pool).fair[job.project]


def surely_within_fair(step: Step, job: Job) -> bool:
    """The same whether a notebook that waits is counted as booked, or as not yet."""
    quota = step.in_force(job.pool).least(job.project)
    fair = min(one.fair.get(job.project, 0) for one in (step.shares(job.pool), step.shares_with_requests(job.pool)))
    return _use_with(step, job) <= max(quota, fair)


def may_be_above_fair(step: Step, holder: Job) -> bool:
    """Whether a reservation's job may be above its fair share, before or after what the claims of the plan take."""
    return not (surely_within_fair(step, holder) and was_within_fair(step, holder))


def was_within_fair(step: Step, job: Job) -> bool:
    """The same before the plan."""
    fair = step.shares(job.pool).fair.get(job.project, 0)
    return was_within_guarantee(step, job) or _use_before_with(step, job) <= fair


def was_within_guarantee(step: Step, job: Job) -> bool:
    return _use_before_with(step, job) <= step.in_force(job.pool).most(job.project)


def _use_before_with(step: Step, job: Job) -> int:
    """The use of a job's project with it, before the plan."""
    return Ledger(step.before).use(job.pool).get(job.project, 0) + job.milli


def _use_with(step: Step, job: Job) -> int:
    """The use of a job's project with it; what this plan started before it counts, not what a claim takes (R37)."""
    claims = [one.ledger for one in step.claims if one.preemptor == job.id]
    ledger = claims[0] if claims else step.before_start.get(job.id, step.ledger)
    own = ledger.milli.get(job.id, 0)
    return ledger.use(job.pool).get(job.project, 0) - own + job.milli


def past(step: Step, job: Job) -> tuple[bool, Fraction]:
    """The past use per weight of a job's project; with weight 0 it is more than any with a weight."""
    weight = step.before.policy.project(job.project).of(job.pool).weight
    used = step.before.usage.get((job.project, job.pool), 0)
    return (not weight, Fraction(used, weight or 1))
