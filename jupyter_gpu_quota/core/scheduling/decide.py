"""``decide``: the plan for one snapshot: starts, stops, preemptions and reservations.

Each pool has its own scheduling cycle, in this order: evictions, reservations that no longer hold, notebooks (admitted
or refused), the division of the pool, slices, reservations whose devices are free, then the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ..eviction.deadline import past_deadline
from ..eviction.unavailable_devices import as_leaving, awaited, evictions
from ..model import Job, JobState, JobTarget, Placement, Policy, Snapshot
from ..placement.place import placements
from ..plan import Action, Plan, Refuse, Stop, Unreserve
from ..queue.quota_state import SECOND
from ..reasons import CancelledByPerson, ClaimEnded, HeldByPerson, NoSuchPool, RankFailed, Reason, TimeLimit
from .cache.decision_cache import DecisionCache
from .cache.snapshot_index import PoolSnapshot
from .cycle import SchedulingCycle
from .plan_builder import PlanBuilder
from .read_pool import read_pool
from .shortage import waits_of
from .wakeups import next_wakeup


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlacement:
    """The backfill reservation of a pool: for the first job that cannot start, from when by the running time limits."""

    pool: str
    workload: str
    placements: tuple[Placement, ...]
    starts_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A plan, the reason of each workload that waits, and the backfill reservations, at most one in each pool."""

    plan: Plan
    waits: Mapping[str, Reason] = field(default_factory=dict)
    backfill: tuple[BackfillPlacement, ...] = ()


def decide(snapshot: Snapshot, policy: Policy, cache: DecisionCache | None = None) -> Plan:
    """The actions of one tick. Pure: equal snapshots and policies give equal plans, in whatever order rows come.

    Takes a coherent snapshot (ids are unique, an allocation names a workload and a device that exist).
    Returns stops, refusals, starts, and pauses, each pause followed by the reservation it makes room for. ``cache``
    keeps the work of the decision before; it changes no plan. Source: docs/scheduling.md.
    """
    plan, builders = _decide(snapshot, policy, cache)
    for builder in builders:
        builder.pool.release_references()
    return plan


def decide_and_explain(snapshot: Snapshot, policy: Policy) -> Decision:
    """The same plan, with the binding reason of each workload that waits. Rule R65."""
    plan, builders = _decide(snapshot, policy, None)
    jobs, waits = {job.id: job for job in snapshot.jobs}, dict[str, Reason]()
    for builder in builders:
        waits |= waits_of(builder, jobs)
    waits |= awaited(snapshot, waits)
    backfill = tuple(
        BackfillPlacement(
            pool=builder.pool.name,
            workload=builder.backfill.job,
            placements=placements(builder.pool.ledger, builder.backfill.pieces),
            starts_at=builder.backfill.starts_at,
        )
        for builder in builders
        if builder.backfill is not None
    )
    return Decision(plan=plan, waits=waits | _wait_nowhere(snapshot, policy), backfill=backfill)


def _decide(snapshot: Snapshot, policy: Policy, cache: DecisionCache | None) -> tuple[Plan, list[PlanBuilder]]:
    read = cache or DecisionCache(enabled=False)
    policy = read.follow(snapshot, policy)
    nowhere, pools = read.index.nowhere, read.pools_to_decide()
    holding = replace(snapshot, jobs=tuple(read.holding()))
    stops, evicted = _stops(holding, policy), list[Stop]()
    stopping = {stop.workload for stop in stops}
    evicted += evictions(holding, policy, stopping)
    evicted += past_deadline(holding, policy, {stop.workload for stop in (*stops, *evicted)})
    leaving = {job.id: job for job in as_leaving(holding, evicted).jobs} if evicted else {}
    builders = [
        SchedulingCycle(read_pool(pool, read.index, snapshot, policy, stopping, leaving)).run() for pool in pools
    ]
    of_pools = [builder.actions() for builder in builders]
    if cache is not None:
        _note(cache, pools, of_pools, snapshot, policy)
    actions: list[Action] = [*_reserved_nowhere(nowhere), *stops, *evicted, *_refuse_nowhere(nowhere)]
    actions += chain.from_iterable(of_pools)
    return Plan(seen_version=snapshot.version, now=snapshot.now, actions=tuple(actions)), builders


def _note(
    cache: DecisionCache,
    pools: Sequence[PoolSnapshot],
    of_pools: Sequence[Sequence[Action]],
    snapshot: Snapshot,
    policy: Policy,
) -> None:
    """Record in the cache which pools have an empty plan, and when time alone could change it."""
    for pool, actions in zip(pools, of_pools, strict=True):
        jobs, wanted = chain(pool.busy.values(), pool.paused.values()), pool.wants_more()
        wakeup = next_wakeup(jobs, pool.notebooks, snapshot.nodes, policy, snapshot.now, wanted=wanted)
        cache.note(pool, idle=not actions, wakeup=wakeup)
    nowhere = cache.index.nowhere
    wakeup = next_wakeup(nowhere.busy.values(), (), (), Policy(revision=0), snapshot.now, wanted=False)
    cache.note(nowhere, idle=True, wakeup=wakeup)


def _stops(holding: Snapshot, policy: Policy) -> list[Stop]:
    """The jobs that a person stopped, that failed in one rank, or that reached their time limit, by id. Rule R9."""
    found = (_stop(job, holding.now, policy) for job in holding.jobs)
    return sorted((stop for stop in found if stop is not None), key=lambda stop: stop.workload)


def _stop(job: Job, now: int, policy: Policy) -> Stop | None:
    if job.state not in _HOLDS:
        return None
    ran_ms = 0 if job.started_at is None else now - job.started_at
    if ran_ms < job.time_limit_s * SECOND and job.target not in _STOPS:
        return None
    grace_s = policy.preemption.lent_grace_s if job.borrower else policy.preemption.grace_s
    kind = _STOPS.get(job.target)
    if kind is not None:
        return Stop(workload=job.id, target=job.target, grace_s=grace_s, reason=kind(user=job.user, grace_s=grace_s))
    reason = TimeLimit(ran_s=ran_ms // SECOND, time_limit_s=job.time_limit_s, grace_s=grace_s)
    return Stop(workload=job.id, target=JobTarget.FAILED, grace_s=grace_s, reason=reason)


_HOLDS = frozenset({JobState.STARTING, JobState.RUNNING})
_STOPS: dict[JobTarget, type[HeldByPerson | CancelledByPerson | RankFailed]] = {
    JobTarget.HELD: HeldByPerson,
    JobTarget.CANCELLED: CancelledByPerson,
    JobTarget.FAILED: RankFailed,
}


def _refuse_nowhere(nowhere: PoolSnapshot) -> list[Refuse]:
    """Requests of notebooks for a pool that does not exist."""
    lost = [book for book in nowhere.notebooks if book.state == "requested"]
    lost.sort(key=lambda notebook: (notebook.requested_at, notebook.id))
    return [Refuse(workload=notebook.id, reason=NoSuchPool(pool=notebook.pool)) for notebook in lost]


def _reserved_nowhere(nowhere: PoolSnapshot) -> list[Unreserve]:
    """Reservations of workloads that are in no pool any more: gone from the snapshot, or with their pool."""
    gone = sorted({reservation.workload for reservation in nowhere.reservations})
    return [Unreserve(workload=name, reason=ClaimEnded()) for name in gone]


def _wait_nowhere(snapshot: Snapshot, policy: Policy) -> dict[str, Reason]:
    pools = set(policy.pools)
    return {job.id: NoSuchPool(pool=job.pool) for job in snapshot.jobs if job.pool not in pools}
