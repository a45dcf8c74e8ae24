"""The snapshot by pool, from one ``decide`` to the next: only rows that are other objects than before are read.

Its content follows from the snapshot alone, so it is not state of the scheduler: built anew, it is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

from ...lifecycle import RUNS, WAITING
from ...model import (
    Allocation,
    Demand,
    Device,
    Job,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Reservation,
    Snapshot,
)
from ...placement.ledger import Ledger, Models
from ...placement.place import EmptyPool, Piece, Request, request_of
from ...placement.workload_profile import RankRequest, rank_request, workload_profile
from ...queue.job_queue import WaitingJobs
from ...queue.running_jobs import RunningJobs
from ...quota.checked_ranks import CheckedRanks

T = TypeVar("T", Job, Allocation)
ClassKey = tuple[str, Request, bool, int]
"""The common properties of the jobs of a class: project, request, whether they are preemptible, job priority."""


_class_fields = attrgetter(
    "project", "gpu_milli", "ranks", "min_ranks", "gpu_models", "cpu_milli", "memory_mib", "preemptible", "priority"
)
"""The fields that determine a class key. A long queue is read job by job: this is cheaper than a key for each."""


def class_key(job: Job) -> ClassKey:
    return job.project, request_of(job, job.least_ranks), job.preemptible, job.priority


@dataclass(slots=True, kw_only=True, eq=False)
class PoolSnapshot:
    """The rows of one pool. ``busy`` jobs do not wait: they have devices, are stopping, or may not start."""

    name: str
    devices: list[Device] = field(default_factory=list)
    waiting: dict[str, Job] = field(default_factory=dict)
    waiting_by_class: dict[ClassKey, WaitingJobs] = field(default_factory=dict)
    """The waiting jobs that were never paused."""
    paused: dict[str, Job] = field(default_factory=dict)
    """The waiting jobs that were paused before."""
    busy: dict[str, Job] = field(default_factory=dict)
    allocations: dict[str, dict[str, Allocation]] = field(default_factory=dict)
    """The allocations of each workload, by their ids."""
    work_on: dict[str, dict[str, int]] = field(default_factory=dict)
    """The workloads on each device, with the number of their allocations there."""
    notebooks: list[Notebook] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    has_changed: bool = True
    """Since the last decision about the pool."""
    bare: Ledger = field(init=False)
    """The devices without allocations."""
    empty: EmptyPool = field(init=False)
    checked: dict[Models, CheckedRanks] = field(default_factory=dict)
    """The checked shapes by GPU models, for the policy of the last decision."""
    not_running: dict[str, Job] = field(default_factory=dict)
    """The busy jobs that do not run; updated by :meth:`read_running_jobs`, as ``other_work`` is."""
    other_work: dict[str, None] = field(default_factory=dict)
    """The workloads on its devices that are no busy jobs of the pool."""
    to_read: dict[str, None] = field(default_factory=dict)
    """The workloads to read at its next call: new rows or allocations, left out, or without a start."""
    _running: RunningJobs | None = None
    _waiting_by_fields: dict[object, WaitingJobs] = field(default_factory=dict)
    """The same waiting jobs by their fields; several entries where only the largest number of ranks differs."""
    _rank_counts: dict[RankRequest, int] | None = None
    """The number of ranks by request; counted from the first job on that requests more than GPUs."""
    _demand: tuple[Demand, ...] = ()
    _pieces: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    """The results of :meth:`pieces`, until the allocations of the workload change."""

    def add_job(self, job: Job) -> None:
        self.has_changed = True
        if not _waits(job):
            self.busy[job.id], self.to_read[job.id] = job, None
        else:
            self.waiting[job.id] = job
            if job.paused_at:
                self.paused[job.id] = job
            else:
                waiting_jobs = self._waiting_by_fields.get(key := _class_fields(job))
                if waiting_jobs is None:
                    waiting_jobs = self.waiting_by_class.setdefault(class_key(job), WaitingJobs())
                    self._waiting_by_fields[key] = waiting_jobs
                waiting_jobs.add(job)
        if self._rank_counts is not None:
            self._count(job, job.ranks)
        elif job.cpu_milli or job.memory_mib or job.gpu_models:
            self._rank_counts = {}
            for each in chain(self.busy.values(), self.waiting.values()):
                self._count(each, each.ranks)

    def remove_job(self, job: Job) -> None:
        self.has_changed = True
        if self._rank_counts is not None:
            self._count(job, -job.ranks)
        if not _waits(job):
            del self.busy[job.id]
            self.to_read[job.id] = None
            return
        del self.waiting[job.id]
        if job.paused_at:
            del self.paused[job.id]
            return
        waiting_jobs = self._waiting_by_fields[_class_fields(job)]
        waiting_jobs.drop(job)
        if not waiting_jobs.count:
            del self.waiting_by_class[class_key(job)]
            rest = {fields: one for fields, one in self._waiting_by_fields.items() if one is not waiting_jobs}
            self._waiting_by_fields = rest

    def _count(self, job: Job, ranks: int) -> None:
        assert self._rank_counts is not None, "requests are counted"
        request = rank_request(job)
        count = self._rank_counts[request] = self._rank_counts.get(request, 0) + ranks
        if not count:
            del self._rank_counts[request]

    def add_allocation(self, one: Allocation) -> None:
        self.has_changed = True
        self._pieces.pop(one.workload, None)
        self.to_read[one.workload] = None
        self.allocations.setdefault(one.workload, {})[one.id] = one
        there = self.work_on.setdefault(one.device, {})
        there[one.workload] = there.get(one.workload, 0) + 1

    def remove_allocation(self, one: Allocation) -> None:
        self.has_changed = True
        self._pieces.pop(one.workload, None)
        self.to_read[one.workload] = None
        rows = self.allocations[one.workload]
        del rows[one.id]
        there = self.work_on[one.device]
        there[one.workload] -= 1
        if not there[one.workload]:
            del there[one.workload]
        if not rows:
            del self.allocations[one.workload]

    def pieces(self, workload: str) -> tuple[Piece, ...]:
        """The pieces of a workload on schedulable devices, in order.

        A rank with no such device that uses CPU or memory of a node with others has a piece of 0 milli there.
        """
        found = self._pieces.get(workload)
        if found is None and (rows := self.allocations.get(workload)):
            number = self.bare.number
            pieces = [
                Piece(one.rank, number[one.device], one.gpu_milli) for one in rows.values() if one.device in number
            ]
            if len(pieces) < len(rows):
                pieces += self._without_gpu(workload, {piece.rank for piece in pieces})
            pieces.sort()
            found = self._pieces[workload] = tuple(pieces)
        return found or ()

    def _without_gpu(self, workload: str, counted: Container[int]) -> Iterator[Piece]:
        """The pieces of the ranks all of whose devices are unavailable; ``counted``: the other ranks."""
        job = self.busy.get(workload) or self.waiting.get(workload)
        if job is None or not (job.cpu_milli or job.memory_mib):
            return
        first_on = {name: on[0] for name, on in zip(self.bare.nodes, self.bare.on_node, strict=True)}
        node_of = {device.id: device.node for device in self.devices}
        nodes = {one.rank: node_of.get(one.device, "") for one in self.allocations[workload].values()}
        for rank, node in nodes.items():
            if rank not in counted and node in first_on:
                yield Piece(rank, first_on[node], 0)

    def read_running_jobs(self, now: int, *, without: Collection[str]) -> RunningJobs:
        """Read what changed since the last call, and return the running jobs, valid until the next one.

        ``without``: jobs that are left out until then.
        """
        running, self._running = self._running, None  # it is built anew if this fails
        if running is None:
            running, changed = RunningJobs(self.bare), self.busy
            self.not_running, self.other_work = {}, {name: None for name in self.allocations if name not in self.busy}
        else:
            changed = {name: job for name in self.to_read if (job := self.busy.get(name)) is not None}
            for name in self.to_read:
                running.drop(name)
                self.not_running.pop(name, None)
                self.other_work.pop(name, None)
                if name in self.allocations and name not in changed:
                    self.other_work[name] = None
        for name, job in changed.items():
            if job.state in RUNS:
                running.put(job, self.pieces(name), now)
            else:
                self.not_running[name] = job
        for name in without:
            running.drop(name)
        running.sort()
        self._running, self.to_read = running, dict.fromkeys((*without, *running.starting))
        return running

    def set_demand(self, given: tuple[Demand, ...]) -> None:
        """Use this demand for placement from now on; if it is empty, the requests of the pool's jobs."""
        demand = given or workload_profile(self._rank_counts or {})
        if demand != self._demand:
            self._demand = demand
            self.bare.set_demand(demand)

    def wants_more(self) -> bool:
        """Whether any work of the pool wants more than it has."""
        if self.waiting or any(one.state is NotebookState.REQUESTED for one in self.notebooks):
            return True
        return any(job.min_ranks is not None for job in self.busy.values())

    def has_work_of_other_pools(self) -> bool:
        """Whether work of other pools is on its devices; changes of that work are not seen here."""
        others = self._workloads_without_job()
        return bool(others) and not {notebook.id for notebook in self.notebooks}.issuperset(others)

    def other_allocations(self) -> list[Allocation]:
        """The allocations of no job of the pool: of notebooks, of work of other pools, or of unknown work."""
        return [one for workload in self._workloads_without_job() for one in self.allocations[workload].values()]

    def _workloads_without_job(self) -> list[str]:
        return [workload for workload in self.other_work if workload not in self.waiting]


