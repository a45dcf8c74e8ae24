"""The deadline of a drain: non-preemptible work above a lowered quota stops when it is reached.

Without a deadline such work ends by itself, and a raised quota is in force only as far as it has.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ..lifecycle import RUNS
from ..model import Amounts, Department, Job, JobTarget, Policy, Project, Snapshot
from ..plan import Stop
from ..quota.in_force import in_force
from ..reasons import DrainDeadline


def past_deadline(snapshot: Snapshot, policy: Policy, stopping: Collection[str]) -> list[Stop]:
    """A stop for each job that is above its quota past the deadline, in id order; they are queued again.

    The fewest of each project, then of each department: lowest job priority, least work lost, newest first.
    Rule R67.
    """
    if policy.drain_by_at is None or snapshot.now < policy.drain_by_at:
        return []
    runs = (job for job in snapshot.jobs if job.state in RUNS and job.target is JobTarget.RUNNING)
    running = [job for job in runs if not job.preemptible and job.id not in stopping]
    policy, found = in_force(policy, snapshot.now), list[Stop]()
    department_of = {row.name: row.department or "" for row in policy.projects}
    for pool in sorted({job.pool for job in running}):
        here = sorted((job for job in running if job.pool == pool), key=lambda job: _order(job, snapshot.now))
        stops = _above(here, lambda job: job.project, _quotas(policy.projects, pool), policy)
        gone, quotas = {stop.workload for stop in stops}, _quotas(policy.departments, pool)
        left = [job for job in here if job.id not in gone and department_of.get(job.project) in quotas]
        found += [*stops, *_above(left, lambda job: department_of[job.project], quotas, policy)]
    return sorted(found, key=lambda stop: stop.workload)


def above_at_deadline(snapshot: Snapshot, policy: Policy) -> tuple[str, ...]:
    """The jobs that the deadline would stop if nothing changed until then, by id; an admin is warned of them."""
    if policy.drain_by_at is None:
        return ()
    then = replace(snapshot, now=max(snapshot.now, policy.drain_by_at))
    return tuple(stop.workload for stop in past_deadline(then, policy, ()))


def _order(job: Job, now: int) -> tuple[int, int, int, int, str]:
    started_at = now if job.started_at is None else job.started_at
    return job.priority, job.unsaved_ms(now), -started_at, -job.submitted_at, job.id


def _quotas(owners: Iterable[Project | Department], pool: str) -> dict[str, int]:
    return {row.name: (row.amounts.get(pool) or Amounts()).training_milli for row in owners}


def _above(jobs: Iterable[Job], owner_of: Callable[[Job], str], quota: Mapping[str, int], policy: Policy) -> list[Stop]:
    by_owner: dict[str, list[Job]] = {}
    for job in jobs:
        by_owner.setdefault(owner_of(job), []).append(job)
    stops, grace_s = list[Stop](), policy.preemption.grace_s
    for owner, mine in sorted(by_owner.items()):
        used, own = sum(one.held_milli for one in mine), quota.get(owner, 0)
        for job in _fewest(mine, used - own):
            reason = DrainDeadline(project=owner, pool=job.pool, used_milli=used, quota_milli=own, grace_s=grace_s)
            stops.append(Stop(workload=job.id, target=JobTarget.PAUSED, grace_s=grace_s, reason=reason))
    return stops


def _fewest(jobs: Sequence[Job], over_milli: int) -> list[Job]:
    """The first jobs that add up to ``over_milli``, without those that are not needed for it."""
    chosen = list[Job]()
    for job in jobs:
        if sum(one.held_milli for one in chosen) < over_milli:
            chosen.append(job)
    for job in reversed(chosen):
        if sum(one.held_milli for one in chosen) - job.held_milli >= over_milli:
            chosen.remove(job)
    return chosen
