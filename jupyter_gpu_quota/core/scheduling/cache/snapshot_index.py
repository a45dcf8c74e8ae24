"""The snapshot by pool, kept from one ``decide`` to the next: only rows that are other objects than before are read.

Its content follows from the snapshot alone, so it is not state of the scheduler: built anew, it is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Generic, TypeVar

from ...model import (
    Allocation,
    Demand,
    Device,
    Job,
    JobState,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Reservation,
    Snapshot,
)
from ...placement.ledger import Ledger
from ...placement.place import EmptyPool, Piece, Request, request_of
from ...placement.workload_profile import RankRequest, rank_request, workload_profile
from ...queue.job_queue import WaitingJobs

T = TypeVar("T", Job, Allocation)
Kind = tuple[str, Request, bool, int]
"""What jobs of one class have in common: project, request, whether they are preemptible, job priority."""


_Looks = tuple[str, int, int, int | None, tuple[str, ...], int, int, bool, int]
"""The fields that determine a kind. A long queue is read job by job: this is cheaper than a kind for each."""


def kind_of(job: Job) -> Kind:
    """The kind of a waiting job."""
    return job.project, request_of(job, job.least_ranks), job.preemptible, job.priority


def _looks_of(job: Job) -> _Looks:
    return (
        job.project,
        job.gpu_milli,
        job.ranks,
        job.min_ranks,
        job.gpu_models,
        job.cpu_milli,
        job.memory_mib,
        job.preemptible,
        job.priority,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class PoolSnapshot:
    """The rows of one pool. ``busy`` jobs do not wait: they hold devices, leave them, or may not start."""

    name: str
    devices: list[Device] = field(default_factory=list)
    waiting: dict[str, Job] = field(default_factory=dict)
    waiting_by_class: dict[Kind, WaitingJobs] = field(default_factory=dict)
    """The waiting jobs that were never paused."""
    paused: dict[str, Job] = field(default_factory=dict)
    """The waiting jobs that were paused before."""
    busy: dict[str, Job] = field(default_factory=dict)
    held: dict[str, dict[str, Allocation]] = field(default_factory=dict)
    """The allocations of each workload, by their ids."""
    notebooks: list[Notebook] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    has_changed: bool = True
    """Since the last decision about the pool."""
    bare: Ledger = field(init=False)
    """The devices without allocations."""
    empty: EmptyPool = field(init=False)
    _crowd_of: dict[_Looks, WaitingJobs] = field(default_factory=dict)
    """The same waiting jobs by their fields; one entry for several where only the largest number of ranks differs."""
    _asked: dict[RankRequest, int] | None = None
    """The number of ranks of each shape; counted from the first job on that asks for more than GPUs."""
    _demand: tuple[Demand, ...] = ()
    _pieces: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    """The results of :meth:`pieces`, until the allocations of the workload change."""

    def put(self, job: Job) -> None:
        """Add a job."""
        self.has_changed = True
        if not _waits(job):
            self.busy[job.id] = job
        else:
            self.waiting[job.id] = job
            if job.paused_at:
                self.paused[job.id] = job
            else:
                (self._crowd_of.get(looks := _looks_of(job)) or self._new_crowd(looks, job)).add(job)
        if self._asked is not None:
            self._count(job, job.ranks)
        elif job.cpu_milli or job.memory_mib or job.gpu_models:
            self._count_everybody()

    def drop(self, job: Job) -> None:
        """Remove a job that is gone or was replaced."""
        self.has_changed = True
        if self._asked is not None:
            self._count(job, -job.ranks)
        if not _waits(job):
            del self.busy[job.id]
            return
        del self.waiting[job.id]
        if job.paused_at:
            del self.paused[job.id]
            return
        waiting_jobs = self.waiting_by_class[kind := kind_of(job)]
        waiting_jobs.drop(job)
        if not waiting_jobs.count:
            del self.waiting_by_class[kind]
            self._crowd_of = {looks: other for looks, other in self._crowd_of.items() if other is not waiting_jobs}

    def _new_crowd(self, looks: _Looks, job: Job) -> WaitingJobs:
        waiting_jobs = self._crowd_of[looks] = self.waiting_by_class.setdefault(kind_of(job), WaitingJobs())
        return waiting_jobs

    def _count(self, job: Job, ranks: int) -> None:
        assert self._asked is not None, "shapes are counted"
        asked = rank_request(job)
        count = self._asked[asked] = self._asked.get(asked, 0) + ranks
        if not count:
            del self._asked[asked]

    def _count_everybody(self) -> None:
        self._asked = {}
        for job in chain(self.busy.values(), self.waiting.values()):
            self._count(job, job.ranks)

    def give(self, one: Allocation) -> None:
        """Add an allocation."""
        self.has_changed = True
        self._pieces.pop(one.workload, None)
        self.held.setdefault(one.workload, {})[one.id] = one

    def release(self, one: Allocation) -> None:
        """Remove an allocation."""
        self.has_changed = True
        self._pieces.pop(one.workload, None)
        rows = self.held[one.workload]
        del rows[one.id]
        if not rows:
            del self.held[one.workload]

    def pieces(self, workload: str) -> tuple[Piece, ...]:
        """The pieces of a workload on schedulable devices, in order."""
        found = self._pieces.get(workload)
        if found is None and (rows := self.held.get(workload)):
            number = self.bare.number
            pieces = [
                Piece(one.rank, number[one.device], one.gpu_milli) for one in rows.values() if one.device in number
            ]
            pieces.sort()
            found = self._pieces[workload] = tuple(pieces)
        return found or ()

    def learn(self, given: tuple[Demand, ...]) -> None:
        """Use this demand for placement from now on; if none is given, what the jobs of the pool ask for."""
        demand = given or workload_profile(self._asked or {})
        if demand != self._demand:
            self._demand = demand
            self.bare.learn(demand)

    def wants_more(self) -> bool:
        """Whether any work of the pool wants more than it has."""
        asks = any(one.state is NotebookState.REQUESTED for one in self.notebooks)
        return asks or bool(self.waiting) or any(job.min_ranks is not None for job in self.busy.values())

    def has_guests(self) -> bool:
        """Whether work of other pools is on its devices; changes of that work are not seen here."""
        gone = self._of_no_job()
        return bool(gone) and not {notebook.id for notebook in self.notebooks}.issuperset(gone)

    def strangers(self) -> list[Allocation]:
        """The allocations of no job of the pool: of notebooks, of work of other pools, or of unknown work."""
        return [one for workload in self._of_no_job() for one in self.held[workload].values()]

    def _of_no_job(self) -> list[str]:
        busy, waiting = self.busy, self.waiting
        return [workload for workload in self.held if workload not in busy and workload not in waiting]


_WAITING = frozenset({JobState.QUEUED, JobState.PAUSED})
_STAYS_IN_LINE = frozenset({JobTarget.RUNNING, JobTarget.PAUSED})


def _waits(job: Job) -> bool:
    """Whether a job is queued."""
    return job.state in _WAITING and job.target in _STAYS_IN_LINE


class _Table(Generic[T]):
    """The rows of one table as they were read last."""

    def __init__(self) -> None:
        self._rows: tuple[T, ...] = ()

    def follow(self, rows: tuple[T, ...]) -> tuple[list[T], list[T]]:
        """The rows that are gone, and those that are new, each in order; a replaced row is in both.

        The tables are compared in the order of their ids. Out of order, an unchanged row may be in both, too.
        """
        gone: list[T] = []
        new: list[T] = []
        before, now = iter(self._rows), iter(rows)
        self._rows = rows
        old, row = _differing(before, now)
        while old is not None or row is not None:
            order = 0 if old is None or row is None else (old.id > row.id) - (old.id < row.id)
            if old is not None and order <= 0:
                gone.append(old)
            if row is not None and order >= 0:
                new.append(row)
            old = next(before, None) if order <= 0 else old
            row = next(now, None) if order >= 0 else row
            if old is row:
                old, row = _differing(before, now)
        return gone, new


def _differing(before: Iterator[T], now: Iterator[T]) -> tuple[T | None, T | None]:
    """The next rows side by side that are not the same object; None after the last."""
    for old, row in zip_longest(before, now):
        if old is not row:
            return old, row
    return None, None


class SnapshotIndex:
    """The last snapshot by pool, in name order; ``nowhere`` has the rows of no pool.

    Made for one inventory: these pools, devices and nodes.
    """

    def __init__(self, pools: Iterable[str], devices: Iterable[Device], nodes: Iterable[Node]) -> None:
        self.of = {name: PoolSnapshot(name=name) for name in sorted(set(pools))}
        self.nowhere = PoolSnapshot(name="")
        self._jobs, self._allocations = _Table[Job](), _Table[Allocation]()
        self._of_work: dict[str, PoolSnapshot] = {}
        self._of_device: dict[str, PoolSnapshot] = {}
        nodes, devices = tuple(nodes), tuple(devices)
        for device in devices:
            self._of_device[device.id] = part = self.of.get(device.pool or "", self.nowhere)
            part.devices.append(device)
        shared = _shared_nodes(devices)
        for part in self.of.values():
            part.bare = Ledger(part.devices, nodes, parts=shared.get(part.name))
            part.empty = EmptyPool(part.bare)

    def follow(self, snapshot: Snapshot) -> None:
        """Read what is new in a snapshot of the same inventory."""
        self._follow_jobs(snapshot.jobs)
        self._follow_allocations(snapshot.allocations)
        self._read_few(snapshot)

    def everybody(self) -> Iterator[PoolSnapshot]:
        """All pools, and the rows of no pool."""
        yield from self.of.values()
        yield self.nowhere

    def _follow_jobs(self, jobs: tuple[Job, ...]) -> None:
        of, of_work, nowhere = self.of, self._of_work, self.nowhere
        gone, fresh = self._jobs.follow(jobs)
        for job in gone:
            of_work.pop(job.id).drop(job)
        for job in fresh:
            of_work[job.id] = part = of.get(job.pool, nowhere)
            part.put(job)

    def _follow_allocations(self, allocations: tuple[Allocation, ...]) -> None:
        of, nowhere = self._of_device, self.nowhere
        gone, fresh = self._allocations.follow(allocations)
        for one in gone:
            of.get(one.device, nowhere).release(one)
        for one in fresh:
            of.get(one.device, nowhere).give(one)

    def _read_few(self, snapshot: Snapshot) -> None:
        """Read notebooks and reservations, all of them: there are few."""
        notebooks: dict[str, list[Notebook]] = {}
        reservations: dict[str, list[Reservation]] = {}
        of_work: dict[str, str] = {}
        for notebook in snapshot.notebooks:
            of_work[notebook.id] = pool = self.of.get(notebook.pool, self.nowhere).name
            notebooks.setdefault(pool, []).append(notebook)
        for reservation in sorted(snapshot.reservations, key=lambda r: (r.reserved_at, r.workload)):
            part = self._of_work.get(reservation.workload)
            pool = part.name if part else of_work.get(reservation.workload, "")
            reservations.setdefault(pool, []).append(reservation)
        for part in self.everybody():
            asked, kept = notebooks.get(part.name, []), reservations.get(part.name, [])
            part.has_changed |= part.notebooks != asked or part.reservations != kept
            part.notebooks, part.reservations = asked, kept

    def stays(self, workload: str) -> bool:
        """Whether work of any pool, or of a removed one, keeps its devices."""
        part = self._of_work.get(workload)
        if part is not None:
            job = part.busy.get(workload)
            return job is not None and job.state in (JobState.STARTING, JobState.RUNNING)
        books = (one for part in self.everybody() for one in part.notebooks)
        return any(one.id == workload and one.state is NotebookState.BOOKED for one in books)


def _shared_nodes(devices: Iterable[Device]) -> Mapping[str, dict[str, tuple[int, int]]]:
    """Nodes whose devices are in several pools, by pool: how many of a node's devices are in it, and how many it has.

    Such a node gives each pool its part of CPU and memory.
    """
    devices = tuple(devices)
    homes = {(device.node, device.pool) for device in devices}
    if len(homes) == len({node for node, _ in homes}):
        return {}
    among, here = Counter(device.node for device in devices), Counter((one.pool, one.node) for one in devices)
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for (pool, node), count in here.items():
        if count < among[node]:
            found.setdefault(pool or "", {})[node] = count, among[node]
    return found
