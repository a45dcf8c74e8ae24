"""The loop: observe, decide, commit, apply; and nothing else.

One tick reads the clock once. What a plan does to the world is seen on a later tick, never assumed, so a controller
that is killed between any two lines is replaced by one that compares what is with what should be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..backends.protocol import JobBackend, LeaveOrder, SampleBackend, StartOrder
from ..core.eviction.quarantine import quarantine_changes
from ..core.facts import DeviceFact, RankFact
from ..core.lifecycle import HOLDS_GPU
from ..core.model import (
    Allocation,
    Device,
    Health,
    JobState,
    Node,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Snapshot,
)
from ..core.plan import RESIZED, Plan
from ..core.reasons import ReasonCode
from ..core.scheduling.cache.decision_cache import DecisionCache
from ..core.scheduling.decide import decide
from ..quotafile import QuotaFile
from ..store.reads.past_use import looked_again_at
from ..store.reads.snapshot import Mirror
from ..store.records.commands import SetInventory
from ..store.records.plan_chunks import PlanChunk, chunks_of
from ..store.records.protocol import Committed, Lease, LeaseLost, Store
from ..store.records.rows import JobRecord, QuotaRevision
from .lease import Leadership

log = logging.getLogger(__name__)

TICK_MAX_MS = 1_000
"""The longest rest between two ticks before there is a quota file to say so."""

CONFIRM_MS = 5_000
"""A device that has work on it is gone when no reading has named it for so long: one that failed ends nobody's work."""

READ_AGAIN_MS, UNREAD_MS = 1_000, 30_000
"""Devices that cannot be read are looked for so often; nothing new starts on them after so long."""

DAY_MS = 86_400_000

TELL_AGAIN_MS = 5_000
"""An order whose effect is not seen is given again after this long; orders are idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often the loop does what it does, in milliseconds; ages of what retention removes."""

    sample_ms: int = 10_000
    inventory_ms: int = 60_000
    retention_ms: int = 3_600_000
    keep_jobs_ms: int = 30 * 86_400_000
    keep_samples_ms: int = 2 * 3_600_000
    keep_usage_ms: int = 90 * 86_400_000


class Sweeper(Protocol):
    """What retention does with code bundles that no kept job names."""

    def sweep(self, keep: set[str]) -> object: ...


