"""``decide``: who starts, who is asked to leave, and what is kept for whom, on one snapshot.

Each pool is decided for itself, in this order: who must leave anyway, reservations that no longer hold, notebooks
(admitted or refused), the division of the pool, slices, reservations whose devices are free, then the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..eviction.deadline import past_deadline
from ..eviction.unavailable_devices import as_leaving, awaited, must_leave
from ..model import Job, JobState, JobTarget, Placement, Policy, Snapshot
from ..placement.place import placements
from ..plan import Action, Plan, Reason, ReasonCode, Refuse, Stop, Unreserve
from ..queue.quota_state import SECOND
from .cache.decision_cache import Memory
from .cache.snapshot_index import Part
from .cycle import Round
from .plan_builder import Draft
from .read_pool import read_pool
from .shortage import waits_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlace:
    """What is kept for the first job of a pool that cannot start, and when it can, if nothing ends before its limit."""

    pool: str
    workload: str
    placements: tuple[Placement, ...]
    starts_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A plan, why each job that waits in it waits, and the places that are kept: at most one in each pool."""

    plan: Plan
    waits: Mapping[str, Reason] = field(default_factory=dict)
    kept: tuple[KeptPlace, ...] = ()


def decide(snapshot: Snapshot, policy: Policy, memory: Memory | None = None) -> Plan:
    """The actions of one tick. Pure: equal snapshots and policies give equal plans, in whatever order rows come.

    Takes a coherent snapshot (ids are unique, an allocation names a workload and a device that exist).
    Returns stops, refusals, starts, and pauses, each pause followed by the reservation it makes room for. ``memory`` is
    what the decide before left there: it saves work and changes no plan. Source: docs/scheduling.md.
    """
    plan, drafts = _decide(snapshot, policy, memory or Memory(lasts=False))
    for draft in drafts:
        draft.pool.throw_away()
    return plan


def decide_and_explain(snapshot: Snapshot, policy: Policy) -> Decision:
    """The same plan, with the binding reason of everything that waits."""
    plan, drafts = _decide(snapshot, policy, Memory(lasts=False))
    jobs, waits = {job.id: job for job in snapshot.jobs}, dict[str, Reason]()
    for draft in drafts:
        waits |= waits_of(draft, jobs)
    waits |= awaited(snapshot, waits)
    kept = tuple(
        KeptPlace(
            pool=draft.pool.name,
            workload=draft.kept.job,
            placements=placements(draft.pool.ledger, draft.kept.pieces),
            starts_at=draft.kept.starts_at,
        )
        for draft in drafts
        if draft.kept is not None
    )
    return Decision(plan=plan, waits=waits | _wait_nowhere(snapshot, policy), kept=kept)


def _decide(snapshot: Snapshot, policy: Policy, memory: Memory) -> tuple[Plan, list[Draft]]:
    policy = memory.follow(snapshot, policy)
    nowhere, unsettled = memory.parts.nowhere, memory.unsettled()
    holding = replace(snapshot, jobs=tuple(memory.holding()))
    stops = [stop for job in holding.jobs if (stop := _stop(job, snapshot.now, policy)) is not None]
    stops.sort(key=lambda stop: stop.workload)
    stopping = {stop.workload for stop in stops}
    sick = must_leave(holding, policy, stopping)
    late = past_deadline(holding, policy, {stop.workload for stop in (*stops, *sick)})
    leaving = {job.id: job for job in as_leaving(holding, [*sick, *late]).jobs} if sick or late else {}
    actions: list[Action] = [*_reserved_nowhere(nowhere), *stops, *sick, *late, *_refuse_nowhere(nowhere)]
    drafts = [Round(read_pool(part, memory.parts, snapshot, policy, stopping, leaving)).run() for part in unsettled]
    for part, draft in zip(unsettled, drafts, strict=True):
        found = draft.actions()
        memory.note(part, policy, snapshot.nodes, idle=not found)
        actions += found
    return Plan(seen_version=snapshot.version, now=snapshot.now, actions=tuple(actions)), drafts


def _stop(job: Job, now: int, policy: Policy) -> Stop | None:
    if job.state not in _HOLDS:
        return None
    ran_ms = 0 if job.started_at is None else now - job.started_at
    if ran_ms < job.time_limit_s * SECOND and job.target not in _STOPS:
        return None
    grace_s = policy.preemption.lent_grace_s if job.borrower else policy.preemption.grace_s
    code = _STOPS.get(job.target)
    if code is not None:
        reason = Reason(code=code, figures=(("user", job.user), ("grace_s", grace_s)))
        return Stop(workload=job.id, target=job.target, grace_s=grace_s, reason=reason)
    figures = (("ran_s", ran_ms // SECOND), ("time_limit_s", job.time_limit_s), ("grace_s", grace_s))
    reason = Reason(code=ReasonCode.TIME_LIMIT, figures=figures)
    return Stop(workload=job.id, target=JobTarget.FAILED, grace_s=grace_s, reason=reason)


_HOLDS = frozenset({JobState.STARTING, JobState.RUNNING})
_STOPS = {
    JobTarget.HELD: ReasonCode.HELD_BY_PERSON,
    JobTarget.CANCELLED: ReasonCode.CANCELLED_BY_PERSON,
    JobTarget.FAILED: ReasonCode.RANK_FAILED,
}


def _refuse_nowhere(nowhere: Part) -> list[Refuse]:
    """Requests of notebooks for a pool that does not exist."""
    lost = [book for book in nowhere.notebooks if book.state == "requested"]
    lost.sort(key=lambda notebook: (notebook.requested_at, notebook.id))
    return [
        Refuse(workload=notebook.id, reason=Reason(code=ReasonCode.NO_SUCH_POOL, figures=(("pool", notebook.pool),)))
        for notebook in lost
    ]


def _reserved_nowhere(nowhere: Part) -> list[Unreserve]:
    """Reservations of workloads that are in no pool any more: gone from the snapshot, or with their pool."""
    gone = sorted({reservation.workload for reservation in nowhere.reservations})
    return [Unreserve(workload=name, reason=Reason(code=ReasonCode.CLAIM_ENDED)) for name in gone]


def _wait_nowhere(snapshot: Snapshot, policy: Policy) -> dict[str, Reason]:
    pools = set(policy.pools)
    reason = ReasonCode.NO_SUCH_POOL
    return {
        job.id: Reason(code=reason, figures=(("pool", job.pool),)) for job in snapshot.jobs if job.pool not in pools
    }