_STAYS_QUEUED = frozenset({JobTarget.RUNNING, JobTarget.PAUSED})


def _waits(job: Job) -> bool:
    """Whether a job is queued."""
    return job.state in WAITING and job.target in _STAYS_QUEUED


class _Table(Generic[T]):
    """The rows of one table as they were read last."""

    def __init__(self) -> None:
        self._rows: tuple[T, ...] = ()

    def update(self, rows: tuple[T, ...]) -> tuple[list[T], list[T]]:
        """The rows that are gone, and those that are new, each in order; a replaced row is in both.

        The tables are compared in the order of their ids. Out of order, an unchanged row may be in both, too.
        """
        gone: list[T] = []
        new: list[T] = []
        before: tuple[T, ...] = self._rows
        self._rows = rows
        at, to = _next_differing(before, rows, 0, 0)
        while at < len(before) and to < len(rows):
            old, row = before[at], rows[to]
            if old is row:
                at, to = _next_differing(before, rows, at, to)
                continue
            if old.id <= row.id:
                gone.append(old)
                at += 1
            if row.id <= old.id:
                new.append(row)
                to += 1
        gone.extend(before[at:])
        new.extend(rows[to:])
        return gone, new


COMPARED_AT_ONCE = 64
"""Rows; slices of tuples are compared without a loop here, and mostly by identity."""