class SchedulingController:
    """Scheduling; ``tick`` is the whole of it.

    Takes a clock (milliseconds since 1970), a store, an executor and a sampler, and ``tell``, called with the
    store's version whenever it moved. ``leadership`` is this process's lease: only this loop
    renews it.
    """

    name = "scheduling"

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        store: Store,
        executor: JobBackend,
        sampler: SampleBackend,
        bundles: Sweeper,
        leadership: Leadership,
        rhythm: Rhythm | None = None,
        outputs_limit_mib: int | None = None,
        tell: Callable[[int], object] = lambda version: None,
    ) -> None:
        self.clock, self.store, self.executor, self.sampler, self.bundles = clock, store, executor, sampler, bundles
        self.leadership, self.rhythm, self.tell = leadership, rhythm or Rhythm(), tell
        self.outputs_limit_mib = outputs_limit_mib
        self.mirror, self.decision_cache = Mirror(), DecisionCache()
        self.revision: QuotaRevision | None = None
        self.policy: Policy | None = None
        self.world_changed = True
        self.decide_again_at: int | None = None
        self.unsettled: set[tuple[str, int]] = set()
        self.told: dict[tuple[str, int, JobState], int] = {}
        self.due: dict[str, int] = {}
        self.missed: dict[str, int] = {}
        self.unread_since: int | None = None
        self.sequence = 0
        self.quota_file: QuotaFile | None = None

    def run_once(self, now: int) -> int:
        """Turn the ring until nothing is left to decide at once. Returns when to turn it again, in ms since 1970."""
        return now if self.tick() else now + self.rest_ms(self.tick_max_ms())

    def tick(self) -> bool:
        """One turn of the ring. Returns whether another should follow at once."""
        try:
            return self._tick(self.clock())
        except LeaseLost as lost:
            log.info("%s", lost)
            return False

    def _tick(self, now: int) -> bool:
        if not self._is_leader():
            return False
        assert self.lease is not None
        before = self.mirror.version
        self._observe(self.lease, now)
        if not self._is_leader():
            return False
        committed = self._decide(self.lease, now)
        if not self._is_leader():
            return False
        self._apply(self.lease, now)
        self._on_time("sample", self.rhythm.sample_ms, now, self._sample)
        self._on_time("retention", self.rhythm.retention_ms, now, self._retain)
        if self.mirror.version != before:
            self.tell(self.mirror.version)
        return committed

    def tick_max_ms(self) -> int:
        """The longest rest between two ticks that the quota file allows."""
        return self.quota_file.tick_max_ms if self.quota_file else TICK_MAX_MS

    def rest_ms(self, at_most_ms: int) -> int:
        """How long to rest before the next tick: not past the half of the lease, when it is renewed."""
        rest = min(at_most_ms, self.tick_max_ms())
        if self.lease is None:
            return rest
        return max(0, min(rest, self.lease.expires_at - self.leadership.lease_ms // 2 - self.clock()))

    # --- lease ----------------------------------------------------------------------------------------------------
    @property
    def lease(self) -> Lease | None:
        """The lease that this process took last."""
        return self.leadership.lease

    def _renew_lease(self, now: int) -> bool:
        """Take or renew the right to decide; a new leader fences off the old one before anything else."""
        before = self.lease
        lease = self.leadership.renew(now)
        if lease is None:
            self.unsettled.clear()
            return False
        self._settle()
        if before is None or lease.fencing != before.fencing:
            self.executor.fence(lease.fencing)
            self.told.clear()
            self.due.clear()
        return True

    def _is_leader(self) -> bool:
        """Take the lease, or renew it where half of its time has gone: that is a write to the disk."""
        now = self.clock()
        return self.leadership.is_fresh(now) or self._renew_lease(now)

    # --- observe --------------------------------------------------------------------------------------------------
    def _observe(self, lease: Lease, now: int) -> None:
        self._refresh(now)
        self._on_time("inventory", self.rhythm.inventory_ms, now, self._take_inventory)
        facts = list(self.executor.observe())
        if facts:
            self.store.observe(facts, lease=lease, now=now)
        self._refresh(now)
        self.unsettled |= {(fact.job, fact.attempt) for fact in facts if self._is_settled(fact)}

    def _settle(self) -> None:
        """What was observed is on disk: the place of effect need not tell these ends again."""
        for job, attempt in sorted(self.unsettled):
            self.executor.settled(job, attempt)
        self.unsettled.clear()

    def _refresh(self, now: int, *, own: int | None = None) -> None:
        """Bring the mirror up to date; a new quota file may move devices between pools, so it is followed at once.

        ``own``: the version in which nothing but this controller's plan is new.
        """
        news = self.mirror.update(self.store)
        self.world_changed |= news and self.mirror.version != own
        if self.mirror.some_began:
            self._look_again(now)
        self._look_ahead(now)
        changes = self.mirror.latest
        if changes is not None and changes.quota is not None:
            self.revision = changes.quota
            self.quota_file = QuotaFile.from_document(changes.quota.document)
            self._take_inventory(now)
            self.world_changed |= self.mirror.update(self.store)

    def _look_ahead(self, now: int) -> None:
        """Know the calendar far enough ahead, and what was used before as of this minute."""
        policy = self.mirror.policy_at(now)
        self.world_changed |= policy is not self.policy
        self.policy = policy
        self.world_changed |= self.mirror.follow_use(self.store, now)

    def _is_settled(self, fact: RankFact) -> bool:
        if not fact.tree_gone or fact.ended_at is None:
            return False
        record = self.mirror.jobs.get(fact.job)
        return record is None or record.job.attempt > fact.attempt or record.job.state not in HOLDS_GPU

    def _take_inventory(self, now: int) -> None:
        found = self.executor.inventory()
        nodes, devices = self._as_known(now) if found is None else self._not_yet_gone(*found, now)
        names = {node.id: node.name for node in nodes}
        pools = {d.id: self.quota_file.pool_of(d, names.get(d.node, "")) if self.quota_file else None for d in devices}
        placed = tuple(replace(device, pool=pools[device.id]) for device in devices)
        self.store.record([SetInventory(nodes=nodes, devices=placed)], now=now, lease=self.lease)

    def _as_known(self, now: int) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
        """What was there when it could be read. What runs runs on; after a while nothing new is started there."""
        self.due["inventory"] = now + READ_AGAIN_MS
        self.unread_since = now if self.unread_since is None else self.unread_since
        known = list(self.mirror.nodes().values())
        if now - self.unread_since >= UNREAD_MS:
            known = [replace(node, schedulable=False) for node in known]
        return tuple(known), tuple(self.mirror.devices.values())

    def _not_yet_gone(
        self, nodes: Sequence[Node], devices: Sequence[Device], now: int
    ) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
        """A reading, with the healthy devices that it lacks and that have work, until a later one confirms that."""
        self.unread_since = None
        named = {device.id for device in devices}
        used = {held.device for held in self.mirror.allocations()} - named
        lacking = [self.mirror.devices[id] for id in sorted(used) if self.mirror.devices[id].health is Health.HEALTHY]
        self.missed = {device.id: self.missed.get(device.id, now) for device in lacking}
        kept = [device for device in lacking if now - self.missed[device.id] < CONFIRM_MS]
        if kept:
            self.due["inventory"] = now + CONFIRM_MS
        lost = {device.node for device in kept} - {node.id for node in nodes}
        return (*nodes, *(self.mirror.nodes()[id] for id in sorted(lost))), (*devices, *kept)

    # --- decide and commit ----------------------------------------------------------------------------------------
    def _decide(self, lease: Lease, now: int) -> bool:
        """Decide if anything the decision rests on changed. Returns whether a plan was committed or found stale."""
        due = self.decide_again_at is not None and now >= self.decide_again_at
        if self.policy is None or not (due or self.world_changed):
            return False
        policy = self.policy
        snapshot = self._quarantined(self.mirror.snapshot(now), policy, lease)
        plan = decide(snapshot, policy, self.decision_cache)
        self.decide_again_at = self._next_instant(policy, now)
        self.world_changed = bool(plan.actions)  # until they are written: a database that fails here is tried again
        if not plan.actions:
            return False
        self._commit(plan, policy, snapshot)
        return True

    def _commit(self, plan: Plan, policy: Policy, snapshot: Snapshot) -> None:
        """Make a plan true. What follows from it alone is decided within a tick, together with what happens by then.

        What is left of a plan that became stale is dropped, and decided anew: the pieces before are legal without it.
        """
        now, seen, version = snapshot.now, self.mirror.digest(snapshot), snapshot.version
        alone = True
        for chunk in chunks_of(plan):
            outcome = self._commit_chunk(chunk, policy, seen, now)
            if not isinstance(outcome, Committed):
                log.info("the plan for version %d was dropped from action %d on: %s", version, chunk.first, outcome)
                self._renew_lease(self.clock())
                self._refresh(now)
                return
            alone, version = alone and outcome.version == version + 1, outcome.version
        self.world_changed = False
        self._look_again(now)
        self._refresh(now, own=version if alone else None)

    def _commit_chunk(self, chunk: PlanChunk, policy: Policy, snapshot_digest: str, now: int) -> Committed | str:
        """Write one chunk, or say why what is left of the plan is dropped.

        Deciding may take longer than a lease lasts. It is taken again then: the store finds what changed meanwhile.
        """
        if not self._is_leader() or self.lease is None:
            return "another controller decides now"
        outcome = self.store.commit(chunk, policy=policy, snapshot_digest=snapshot_digest, lease=self.lease, now=now)
        if not isinstance(outcome, Committed):
            return outcome.why
        self._settle()
        return outcome

    def _look_again(self, now: int) -> None:
        """Decide within a tick, whether or not anything else happens by then."""
        soon = now + self.tick_max_ms()
        self.decide_again_at = soon if self.decide_again_at is None else min(soon, self.decide_again_at)

    def _next_instant(self, policy: Policy, now: int) -> int | None:
        """When, with nothing else changing, time alone could change the plan."""
        ahead = self.decision_cache.next_at()
        if not policy.history.k_milli or not self.decision_cache.wants_more():
            return ahead
        return looked_again_at(now) if ahead is None else min(ahead, looked_again_at(now))

    def _quarantined(self, snapshot: Snapshot, policy: Policy, lease: Lease) -> Snapshot:
        """The same moment, with the devices of work that will not die taken out, or given back."""
        if not self.mirror.in_motion and not any(d.health is Health.QUARANTINED for d in snapshot.devices):
            return snapshot
        facts = [DeviceFact(device=id, health=health) for id, health in quarantine_changes(snapshot, policy).items()]
        if not facts:
            return snapshot
        self.store.observe(facts, lease=lease, now=snapshot.now)
        self._refresh(snapshot.now)
        return self.mirror.snapshot(snapshot.now)

    # --- apply ----------------------------------------------------------------------------------------------------
    def _apply(self, lease: Lease, now: int) -> None:
        """Give the orders that take every job from what it is to what it should be."""
        if self.clock() >= lease.expires_at:
            return
        wanted = {(r.job.id, r.job.attempt, r.job.state): r for r in self._in_motion()}
        for key in self.told.keys() - wanted.keys():
            del self.told[key]
        due = [key for key in wanted if now - self.told.get(key, -TELL_AGAIN_MS) >= TELL_AGAIN_MS]
        held = self._held({job for job, _, _ in due}) if due else {}
        for key in due:
            self._order(wanted[key], held.get(key[0], []), lease)
            self.told[key] = now

    def _in_motion(self) -> list[JobRecord]:
        return [self.mirror.jobs[id] for id in self.mirror.in_motion]

    def _held(self, jobs: Container[str]) -> dict[str, list[Allocation]]:
        held: dict[str, list[Allocation]] = {}
        for allocation in self.mirror.allocations():
            if allocation.workload in jobs:
                held.setdefault(allocation.workload, []).append(allocation)
        return held

    def _order(self, record: JobRecord, held: Sequence[Allocation], lease: Lease) -> None:
        if record.job.state is JobState.STARTING:
            self.executor.start(self._start_order(record, held, lease))
        else:
            self.executor.leave(self._leave_order(record, lease))

    def _start_order(self, record: JobRecord, held: Sequence[Allocation], lease: Lease) -> StartOrder:
        spec = record.spec
        return StartOrder(
            job=record.job.id,
            attempt=record.job.attempt,
            fencing=lease.fencing,
            command=spec.command,
            placements=tuple(map(_placement, held)),
            devices=tuple(self.mirror.devices[name] for name in sorted({a.device for a in held})),
            run_as=record.account,
            variables=spec.variables,
            secrets=self.store.secrets(record.job.id) if spec.secret_names else {},
            bundle=spec.bundle,
            directory=spec.directory,
            live=spec.live,
            ranks=len({part.rank for part in held}),
            outputs_limit_mib=self.outputs_limit_mib,
            python=self._python_of(spec.environment),
            project=spec.project,
        )

    def _leave_order(self, record: JobRecord, lease: Lease) -> LeaveOrder:
        assert self.policy is not None, "nothing is in motion before the first quota file"
        times = self.policy.preemption
        code = record.reason.code if record.reason else None
        grace_s = times.lent_grace_s if code is ReasonCode.BORROWER_RETURNS else times.grace_s
        job = record.job
        reason = "resize" if code in RESIZED else code or str(job.target)
        return LeaveOrder(job=job.id, attempt=job.attempt, fencing=lease.fencing, grace_s=grace_s, reason=reason)

    def _python_of(self, environment: str | None) -> str | None:
        return self.quota_file.python_of(environment) if self.quota_file and environment else None

    # --- on time --------------------------------------------------------------------------------------------------
    def _on_time(self, what: str, every_ms: int, now: int, do: Callable[[int], None]) -> None:
        if now >= self.due.get(what, now):
            self.due[what] = now + every_ms
            do(now)

    def _sample(self, now: int) -> None:
        """Read the devices; a reading that cannot be had is unknown, and never stops the queue."""
        rows = self.sampler.samples(self._holders(), now=now)
        if rows is None:
            self.due["sample"] = now  # they are being read: the next tick has them
        if not rows or self.lease is None:
            return
        self.sequence += 1
        self.store.add_samples(self.leadership.holder, self.sequence, rows, now=now)
        facts = self.sampler.device_facts()
        if facts:
            self.store.observe(facts, lease=self.lease, now=now)

    def _holders(self) -> dict[Device, list[Allocation]]:
        holders: dict[Device, list[Allocation]] = {device: [] for device in self.mirror.devices.values()}
        for held in self.mirror.allocations():
            holders[self.mirror.devices[held.device]].append(held)
        for record in self.mirror.notebooks.values():
            home = self.mirror.devices.get(record.notebook.device or "")
            if record.notebook.state is NotebookState.LENT and home is not None:
                holders[home].append(_away(record.notebook, home))
        return holders

    def _retain(self, now: int) -> None:
        for job in self.store.forget(
            jobs_ended_before=now - max(self.rhythm.keep_jobs_ms, self._past_ms()),
            samples_before=now - self.rhythm.keep_samples_ms,
            usage_before=now - self.rhythm.keep_usage_ms,
        ):
            self.executor.forget(job)
        self.bundles.sweep(self.store.bundles_in_use())

    def _past_ms(self) -> int:
        """How long ago the oldest use was that dividing the surplus looks at."""
        return self.policy.history.window_s * 1000 + DAY_MS if self.policy and self.policy.history.k_milli else 0


def _away(notebook: Notebook, home: Device) -> Allocation:
    """Nothing, where a lent slice comes back to: what the sampler looks for its owner's processes by."""
    return Allocation(id=notebook.id, workload=notebook.id, rank=0, device=home.id, gpu_milli=0, memory_mib=0)


def _placement(held: Allocation) -> Placement:
    return Placement(rank=held.rank, device=held.device, gpu_milli=held.gpu_milli, memory_mib=held.memory_mib)
