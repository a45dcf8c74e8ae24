"""The next instant at which time alone could change a plan: a protection or limit ends, or amounts change."""

from __future__ import annotations

from collections.abc import Iterable

from ..eviction.quarantine import kept_until, quarantine_at
from ..model import MS_PER_S, Job, JobState, Node, Notebook, Policy, Reservation
from ..queue.job_queue import WaitingJobs
from ..quota.in_force import next_change_at
from .elastic import may_grow_at
from .lending import release_at


def next_wakeup(
    jobs: Iterable[Job],
    notebooks: Iterable[Notebook],
    nodes: Iterable[Node],
    policy: Policy,
    now: int,
    *,
    wanted: bool,
    queues: Iterable[WaitingJobs] = (),
    reservations: Iterable[Reservation] = (),
) -> int | None:
    """The first of these instants after ``now``; None where there is none.

    ``jobs``: without those of the ``queues``, of which the next one to have waited for the patience counts.
    ``wanted``: some work wants more than it has, so that other amounts would matter; they matter for a drain, too.
    """
    found = _of_jobs(jobs, policy, now)
    found += [at for notebook in notebooks if (at := release_at(notebook, policy)) is not None]
    found += [node.drain_by_at for node in nodes if node.drain_by_at is not None]
    for starts_at in (one.starts_at for one in reservations if one.starts_at is not None):
        found += [starts_at, starts_at - policy.preemption.grace_s * MS_PER_S]
    found += [kept_until(one, policy) for one in reservations if one.starts_at is None]
    patience_ms = policy.patience_s * MS_PER_S
    submitted = (queue.first_submitted_after(now - patience_ms) for queue in queues)
    found += [at + patience_ms for at in submitted if at is not None]
    boundary = next_change_at(policy, now) if wanted or policy.drain_by_at is not None else None
    found += [at for at in (boundary, policy.drain_by_at) if at is not None]
    return min((at for at in found if at > now), default=None)


_RUNNING = JobState.RUNNING


def _of_jobs(jobs: Iterable[Job], policy: Policy, now: int) -> list[int]:
    """The instants at which these jobs need a decision; of the ends of limits and of minimum run times the next one."""
    found, first = list[int](), None
    min_runtime_ms, per_ms = policy.preemption.min_runtime_s * MS_PER_S, policy.preemption.per_s * MS_PER_S
    for job in jobs:
        started_at = job.started_at
        if job.paused_at:
            found += [at + per_ms for at in job.paused_at]
        if job.state is _RUNNING and started_at is not None:
            for at in (started_at + min_runtime_ms, started_at + job.time_limit_s * MS_PER_S):
                if now < at and (first is None or at < first):
                    first = at
            if job.min_ranks is not None and (grows := may_grow_at(job, policy)) is not None:
                found.append(grows)
        elif (quarantined_at := quarantine_at(job, policy)) is not None:
            found.append(quarantined_at)
    return found if first is None else [*found, first]
