"""A copy of the live work in memory, updated with the changes of the store, and snapshots of it for ``decide``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ...core.canonical import record_digest, snapshot_digest, table_digest
from ...core.frozen import with_changes
from ...core.lifecycle import FINAL, NOTEBOOK_FINAL
from ...core.model import (
    Allocation,
    Device,
    Job,
    JobState,
    Node,
    Notebook,
    NotebookState,
    Policy,
    Reservation,
    Snapshot,
)
from ..records.rows import BEGINNING, Changes, JobRecord, NotebookRecord, Position, QuotaRevision
from ..transactions import Store
from .past_use import PastUse
from .quota_revision import PolicyAhead

V = TypeVar("V")


class _Part(Generic[V]):
    """One part of a snapshot: values in the order of their ids, with the digest of each."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._values: list[V] = []
        self._hashes: list[bytes] = []
        self._unread: set[str] = set()
        self._cached: tuple[V, ...] | None = ()
        self._digest: str | None = None

    def put(self, id: str, value: V) -> bool:
        """Add or replace a value; whether that is a change."""
        at = bisect_left(self._ids, id)
        if not self._is_at(at, id):
            self._ids.insert(at, id)
            self._values.insert(at, value)
            self._hashes.insert(at, b"")
        elif self._values[at] == value:
            return False
        self._values[at] = value
        self._unread.add(id)
        self._cached = self._digest = None
        return True

    def drop(self, id: str) -> bool:
        at = bisect_left(self._ids, id)
        if not self._is_at(at, id):
            return False
        for column in (self._ids, self._values, self._hashes):
            del column[at]
        self._unread.discard(id)
        self._cached = self._digest = None
        return True

    def _is_at(self, at: int, id: str) -> bool:
        return at < len(self._ids) and self._ids[at] == id

    def all(self) -> tuple[V, ...]:
        if self._cached is None:
            self._cached = tuple(self._values)
        return self._cached

    def digest(self) -> str:
        """The :func:`.canonical.table_digest` of :meth:`all`; only changed values are hashed again."""
        if self._digest is None:
            for at in [bisect_left(self._ids, id) for id in self._unread]:
                self._hashes[at] = record_digest(self._values[at])
            self._unread.clear()
            self._digest = table_digest(self._hashes)
        return self._digest

    def get(self, id: str) -> V | None:
        at = bisect_left(self._ids, id)
        return self._values[at] if self._is_at(at, id) else None


