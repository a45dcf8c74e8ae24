"""The binding reasons of waiting jobs as they are shown: those of the plan, in view of the jobs beside them.

A job behind jobs of its own project with a higher priority has that reason. A planned start is a bound only if no
waiting job of its project, no job that has yet to start, no notebook quota and no calendar window can delay it, either.
Source: docs/scheduling.md, sections 3 and 8.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..frozen import with_changes
from ..lifecycle import HOLDS_SLICE, RUNS
from ..model import NO_AMOUNTS, Job, Policy, Snapshot
from ..quota.in_force import in_force
from ..reasons import AboveFairShare, BehindHigherPriority, BehindOthers, NoFreeGpu, Reason, Waiting
from ..scheduling.decide import BackfillPlacement, Decision, decide_and_explain
from ..scheduling.reasons import MAX_NAMED

_ForRoom = AboveFairShare | NoFreeGpu | BehindOthers
"""Reasons of jobs that devices alone would start."""


@dataclass(slots=True, kw_only=True)
class _Queues:
    """The waiting jobs of each project in each pool that wait for devices, by priority."""

    ahead: dict[tuple[str, str], dict[int, list[Job]]] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Add a job that waits for devices."""
        self.ahead.setdefault((job.project, job.pool), defaultdict(list))[job.priority].append(job)

    def before(self, job: Job) -> Iterator[Job]:
        """The jobs of its project with a higher priority, in order."""
        of_project = self.ahead.get((job.project, job.pool), {})
        for priority in sorted(of_project, reverse=True):
            if priority > job.priority:
                yield from sorted(of_project[priority], key=lambda one: (one.submitted_at, one.id))


def decide_with_reasons(snapshot: Snapshot, policy: Policy) -> Decision:
    """The decision with the reasons as they are shown, everywhere alike."""
    decision = decide_and_explain(snapshot, policy)
    return replace(decision, waits=binding_reasons(snapshot, policy, decision))


def binding_reasons(snapshot: Snapshot, policy: Policy, decision: Decision) -> Mapping[str, Reason]:
    """The reasons of a decision, refined for jobs behind their own project's, notebooks without room, planned starts.

    Rule R79.
    """
    jobs, queues = {job.id: job for job in snapshot.jobs}, _Queues()
    for name, reason in decision.waits.items():
        if isinstance(reason, Waiting) and name in jobs:
            queues.add(jobs[name])
    refined: dict[str, Reason] = dict(decision.waits)
    for name, reason in decision.waits.items():
        if isinstance(reason, _ForRoom) and reason.within_s is None and name in jobs:
            refined[name] = _behind_own_project(jobs[name], reason, queues)
        elif isinstance(reason, NoFreeGpu) and name not in jobs:
            refined[name] = _of_notebook(snapshot, policy, name, reason)
    for reserved in decision.backfill:
        why = refined.get(reserved.workload)
        if isinstance(why, Waiting) and why.delaying == 0:
            refined[reserved.workload] = _estimated(snapshot, policy, reserved, jobs[reserved.workload], why)
    return refined


def _behind_own_project(job: Job, reason: _ForRoom, queues: _Queues) -> Reason:
    """Behind the jobs of its project with a higher priority that wait for devices, too; else the same reason."""
    before = list(queues.before(job))
    if not before:
        return reason
    return BehindHigherPriority(
        project=reason.project,
        asked_milli=reason.asked_milli,
        used_milli=reason.used_milli,
        guarantee_milli=reason.guarantee_milli,
        fair_milli=reason.fair_milli,
        others_milli=reason.others_milli,
        capacity_milli=reason.capacity_milli,
        ahead=len(before),
        workloads=tuple(one.id for one in before[:MAX_NAMED]),
    )


def _of_notebook(snapshot: Snapshot, policy: Policy, notebook: str, reason: NoFreeGpu) -> Reason:
    """The reason of a notebook without room, with the notebook quota of its project instead of a limit for jobs."""
    pool = next(one.pool for one in snapshot.notebooks if one.id == notebook)
    owners = (one for one in in_force(policy, snapshot.now).projects if one.name == reason.project)
    amounts = next((one.amounts.get(pool) for one in owners), None) or NO_AMOUNTS
    return with_changes(reason, limit_milli=None, notebook_milli=amounts.notebook_milli, department=None)


