"""``decide``: the plan for one snapshot: starts, stops, preemptions and reservations.

Each pool has its own scheduling cycle, in this order: evictions, invalid reservations, notebooks (admitted
or refused), the division of the pool, slices, reservations whose devices are free, then the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ..eviction.deadline import past_deadline
from ..eviction.unavailable_devices import as_pausing, awaited, evictions
from ..frozen import with_changes
from ..lifecycle import RUNS
from ..model import MS_PER_S, Job, JobTarget, NotebookState, Placement, Policy, Snapshot
from ..placement.place import Fit, Request, place, placements, request_of, reserve
from ..plan import Action, Plan, Refuse, Stop, Unreserve
from ..queue.pool_state import PoolState
from ..reasons import (
    CancelledByUser,
    ClaimEnded,
    HeldByUser,
    NeverFits,
    NoSuchPool,
    PausesUsedUp,
    RankFailed,
    Reason,
    TimeLimit,
    Waiting,
    WaitsForDrain,
)
from .cache.decision_cache import DecisionCache
from .cache.snapshot_index import PoolSnapshot
from .cycle import SchedulingCycle
from .early_stop import EarlyStop
from .plan_builder import PlanBuilder
from .read_pool import read_pool
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


class UndecidedPools(Exception):
    """A defect ended the cycle of a pool. ``plan`` has what was decided beside it: stops, and the other pools."""

    def __init__(self, plan: Plan, errors: Mapping[str, Exception]) -> None:
        each = "; ".join(f"{pool}: {type(error).__name__}: {error}" for pool, error in sorted(errors.items()))
        super().__init__(f"nothing starts in these pools, since a defect ends their decision: {each}")
        self.plan = plan


def decide(snapshot: Snapshot, policy: Policy, cache: DecisionCache | None = None) -> Plan:
    """The actions of one tick. Pure: equal snapshots and policies give equal plans, in whatever order rows come.

    Takes a coherent snapshot (ids are unique, an allocation names a workload and a device that exist).
    Returns stops, refusals, starts, and pauses, each pause followed by the reservation it makes room for. ``cache``
    reuses the work of the decision before; it changes no plan. Source: docs/scheduling.md.
    Raises UndecidedPools where a pool cannot be decided.
    """
    plan, builders = _decide(snapshot, policy, cache)
    for builder in builders:
        builder.release_references()
    return plan


def decide_about(snapshot: Snapshot, policy: Policy, cache: DecisionCache | None, early_stop: EarlyStop) -> Plan:
    """The plan of :func:`decide` up to where it is known whether the watched workload starts.

    Where ``early_stop.gave_up`` is set, it may start although the plan does not say so.
    """
    plan, builders = _decide(snapshot, policy, cache, early_stop)
    for builder in builders:
        builder.release_references()
    return plan


def decide_and_explain(snapshot: Snapshot, policy: Policy) -> Decision:
    """The plan of :func:`decide`, with the binding reason of each workload that waits. Rule R77."""
    plan, builders = _decide(snapshot, policy, None)
    jobs, waits = {job.id: job for job in snapshot.jobs}, dict[str, Reason]()
    for builder in builders:
        waits |= _waits(builder, jobs)
    kept = {one.id for builder in builders for one in builder.pool.reserved if one.id in builder.pool.incomplete}
    waits |= awaited(snapshot, waits, kept)
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
    pools = set(policy.pools)
    waits |= {job.id: NoSuchPool(pool=job.pool) for job in snapshot.jobs if job.pool not in pools}
    return Decision(plan=plan, waits=waits, backfill=backfill)


def _decide(
    snapshot: Snapshot, policy: Policy, cache: DecisionCache | None, early_stop: EarlyStop | None = None
) -> tuple[Plan, list[PlanBuilder]]:
    read = cache or DecisionCache(enabled=False)
    policy = read.follow(snapshot, policy)
    without_pool, pools = read.index.without_pool, read.pools_to_decide()
    holding = replace(snapshot, jobs=tuple(read.holding()))
    found = (_stop(job, snapshot.now, policy) for job in holding.jobs)
    stops, evicted = sorted(filter(None, found), key=lambda stop: stop.workload), list[Stop]()
    stopping = {stop.workload for stop in stops}
    evicted += evictions(holding, policy, stopping)
    evicted += past_deadline(holding, policy, {stop.workload for stop in (*stops, *evicted)})
    pausing = as_pausing(holding.jobs, evicted)
    builders, errors = dict[PoolSnapshot, PlanBuilder](), dict[str, Exception]()
    of_pools = list[list[Action]]()
    for pool in pools:
        try:
            builder = SchedulingCycle(
                read_pool(pool, read.index, snapshot, policy, stopping, pausing), early_stop
            ).run()
            of_pools.append(builder.actions())
            builders[pool] = builder
        except Exception as error:  # noqa: BLE001 - a defect must not keep stops and other pools from being decided
            errors[pool.name] = error
    if cache is not None:
        _record(cache, list(builders), of_pools, snapshot, policy)
    unreserved = sorted({reservation.workload for reservation in without_pool.reservations})
    actions: list[Action] = [Unreserve(workload=name, reason=ClaimEnded()) for name in unreserved]
    actions += [*stops, *evicted, *_refusals(without_pool), *chain.from_iterable(of_pools)]
    ended_early = tuple(sorted(name for builder in builders.values() for name in builder.searches_ended_early()))
    plan = Plan(
        seen_version=snapshot.version,
        now=snapshot.now,
        actions=tuple(actions),
        searches_ended_early=ended_early,
    )
    if errors:
        raise UndecidedPools(plan, errors) from next(iter(errors.values()))
    return plan, list(builders.values())


def _record(
    cache: DecisionCache,
    pools: Sequence[PoolSnapshot],
    of_pools: Sequence[Sequence[Action]],
    snapshot: Snapshot,
    policy: Policy,
) -> None:
    """Record in the cache which pools have an empty plan, and when time alone could change it."""
    for pool, actions in zip(pools, of_pools, strict=True):
        wakeup = next_wakeup(
            chain(pool.busy.values(), pool.paused.values()),
            pool.notebooks,
            snapshot.nodes,
            policy,
            snapshot.now,
            wanted=pool.wants_more(),
            queues=pool.waiting_by_class.values(),
            reservations=pool.reservations,
        )
        cache.record(pool, idle=not actions, wakeup=wakeup)
    without_pool = cache.index.without_pool
    wakeup = next_wakeup(without_pool.busy.values(), (), (), Policy(revision=0), snapshot.now, wanted=False)
    cache.record(without_pool, idle=True, wakeup=wakeup)


def _stop(job: Job, now: int, policy: Policy) -> Stop | None:
    """The stop of a job that a user stopped, that failed in one rank, or that reached its time limit. Rule R10."""
    if job.state not in RUNS:
        return None
    ran_ms = 0 if job.started_at is None else now - job.started_at
    if ran_ms < job.time_limit_s * MS_PER_S and job.target not in _STOPS:
        return None
    grace_s = policy.preemption.lent_grace_s if job.borrower else policy.preemption.grace_s
    kind = _STOPS.get(job.target)
    if kind is not None:
        return Stop(workload=job.id, target=job.target, grace_s=grace_s, reason=kind(user=job.user, grace_s=grace_s))
    reason = TimeLimit(ran_s=ran_ms // MS_PER_S, time_limit_s=job.time_limit_s, grace_s=grace_s)
    return Stop(workload=job.id, target=JobTarget.FAILED, grace_s=grace_s, reason=reason)


_STOPS: dict[JobTarget, type[HeldByUser | CancelledByUser | RankFailed]] = {
    JobTarget.HELD: HeldByUser,
    JobTarget.CANCELLED: CancelledByUser,
    JobTarget.FAILED: RankFailed,
}


def _refusals(without_pool: PoolSnapshot) -> list[Refuse]:
    """The requests of notebooks for a pool that does not exist."""
    requested = [one for one in without_pool.notebooks if one.state is NotebookState.REQUESTED]
    requested.sort(key=lambda notebook: (notebook.requested_at, notebook.id))
    return [Refuse(workload=notebook.id, reason=NoSuchPool(pool=notebook.pool)) for notebook in requested]


_NEEDS_PLACEMENT = Waiting | PausesUsedUp | WaitsForDrain | NeverFits
"""Reasons that more devices, CPU or memory would remove, and a higher limit would not."""


def _waits(builder: PlanBuilder, jobs: Mapping[str, Job]) -> dict[str, Reason]:
    """Why each workload of a pool waits; where CPU or memory is short, with what a rank needs of its node.

    Ends the plan: the backfill reservation is released in the ledger.
    """
    waits, pool = builder.waits(), builder.pool
    reserve(pool.ledger, builder.backfill.pieces if builder.backfill else (), borrowed=False, sign=-1)
    short: dict[tuple[Request, bool], bool] = {}
    for name, reason in waits.items():
        job = jobs.get(name)  # None is a notebook's slice
        if job and (job.cpu_milli or job.memory_mib) and isinstance(reason, _NEEDS_PLACEMENT):
            key = request_of(job, job.least_ranks), isinstance(reason, NeverFits)
            if key not in short:
                short[key] = _is_short(pool, *key)
            if short[key]:
                waits[name] = with_changes(reason, cpu_milli=job.cpu_milli, memory_mib=job.memory_mib)
    return waits


def _is_short(pool: PoolState, request: Request, never: bool) -> bool:
    """Whether GPU alone would be found: in the empty pool for what can never start, else now."""
    gpu_alone = request._replace(cpu_milli=0, memory_mib=0)
    if never:
        return pool.empty.fits(gpu_alone)
    return isinstance(place(pool.ledger, gpu_alone), Fit) and not isinstance(place(pool.ledger, request), Fit)