class Mirror:
    """The store's live work in memory.

    ``quota`` is the revision in force, and ``policy`` its policy. ``jobs``, ``notebooks`` and ``devices`` are the
    present records of live work by id; ``gone_nodes`` and ``gone_devices`` are the instants since when no reading
    reports those; ``in_motion`` the ids of jobs that are starting or pausing; ``jobs_with_data`` the live jobs by the
    name of their data and the groups that may use it. ``latest`` are the changes of the last :meth:`update`, which
    include work that has just ended. ``some_began``: jobs that a plan had started were reported as running, which
    changes no plan.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.version = self.fencing = 0
        self.quota: QuotaRevision | None = None
        self.policy: Policy | None = None
        self.past_use = PastUse()
        self._ahead: PolicyAhead | None = None
        self.latest: Changes | None = None
        self.some_began = False
        self.jobs: dict[str, JobRecord] = {}
        self.in_motion: dict[str, None] = {}
        self.jobs_with_data: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
        self.notebooks: dict[str, NotebookRecord] = {}
        self.devices: dict[str, Device] = {}
        self.gone_nodes: dict[str, int] = {}
        self.gone_devices: dict[str, int] = {}
        self._nodes: _Part[Node] = _Part()
        self._devices: _Part[Device] = _Part()
        self._jobs: _Part[Job] = _Part()
        self._notebooks: _Part[Notebook] = _Part()
        self._allocations: _Part[Allocation] = _Part()
        self._reservations: _Part[Reservation] = _Part()
        self._pauses: dict[str, int] = {}

    def update(self, store: Store) -> bool:
        """Read the changes; whether they changed a snapshot or the policy.

        Raises StoreUnavailable, with the mirror as it was.
        """
        changes = store.changes(self.version, ended=False)
        if self.is_replaced_by(changes):
            changes = store.changes(0, ended=False)
            self._clear()
        return self.apply(changes)

    @property
    def position(self) -> Position:
        """The position of the database at ``version``."""
        return BEGINNING if self.latest is None else self.latest.position

    def is_replaced_by(self, changes: Changes) -> bool:
        """Whether these may be changes of another history: a backup was restored, which also raises the fencing."""
        return changes.version < self.version or (self.latest is not None and changes.fencing != self.fencing)

    def apply(self, changes: Changes) -> bool:
        """Apply changes since ``version``; whether they changed a snapshot or the policy."""
        self.some_began, first = False, self.latest is None
        self.version, self.fencing, self.latest = changes.version, changes.fencing, changes
        return any([*self._apply(changes), first])

    def _apply(self, changes: Changes) -> Iterator[bool]:
        if changes.quota is not None:
            yield self._set_policy(changes.quota)
        yield from self._apply_inventory(changes)
        for job in changes.jobs:
            yield self._put_job(job)
        for notebook in changes.notebooks:
            yield self._put_notebook(notebook)
        yield from self._apply_holdings(changes)

    def _apply_inventory(self, changes: Changes) -> Iterator[bool]:
        for node in changes.nodes:
            self.gone_nodes.pop(node.id, None)
            yield self._nodes.put(node.id, node)
        for device in changes.devices:
            self.gone_devices.pop(device.id, None)
            self.devices[device.id] = device
            yield self._devices.put(device.id, device)
        self.gone_nodes |= changes.gone_nodes
        self.gone_devices |= changes.gone_devices
        for id in changes.removed_devices:
            self.gone_devices.pop(id, None)
            self.devices.pop(id, None)
            yield self._devices.drop(id)
        for id in changes.removed_nodes:
            self.gone_nodes.pop(id, None)
            yield self._nodes.drop(id)

    def _apply_holdings(self, changes: Changes) -> Iterator[bool]:
        for id in changes.released:
            yield self._allocations.drop(id)
        for allocation in changes.allocations:
            yield self._allocations.put(allocation.id, allocation)
        for workload in changes.unreserved:
            yield self._reservations.drop(workload)
        for reservation in changes.reservations:
            yield self._reservations.put(reservation.workload, reservation)

    def _set_policy(self, revision: QuotaRevision) -> bool:
        before, self.quota, self.policy = self.policy, revision, (policy := revision.policy)
        self._ahead = PolicyAhead(revision)
        if before is None or before.preemption.per_s != policy.preemption.per_s:
            for id in [id for id, record in self.jobs.items() if record.job.paused_at]:
                self._jobs.put(id, self.jobs[id].job)
                self._expect(self.jobs[id].job)
        return before != policy

    def _put_job(self, record: JobRecord) -> bool:
        job = record.job
        if job.state is JobState.STARTING or job.state is JobState.PAUSING:
            self.in_motion[job.id] = None
        else:
            self.in_motion.pop(job.id, None)
        for name in record.spec.data:
            self._index_data((name, record.spec.data_groups), job)
        if job.state in FINAL:
            self.jobs.pop(job.id, None)
            self._pauses.pop(job.id, None)
            return self._jobs.drop(job.id)
        before = self.jobs.get(job.id)
        self.jobs[job.id] = record
        if before is not None and before.job == job:
            return False  # its metrics changed, and no plan depends on those
        self._expect(job)
        began = before is not None and _began(before.job, job)
        self.some_began |= began
        return self._jobs.put(job.id, job) and not began

    def _index_data(self, key: tuple[str, tuple[str, ...]], job: Job) -> None:
        if job.state not in FINAL:
            self.jobs_with_data.setdefault(key, {})[job.id] = None
        elif (jobs := self.jobs_with_data.get(key)) is not None:
            jobs.pop(job.id, None)
            if not jobs:
                del self.jobs_with_data[key]

    def _put_notebook(self, record: NotebookRecord) -> bool:
        notebook = record.notebook
        if notebook.state in NOTEBOOK_FINAL:
            self.notebooks.pop(notebook.id, None)
            return self._notebooks.drop(notebook.id)
        self.notebooks[notebook.id] = record
        return self._notebooks.put(notebook.id, notebook)

    # --- expired pauses ----------------------------------------------------------------------------------------------
    def _window_ms(self) -> int:
        return (self.policy or Policy(revision=0)).preemption.per_s * 1000

    def _expect(self, job: Job) -> None:
        """Drop the oldest counted pause of this job when it leaves the window."""
        if job.paused_at:
            self._pauses[job.id] = min(job.paused_at) + self._window_ms()
        else:
            self._pauses.pop(job.id, None)

    def _drop_old_pauses(self, now: int) -> None:
        window_ms = self._window_ms()
        for id in [id for id, until in self._pauses.items() if until <= now]:
            job = self._jobs.get(id)
            assert job is not None, "pauses are those of live jobs"
            counted = replace(job, paused_at=tuple(at for at in job.paused_at if at + window_ms > now))
            self._jobs.put(id, counted)
            self._expect(counted)

    # --- queries -----------------------------------------------------------------------------------------------------
    def allocations(self) -> tuple[Allocation, ...]:
        """Every live allocation, in the order of their ids."""
        return self._allocations.all()

    def allocations_of(self, workloads: Container[str]) -> dict[str, list[Allocation]]:
        """The live allocations of these workloads."""
        found: dict[str, list[Allocation]] = {}
        for allocation in self.allocations():
            if allocation.workload in workloads:
                found.setdefault(allocation.workload, []).append(allocation)
        return found

    def allocations_by_device(self) -> dict[Device, list[Allocation]]:
        """The live allocations of each device, for samplers, and an empty one of each slice that is lent."""
        found: dict[Device, list[Allocation]] = {device: [] for device in self.devices.values()}
        for held in self.allocations():
            found[self.devices[held.device]].append(held)
        for record in self.notebooks.values():
            home = self.devices.get(record.notebook.device or "")
            if record.notebook.state is NotebookState.LENT and home is not None:
                found[home].append(_returning_allocation(record.notebook, home))
        return found

    def reported_devices(self) -> list[Device]:
        """The devices that are not gone."""
        return [device for device in self.devices.values() if device.id not in self.gone_devices]

    def nodes(self) -> Mapping[str, Node]:
        """The nodes by id."""
        return {node.id: node for node in self._nodes.all()}

    def policy_at(self, now: int) -> Policy | None:
        """The policy in force with its calendar known ahead, the same object while it is; None before the first."""
        return self._ahead.at(now) if self._ahead else None

    def follow_use(self, store: Store, now: int) -> bool:
        """Update the past use, at most once a minute; whether it changed.

        Raises StoreUnavailable, with everything as it was.
        """
        policy = self.policy_at(now)
        return policy is not None and self.past_use.follow(store, policy, now)

    def snapshot(self, now: int) -> Snapshot:
        """All live work and the past use, as of their last updates.

        Pauses older than the policy's window at ``now`` are left out.
        """
        self._drop_old_pauses(now)
        return Snapshot(
            version=self.version,
            now=now,
            nodes=self._nodes.all(),
            devices=self._devices.all(),
            jobs=self._jobs.all(),
            notebooks=self._notebooks.all(),
            allocations=self._allocations.all(),
            reservations=self._reservations.all(),
            usage=self.past_use.usage,
        )

    def digest(self, snapshot: Snapshot) -> str:
        """The :func:`.canonical.snapshot_digest` of a snapshot that this mirror made."""
        parts: dict[str, _Part[Any]] = {
            "nodes": self._nodes,
            "devices": self._devices,
            "jobs": self._jobs,
            "notebooks": self._notebooks,
            "allocations": self._allocations,
            "reservations": self._reservations,
        }
        same = {name: part for name, part in parts.items() if getattr(snapshot, name) is part.all()}
        return snapshot_digest(snapshot, {name: part.digest() for name, part in same.items()})


def _began(before: Job, job: Job) -> bool:
    """Whether a job that was started runs now, and nothing else about it changed."""
    if before.state is not JobState.STARTING or job.state is not JobState.RUNNING or before.target is not job.target:
        return False
    return with_changes(before, state=job.state, started_at=job.started_at, checkpoint_at=job.checkpoint_at) == job


def _returning_allocation(notebook: Notebook, home: Device) -> Allocation:
    """An empty allocation on the device of a lent slice, by which the sampler finds the processes of its owner."""
    return Allocation(id=notebook.id, workload=notebook.id, rank=0, device=home.id, gpu_milli=0, memory_mib=0)