# --- bounds ---------------------------------------------------------------------------------------------------------
def _estimated(snapshot: Snapshot, policy: Policy, reserved: BackfillPlacement, job: Job, why: Reason) -> Reason:
    """The reason as an estimate if anything can still delay the planned start."""
    found = sorted(
        {
            *_below_the_same_bounds(snapshot, policy, job),
            *_yet_to_start(snapshot, reserved),
            *_with_unbooked_slices(snapshot, policy, job),
            *_with_claims(snapshot, policy, job, why),
            *_with_other_amounts(snapshot, policy, reserved),
        }
    )
    if not found:
        return why
    return with_changes(why, delaying=len(found), delayed_by=tuple(found[:MAX_NAMED]))


def _below_the_same_bounds(snapshot: Snapshot, policy: Policy, job: Job) -> Iterator[str]:
    """Its project if other jobs of it wait, and the other projects below a limit or ceiling of its department."""
    if any(
        (one.project, one.pool) == (job.project, job.pool) and one.id != job.id and one.state not in RUNS
        for one in snapshot.jobs
    ):
        yield job.project
    departments = {project.name: project.department for project in policy.projects}
    for one in in_force(policy, snapshot.now).departments:
        amounts = one.amounts.get(job.pool) or NO_AMOUNTS
        if one.name == departments.get(job.project) and (amounts.limit_milli, amounts.user_jobs_milli) != (None, None):
            yield from (name for name, of in departments.items() if of == one.name and name != job.project)


def _yet_to_start(snapshot: Snapshot, reserved: BackfillPlacement) -> Iterator[str]:
    """The projects of jobs on the reserved devices whose time limit does not run yet."""
    devices = {part.device for part in reserved.placements}
    there = {one.workload for one in snapshot.allocations if one.device in devices}
    return (job.project for job in snapshot.jobs if job.id in there and job.started_at is None)


def _with_unbooked_slices(snapshot: Snapshot, policy: Policy, job: Job) -> Iterator[str]:
    """The projects that may book notebooks where a preemptible job is planned as a borrower."""
    if not job.preemptible:
        return
    booked = Counter[str]()
    for one in snapshot.notebooks:
        if one.pool == job.pool and one.state in HOLDS_SLICE:
            booked[one.project] += one.gpu_milli
    for project in in_force(policy, snapshot.now).projects:
        if (project.amounts.get(job.pool) or NO_AMOUNTS).notebook_milli > booked[project.name]:
            yield project.name


def _with_claims(snapshot: Snapshot, policy: Policy, job: Job, why: Reason) -> Iterator[str]:
    """The other projects that may come first where the job is above its project's quota.

    One with a training quota: its work may end, and its jobs claim the reserved devices while these are idle and those
    of the ended work are not. One with a weight, too, once its past use is no more than that of the job's project: that
    grows meanwhile if the project uses GPUs, or if its department does.
    """
    if not isinstance(why, Waiting) or why.used_milli + why.asked_milli <= why.guarantee_milli:
        return
    mine = {one.id for one in snapshot.jobs if (one.project, one.pool) == (job.project, job.pool)}
    by_past_use = policy.departments or any(one.workload in mine for one in snapshot.allocations)
    for project in in_force(policy, snapshot.now).projects:
        amounts = project.amounts.get(job.pool) or NO_AMOUNTS
        if project.name != job.project and (amounts.training_milli or (by_past_use and amounts.weight)):
            yield project.name


def _with_other_amounts(snapshot: Snapshot, policy: Policy, reserved: BackfillPlacement) -> Iterator[str]:
    """The owners whose amounts in the pool the calendar changes until the planned start."""
    now = in_force(policy, snapshot.now)
    instants = {at for one in policy.windows for at in (one.begins_at, one.ends_at)}
    for at in instants:
        if snapshot.now < at <= reserved.starts_at:
            then = in_force(policy, at)
            for before, after in (*zip(now.projects, then.projects, strict=True),):
                if before.amounts.get(reserved.pool) != after.amounts.get(reserved.pool):
                    yield before.name
            for one, other in (*zip(now.departments, then.departments, strict=True),):
                if one.amounts.get(reserved.pool) != other.amounts.get(reserved.pool):
                    yield one.name
