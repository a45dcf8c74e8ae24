"""The scheduling controller: observe, decide, commit, apply.

One run reads the clock once. The effects of a plan are observed in a later run, never assumed, so the successor of a
controller that is killed between any two lines compares the observed state with the desired one, and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from ..backends.protocol import Inventory, JobBackend, SampleBackend, StartOrder, StopOrder
from ..core.eviction.quarantine import quarantine_changes
from ..core.facts import DeviceFact, RankFact
from ..core.lifecycle import HOLDS_GPU
from ..core.model import Allocation, Device, Health, JobState, Node, Policy, Snapshot
from ..core.plan import Plan, gives_devices
from ..core.scheduling.cache.decision_cache import DecisionCache
from ..core.scheduling.decide import UndecidedPools, decide
from ..core.validate import Violation, violations
from ..quotafile import QuotaFile
from ..store.reads.data_access import holds_without_code, holds_without_data
from ..store.reads.past_use import next_update_at
from ..store.reads.snapshot import Mirror
from ..store.records.calls import Committed, Lease, LeaseLost
from ..store.records.commands import Refusal, SetInventory
from ..store.records.plan_chunks import PlanChunk, chunks_of
from ..store.records.rows import JobRecord
from ..store.transactions import Store
from .leadership.lease import Leadership
from .loop import InventoryRefused
from .orders import start_order, stop_order
from .recovery.guard import RecoveryGuard

log = logging.getLogger(__name__)

TICK_MAX_MS = 1_000
"""The longest interval between two runs while no quota file sets one."""

CONFIRM_MS = 5_000
"""A device in use counts as removed when no reading listed it for so long: one incomplete reading ends no work."""

READ_AGAIN_MS, UNREAD_MS = 1_000, 30_000
"""The interval of attempts to read devices that cannot be read; after the second time nothing new starts on them."""

REPEAT_ORDER_MS = 5_000
"""An order whose effect is not observed is repeated after this time; orders are idempotent."""

LACKS_CODE = "%d jobs are held, because their code bundles are not in the state folder: restore its folder bundles"

MIN_UNDECIDED_MS, MAX_UNDECIDED_MS = 1_000, 60_000
"""How soon a pool that a defect left undecided is decided again where nothing changes: at first, and at last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Times in milliseconds: between two samples, between two readings of the inventory, and the longest rest."""

    sample_ms: int = 10_000
    inventory_ms: int = 60_000
    tick_max_ms: int = TICK_MAX_MS


class SchedulingController:
    """Decides which work runs where, and gives the backend its orders.

    ``clock`` gives milliseconds since 1970. ``notify`` is called with the store's version whenever it changed.
    ``leadership`` is the lease of this process: this controller takes and renews it. ``validate``: check the invariants
    of each snapshot that a plan is made for, and log every violation. ``guard`` holds all decisions while the database
    is older than the running work; None: that is not checked.
    """

    name = "scheduling"

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        store: Store,
        executor: JobBackend,
        sampler: SampleBackend,
        leadership: Leadership,
        intervals: Intervals = Intervals(),
        outputs_limit_mib: int | None = None,
        notify: Callable[[int], object] = lambda version: None,
        validate: bool = False,
        guard: RecoveryGuard | None = None,
    ) -> None:
        self.clock, self.store, self.executor, self.sampler = clock, store, executor, sampler
        self.leadership, self.intervals, self.notify = leadership, intervals, notify
        self.outputs_limit_mib, self.validate, self.guard = outputs_limit_mib, validate, guard
        leadership.checks_database = guard is not None
        self.mirror, self.decision_cache = Mirror(), DecisionCache()
        self.policy: Policy | None = None
        self.changed = True
        self.decide_again_at: int | None = None
        self.undecided: UndecidedPools | None = None
        self.undecided_rest_ms = 0
        self.refused: InventoryRefused | None = None
        self.unsettled: set[tuple[str, int]] = set()
        self.ordered_at: dict[tuple[str, int, JobState], int] = {}
        self.due: dict[str, int] = {}
        self.missed: dict[str, int] = {}
        self.unread_since: dict[str, int] = {}
        self.unstored: dict[tuple[str, int, int], RankFact] = {}
        self.fenced: int | None = None
        self.quota_file: QuotaFile | None = None
        self.file_of = self.placed_by = (0, 0)  # term and revision of the quota file, and of that of the inventory
        self.violations: frozenset[Violation] = frozenset()

    def run_once(self, now: int) -> int:
        """Observe, decide, commit and apply once. Returns when to run again: ``now`` where a plan was committed.

        Raises LeaseLost where another process is the leader, StoreUnavailable, and when all else is done
        UndecidedPools or InventoryRefused, as long as that lasts.
        """
        before = self.mirror.version
        self._leader()
        if self.guard is not None:
            self.guard.check_clusters()
        if self._is_held(self._leader(), now):
            return self._next_run(now)
        self._observe(self._leader(), now)
        self._hold_without_data(self._leader(), now)
        committed = self._decide(self._leader(), now)
        self._apply(self._leader(), now)
        self._run_if_due("sample", self.intervals.sample_ms, now, self._sample)
        if self.mirror.version != before:
            self.notify(self.mirror.version)
        if (failure := self.undecided or self.refused) is not None:
            raise failure.with_traceback(None)  # it is raised again and again, and each time adds to its traceback
        return now if committed else self._next_run(now)

    def tick_max_ms(self) -> int:
        """The longest interval between two runs that the settings and the quota file allow."""
        return min(self.intervals.tick_max_ms, self.quota_file.tick_max_ms if self.quota_file else TICK_MAX_MS)

    def _next_run(self, now: int) -> int:
        """Not later than when half of the lease is over: it is renewed then."""
        rest = self.tick_max_ms()
        if (renew_at := self.leadership.renew_at) is not None:
            rest = min(rest, renew_at - self.clock())
        return now + max(1, rest)

    # --- lease ----------------------------------------------------------------------------------------------------
    @property
    def lease(self) -> Lease | None:
        """The lease that this process took last."""
        return self.leadership.lease

    def _leader(self) -> Lease:
        """The lease; it is taken, or renewed where half of its time is over, which is a write to the disk.

        The orders of earlier leaders are fenced off before anything else is done. Raises LeaseLost.
        """
        lease = self.lease if self.leadership.is_fresh(self.clock()) else None
        lease = lease or self._renew_lease()
        return lease if lease.fencing == self.fenced else self._take_over(lease)

    def _take_over(self, lease: Lease) -> Lease:
        """Begin a term. Another thread renews the lease meanwhile. Raises LeaseLost where that failed."""
        lease = self._checked(lease)
        self.leadership.fenced = lease.fencing  # first: a call that fails may have stored it
        self.executor.fence(lease.fencing)
        if not self.leadership.is_in_force(lease.fencing):
            raise LeaseLost(f"The lease of leader {lease.fencing} ended during its take-over; it does not act.")
        self.fenced = lease.fencing
        self.ordered_at.clear()
        self.due.clear()
        return lease

    def _renew_lease(self, *, above: int = 0) -> Lease:
        lease = self.leadership.renew(self.clock(), above=above)
        if lease is None:
            self.unsettled.clear()
            raise LeaseLost("Another controllers process holds the lease.")
        if lease.fencing == self.fenced:
            self._note_position(lease)
        self._settle()
        return lease

    # --- a database that is older than the work ------------------------------------------------------------------
    def _checked(self, lease: Lease) -> Lease:
        """The lease of a new term after the database was checked; its number is above every one in use."""
        if self.guard is None:
            return lease
        used = self.guard.begin(lease, self.clock(), fenced=self.leadership.fenced)
        return self._renew_lease(above=used) if used >= lease.fencing else lease

    def _is_held(self, lease: Lease, now: int) -> bool:
        """Whether no decision is made now: the database is older than the running work, and no admin accepted that."""
        guard = self.guard
        if guard is None:
            return False
        if guard.hold is not None:
            self.leadership.checked = None
            self._refresh(now)
            self._run_if_due("inventory", self.intervals.inventory_ms, now, self._take_inventory)
            without_code = sum(not self._has_code(job) for job in self.mirror.jobs)
            guard.follow(self.executor, lease, now, without_code=without_code)
            self.notify(self.mirror.version)
        if guard.hold is None and self.leadership.checked != lease.fencing:
            self._note_position(lease)
            self.leadership.checked = lease.fencing
        return guard.hold is not None

    def _note_position(self, lease: Lease) -> None:
        if self.guard is not None:
            self.guard.note(lease)

    def _follow_unknown(self, facts: Sequence[RankFact], lease: Lease, now: int) -> None:
        """Compare the running attempts with the jobs. Raises LeaseLost where one is missing: the check begins again."""
        if self.guard is None:
            return
        running = {(fact.job, fact.attempt) for fact in facts if not fact.tree_gone and self._is_unknown(fact)}
        if not self.guard.follow_unknown(self.executor, running, lease, now):
            raise LeaseLost("Jobs run that the database does not have; this leader ends its term.")

    def _is_unknown(self, fact: RankFact) -> bool:
        record = self.mirror.jobs.get(fact.job)
        return record is None or record.job.attempt < fact.attempt

    # --- observe --------------------------------------------------------------------------------------------------
    def _observe(self, lease: Lease, now: int) -> None:
        self._refresh(now)
        self._run_if_due("inventory", self.intervals.inventory_ms, now, self._take_inventory)
        self.unstored |= {(fact.job, fact.attempt, fact.rank): fact for fact in self.executor.observe()}
        facts = list(self.unstored.values())
        if facts:
            self.store.observe(facts, lease=lease, now=now)
        if any(fact.why_lost is not None for fact in facts):
            self._take_inventory(now)  # with its node, perhaps: the next attempt starts on one that answers
        self.unstored.clear()  # only now: a backend may report a fact once, and the database may be unavailable
        self._refresh(now)
        self._follow_unknown(facts, lease, now)
        self.unsettled |= {(fact.job, fact.attempt) for fact in facts if self._is_settled(fact)}

    def _settle(self) -> None:
        """The observed ends are on disk, so the backend need not report them again."""
        for job, attempt in sorted(self.unsettled):
            self.executor.settled(job, attempt)
        self.unsettled.clear()

    def _refresh(self, now: int, *, own: int | None = None) -> None:
        """Bring the mirror up to date. A new quota file may move devices between pools, so the inventory is read.

        A step that fails is tried again in the next run. ``own``: the version in which only the plan of this controller
        is new.
        """
        news = self.mirror.update(self.store)
        self.changed |= news and self.mirror.version != own
        if self.mirror.some_began:
            self._decide_within(self.tick_max_ms(), now)
        quota = self.mirror.quota
        if quota is not None and self.file_of != (self.mirror.fencing, quota.revision):
            self.quota_file = QuotaFile.from_document(quota.document)
            self.file_of = self.mirror.fencing, quota.revision
        self._update_policy(now)
        if self.placed_by != self.file_of:
            self._take_inventory(now)
            self.changed |= self.mirror.update(self.store)

    def _update_policy(self, now: int) -> None:
        """Bring the calendar windows ahead and the past use up to date."""
        policy = self.mirror.policy_at(now)
        self.changed |= policy is not self.policy
        self.policy = policy
        self.changed |= self.mirror.follow_use(self.store, now)

    def _is_settled(self, fact: RankFact) -> bool:
        if not fact.tree_gone or (fact.ended_at is None and fact.refused is None):
            return False
        record = self.mirror.jobs.get(fact.job)
        return record is None or record.job.attempt > fact.attempt or record.job.state not in HOLDS_GPU

    def _take_inventory(self, now: int) -> None:
        found = self.executor.inventory()
        read = found or Inventory((), (), frozenset(self._clusters()))
        if found is None or read.unread:  # before the first reading no cluster is known
            self.due["inventory"] = now + READ_AGAIN_MS
        known_nodes, known_devices = self._unread(read.unread, now)
        nodes, devices = self._with_missing_devices((*read.nodes, *known_nodes), (*read.devices, *known_devices), now)
        by_id = {node.id: node for node in nodes}
        pools = {d.id: self.quota_file.pool_of(d, by_id[d.node]) if self.quota_file else None for d in devices}
        placed = tuple(replace(device, pool=pools[device.id]) for device in devices)
        (outcome,) = self.store.record([SetInventory(nodes=nodes, devices=placed)], now=now, lease=self.lease)
        self.refused = InventoryRefused(outcome.message) if isinstance(outcome, Refusal) else None
        self.placed_by = self.file_of

    def _clusters(self) -> set[str]:
        return {node.cluster for node in self.mirror.nodes().values()}

    def _unread(self, clusters: Set[str], now: int) -> tuple[list[Node], list[Device]]:
        """Nodes and devices by the last readings of these clusters. After UNREAD_MS no new work starts there."""
        self.unread_since = {name: min(self.unread_since.get(name, now), now) for name in clusters}
        nodes = {
            node.id: self._closed(node, now)
            for node in self.mirror.nodes().values()
            if node.cluster in clusters and node.id not in self.mirror.gone_nodes
        }
        return list(nodes.values()), [one for one in self.mirror.reported_devices() if one.node in nodes]

    def _closed(self, node: Node, now: int) -> Node:
        """A node of a cluster that cannot be read; a leader before may have closed it."""
        since = self.unread_since[node.cluster] if node.unread_since_at is None else node.unread_since_at
        return node if now - since < UNREAD_MS else replace(node, schedulable=False, unread_since_at=since)

    def _with_missing_devices(
        self, nodes: Sequence[Node], devices: Sequence[Device], now: int
    ) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
        """A reading, and the healthy devices in use that it does not list, until a later one confirms that."""
        named = {device.id for device in devices}
        used = {held.device for held in self.mirror.allocations()} - named - self.mirror.gone_devices.keys()
        lacking = [self.mirror.devices[id] for id in sorted(used) if self.mirror.devices[id].health is Health.HEALTHY]
        self.missed = {device.id: min(self.missed.get(device.id, now), now) for device in lacking}
        kept = [device for device in lacking if now - self.missed[device.id] < CONFIRM_MS]
        if kept:
            self.due["inventory"] = now + CONFIRM_MS
        lost = {device.node for device in kept} - {node.id for node in nodes}
        return (*nodes, *(self.mirror.nodes()[id] for id in sorted(lost))), (*devices, *kept)

    def _hold_without_data(self, lease: Lease, now: int) -> None:
        """Hold the waiting jobs that may not use their data any more, before anything is decided."""
        holds = holds_without_data(self.mirror, self.quota_file, now) if self.quota_file else []
        if holds:
            self.store.record(holds, now=now, lease=lease)
            self._refresh(now)

    def _hold_without_code(self, lease: Lease, now: int) -> bool:
        """Hold all jobs that could not run because their code is gone. Whether there are any."""
        holds = holds_without_code(self.mirror, self.executor.has_code)
        if holds:
            log.error(LACKS_CODE, len(holds))
            self.store.record(holds, now=now, lease=lease)
            self._refresh(now)
        return bool(holds)

    def _has_code(self, workload: str) -> bool:
        """Whether a job has the code that it needs; notebooks and some jobs need none."""
        record = self.mirror.jobs.get(workload)
        bundle = record.spec.bundle if record else None
        return bundle is None or self.executor.has_code(workload, bundle)

    # --- decide and commit ----------------------------------------------------------------------------------------
    def _decide(self, lease: Lease, now: int) -> bool:
        """Decide if any input of the decision changed. Returns whether a plan was committed or found stale."""
        due = self.decide_again_at is not None and now >= self.decide_again_at
        if self.policy is None or not (due or self.changed):
            return False
        policy = self.policy
        snapshot = self._quarantined(self.mirror.snapshot(now), policy, lease)
        if self.validate:
            self._log_violations(snapshot)
        plan = self._plan(snapshot, policy)
        served = [action.workload for action in plan.actions if gives_devices(action)]
        if not all(map(self._has_code, served)) and self._hold_without_code(lease, now):
            return True
        if plan.searches_ended_early:
            claims = ", ".join(plan.searches_ended_early)
            log.info("the preemption search examined as many sets as it may: cheaper victims may exist for %s", claims)
        self.decide_again_at = self._next_instant(policy, now)
        if self.undecided is not None:
            self._decide_within(self.undecided_rest_ms, now)
        self.changed = bool(plan.actions)  # until they are written: a database that fails here is tried again
        if not plan.actions:
            return False
        self._commit(plan, policy, snapshot, lease.fencing)
        return True

    def _plan(self, snapshot: Snapshot, policy: Policy) -> Plan:
        """The plan; where a defect leaves pools undecided, that of the others. The longer it lasts, the later the next.

        The cache is dropped then, since it may be what is wrong.
        """
        if self.undecided is not None:
            self.decision_cache = DecisionCache()
        try:
            plan, self.undecided = decide(snapshot, policy, self.decision_cache), None
        except UndecidedPools as error:
            rest_ms = MIN_UNDECIDED_MS if self.undecided is None else 2 * self.undecided_rest_ms
            self.undecided, self.undecided_rest_ms, plan = error, min(rest_ms, MAX_UNDECIDED_MS), error.plan
        return plan

    def _log_violations(self, snapshot: Snapshot) -> None:
        """Log the violated invariants that the snapshot before did not have."""
        found = frozenset(violations(snapshot))
        for violation in sorted(map(str, found - self.violations)):
            log.error("the state violates an invariant: %s", violation)
        self.violations = found

    def _commit(self, plan: Plan, policy: Policy, snapshot: Snapshot, fencing: int) -> None:
        """Write a plan in chunks. Its consequences alone are decided on within a tick, with all that happens by then.

        The rest of a plan that became stale is dropped and decided again: the chunks before it are legal without it.
        """
        now, seen, version = snapshot.now, self.mirror.digest(snapshot), snapshot.version
        alone = True
        for chunk in chunks_of(plan):
            outcome = self._commit_chunk(chunk, policy, seen, fencing, now)
            if not isinstance(outcome, Committed):
                log.info("the plan for version %d was dropped from action %d on: %s", version, chunk.first, outcome)
                self._renew_lease()
                self._refresh(now)
                return
            alone, version = alone and outcome.version == version + 1, outcome.version
        self.changed = False
        self._note_position(self._leader())
        self._decide_within(self.tick_max_ms(), now)
        self._refresh(now, own=version if alone else None)

    def _commit_chunk(
        self, chunk: PlanChunk, policy: Policy, snapshot_digest: str, fencing: int, now: int
    ) -> Committed | str:
        """Write one chunk, or return why the rest of the plan is dropped.

        A decision may take longer than a lease lasts. The lease is taken again then, with the next number. Where
        another leader had that one, what was decided in term ``fencing`` is dropped: the same quota may be in use.
        """
        lease = self._leader()
        if lease.fencing > fencing + 1:
            return f"another leader acted since term {fencing}; this is term {lease.fencing}"
        outcome = self.store.commit(chunk, policy=policy, snapshot_digest=snapshot_digest, lease=lease, now=now)
        if not isinstance(outcome, Committed):
            return outcome.why
        self._settle()
        return outcome

    def _decide_within(self, rest_ms: int, now: int) -> None:
        """Decide again within this time, whether or not anything else happens."""
        soon = now + rest_ms
        self.decide_again_at = soon if self.decide_again_at is None else min(soon, self.decide_again_at)

    def _next_instant(self, policy: Policy, now: int) -> int | None:
        """When time alone could change the plan; None where it cannot."""
        ahead = self.decision_cache.next_at()
        if any(self.mirror.jobs[id].job.state is JobState.PAUSING for id in self.mirror.in_motion):
            soon = now + self.tick_max_ms()  # its device may be quarantined, from when its nodes had the stop order
            ahead = soon if ahead is None else min(ahead, soon)
        if not self.decision_cache.wants_more():
            return ahead
        update_at = next_update_at(policy.history, now)
        return update_at if ahead is None else min(ahead, update_at)

    def _quarantined(self, snapshot: Snapshot, policy: Policy, lease: Lease) -> Snapshot:
        """The snapshot after devices whose processes do not end are quarantined, and others are released."""
        if not self.mirror.in_motion and not any(d.health is Health.QUARANTINED for d in snapshot.devices):
            return snapshot
        records = [self.mirror.jobs[id] for id in self.mirror.in_motion]
        ordered_at = {one.job.id: self.executor.stop_ordered_at(one.job.id, one.job.attempt) for one in records}
        changes = quarantine_changes(snapshot, policy, ordered_at)
        facts = [DeviceFact(device=id, health=health) for id, health in changes.items()]
        if not facts:
            return snapshot
        self.store.observe(facts, lease=lease, now=snapshot.now)
        self._refresh(snapshot.now)
        return self.mirror.snapshot(snapshot.now)

    # --- apply ----------------------------------------------------------------------------------------------------
    def _apply(self, lease: Lease, now: int) -> None:
        """Order the backend to start the jobs that are starting, and to stop those that are pausing or stopping.

        A job whose code is gone is held instead: a restored database may have it as starting.
        """
        records = (self.mirror.jobs[id] for id in self.mirror.in_motion)
        wanted = {(record.job.id, record.job.attempt, record.job.state): record for record in records}
        self.ordered_at = {key: at for key, at in self.ordered_at.items() if key in wanted}
        due = [key for key in wanted if now - self.ordered_at.get(key, -REPEAT_ORDER_MS) >= REPEAT_ORDER_MS]
        allocated = self.mirror.allocations_of({job for job, _, _ in due}) if due else {}
        lacks_code = False
        for key in due:
            if not self.leadership.is_in_force(lease.fencing):
                return  # the lease ended meanwhile: its successor gives the orders
            record, held = wanted[key], allocated.get(key[0], [])
            if record.job.state is not JobState.STARTING:
                self.executor.stop(self._stop_order(record, held, lease))
            elif self._has_code(key[0]):
                self.executor.start(self._start_order(record, held, lease))
            else:
                lacks_code = True
            self.ordered_at[key] = now
        if lacks_code:
            self._hold_without_code(lease, now)

    def _start_order(self, record: JobRecord, held: Sequence[Allocation], lease: Lease) -> StartOrder:
        return start_order(
            record, held, lease, self.quota_file,
            devices=tuple(self.mirror.devices[name] for name in sorted({a.device for a in held})),
            secrets=self.store.secrets(record.job.id) if record.spec.secret_names else {},
            outputs_limit_mib=self._outputs_limit_mib(record.spec.project),
            grace_s=self.policy.preemption.grace_s if self.policy else None,
        )  # fmt: skip

    def _outputs_limit_mib(self, project: str) -> int | None:
        """The most that one job may write: the deployment's limit, or the space of its project where that is less."""
        limits = [self.outputs_limit_mib, self.quota_file.storage_of(project).outputs if self.quota_file else None]
        return min((limit for limit in limits if limit is not None), default=None)

    def _stop_order(self, record: JobRecord, held: Sequence[Allocation], lease: Lease) -> StopOrder:
        assert self.policy is not None, "no job starts or stops before the first quota file"
        return stop_order(record, held, self.policy.preemption, lease)

    # --- on time --------------------------------------------------------------------------------------------------
    def _run_if_due(self, what: str, every_ms: int, now: int, task: Callable[[int], None]) -> None:
        if now >= self.due.get(what, now):
            self.due[what] = now + every_ms
            task(now)

    def _sample(self, now: int) -> None:
        """Sample the devices; a sample that cannot be read is unknown, and never stops scheduling."""
        rows = self.sampler.samples(self.mirror.allocations_by_device(), now=now)
        if rows is None:
            self.due["sample"] = now  # they are being read: the next run has them
        if not rows or self.lease is None:
            self.store.add_series(now=now)
            return
        self.store.add_samples(self.leadership.holder, now, rows, now=now)
        facts = self.sampler.device_facts()
        if facts and self.guard is not None:
            facts = self.guard.with_unknown_use(facts)
        if facts:
            self.store.observe(facts, lease=self.lease, now=now)