def _next_differing(before: Sequence[object], now: Sequence[object], at: int, to: int) -> tuple[int, int]:
    """The next indices at which the rows side by side differ; where one table ends, if none does."""
    count = COMPARED_AT_ONCE
    while at < len(before) and before[at : at + count] == now[to : to + count]:
        at, to = at + count, to + count
    while at < len(before) and to < len(now) and before[at] is now[to]:
        at, to = at + 1, to + 1
    return at, to


class SnapshotIndex:
    """The last snapshot by pool, in name order; ``without_pool`` has the rows of no pool.

    Made for one inventory: these pools, devices and nodes.
    """

    def __init__(self, pools: Iterable[str], devices: Iterable[Device], nodes: Iterable[Node]) -> None:
        self.of = {name: PoolSnapshot(name=name) for name in sorted(set(pools))}
        self.without_pool = PoolSnapshot(name="")
        self._jobs, self._allocations = _Table[Job](), _Table[Allocation]()
        self._of_work: dict[str, PoolSnapshot] = {}
        self._of_device: dict[str, PoolSnapshot] = {}
        nodes, devices = tuple(nodes), tuple(devices)
        for device in devices:
            self._of_device[device.id] = part = self.of.get(device.pool or "", self.without_pool)
            part.devices.append(device)
        shared = _shared_nodes(devices)
        for part in self.of.values():
            part.bare = Ledger(part.devices, nodes, parts=shared.get(part.name))
            part.empty = EmptyPool(part.bare)

    def update(self, snapshot: Snapshot) -> None:
        """Read the changes of a snapshot of the same inventory; of notebooks and reservations, which are few, all."""
        of, of_work, of_device, without_pool = self.of, self._of_work, self._of_device, self.without_pool
        gone, new = self._jobs.update(snapshot.jobs)
        for job in gone:
            of_work.pop(job.id).remove_job(job)
        for job in new:
            of_work[job.id] = part = of.get(job.pool, without_pool)
            part.add_job(job)
        gone_allocations, new_allocations = self._allocations.update(snapshot.allocations)
        for one in gone_allocations:
            of_device.get(one.device, without_pool).remove_allocation(one)
        for one in new_allocations:
            of_device.get(one.device, without_pool).add_allocation(one)
        self._read_notebooks_and_reservations(snapshot)
        without_pool.to_read.clear()

    def all_pools(self) -> Iterator[PoolSnapshot]:
        yield from self.of.values()
        yield self.without_pool

    def _read_notebooks_and_reservations(self, snapshot: Snapshot) -> None:
        notebooks: dict[str, list[Notebook]] = {}
        reservations: dict[str, list[Reservation]] = {}
        of_work: dict[str, str] = {}
        for notebook in snapshot.notebooks:
            of_work[notebook.id] = pool = self.of.get(notebook.pool, self.without_pool).name
            notebooks.setdefault(pool, []).append(notebook)
        for reservation in sorted(snapshot.reservations, key=lambda r: (r.reserved_at, r.workload)):
            part = self._of_work.get(reservation.workload)
            pool = part.name if part else of_work.get(reservation.workload, "")
            reservations.setdefault(pool, []).append(reservation)
        for part in self.all_pools():
            here, reserved = notebooks.get(part.name, []), reservations.get(part.name, [])
            part.has_changed |= part.notebooks != here or part.reservations != reserved
            part.notebooks, part.reservations = here, reserved

    def stays(self, workload: str) -> bool:
        """Whether work of any pool, or of a removed one, continues to use its devices."""
        part = self._of_work.get(workload)
        if part is not None:
            job = part.busy.get(workload)
            return job is not None and job.state in RUNS
        notebooks = (one for part in self.all_pools() for one in part.notebooks)
        return any(one.id == workload and one.state is NotebookState.BOOKED for one in notebooks)


def _shared_nodes(devices: Iterable[Device]) -> Mapping[str, dict[str, tuple[int, int]]]:
    """Nodes whose devices are in several pools, by pool: how many of a node's devices are in it, and how many it has.

    Such a node gives each pool its part of CPU and memory.
    """
    devices = tuple(devices)
    pairs = {(device.node, device.pool) for device in devices}
    if len(pairs) == len({node for node, _ in pairs}):
        return {}
    among, here = Counter(device.node for device in devices), Counter((one.pool, one.node) for one in devices)
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for (pool, node), count in here.items():
        if count < among[node]:
            found.setdefault(pool or "", {})[node] = count, among[node]
    return found
