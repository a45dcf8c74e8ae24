"""A snapshot, split by pool, and kept from one decide to the next: only what is another object than before is read.

What a part holds follows from the snapshot alone, so it is no state of the scheduler: made anew, it is the same.
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
from ...placement.workload_profile import Shape as DemandShape
from ...placement.workload_profile import shape_of, typical_of
from ...queue.job_queue import Crowd

T = TypeVar("T", Job, Allocation)
Kind = tuple[str, Request, bool, int]
"""What jobs of one line have in common: project, request, whether they are preemptible, job priority."""


_Looks = tuple[str, int, int, int | None, tuple[str, ...], int, int, bool, int]
"""What a kind is made from. A long queue is read job by job: that is cheaper than a kind for each."""


def kind_of(job: Job) -> Kind:
    """With whom a waiting job stands in line."""
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
class Part:
    """What belongs to one pool. ``busy`` jobs do not wait: they hold devices, leave them, or are kept from starting."""

    name: str
    devices: list[Device] = field(default_factory=list)
    waiting: dict[str, Job] = field(default_factory=dict)
    crowds: dict[Kind, Crowd] = field(default_factory=dict)
    """Those that wait and were never paused."""
    paused: dict[str, Job] = field(default_factory=dict)
    """Those that wait and were."""
    busy: dict[str, Job] = field(default_factory=dict)
    held: dict[str, dict[str, Allocation]] = field(default_factory=dict)
    """What each workload has of the devices, by the allocations' ids."""
    notebooks: list[Notebook] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    has_changed: bool = True
    """Since somebody last said that it had not."""
    bare: Ledger = field(init=False)
    """The devices, carrying nothing."""
    empty: EmptyPool = field(init=False)
    _crowd_of: dict[_Looks, Crowd] = field(default_factory=dict)
    """The same crowds, one for several looks where only the most ranks differ."""
    _asked: dict[DemandShape, int] | None = None
    """How many ranks of each shape there are; counted from the first job on that asks for more than GPUs."""
    _demand: tuple[Demand, ...] = ()
    _pieces: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    """What was found by :meth:`pieces`, until somebody is given something or gives it back."""

    def put(self, job: Job) -> None:
        """A job is there."""
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
        """A job that was there is gone, or is another now."""
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
        crowd = self.crowds[kind := kind_of(job)]
        crowd.drop(job)
        if not crowd.count:
            del self.crowds[kind]
            self._crowd_of = {looks: other for looks, other in self._crowd_of.items() if other is not crowd}

    def _new_crowd(self, looks: _Looks, job: Job) -> Crowd:
        crowd = self._crowd_of[looks] = self.crowds.setdefault(kind_of(job), Crowd())
        return crowd

    def _count(self, job: Job, ranks: int) -> None:
        assert self._asked is not None, "shapes are counted"
        shape = shape_of(job)
        count = self._asked[shape] = self._asked.get(shape, 0) + ranks
        if not count:
            del self._asked[shape]

    def _count_everybody(self) -> None:
        self._asked = {}
        for job in chain(self.busy.values(), self.waiting.values()):
            self._count(job, job.ranks)

    def give(self, one: Allocation) -> None:
        """Somebody has something of a device."""
        self.has_changed = True
        self._pieces.pop(one.workload, None)
        self.held.setdefault(one.workload, {})[one.id] = one

    def release(self, one: Allocation) -> None:
        """Somebody has it no more."""
        self.has_changed = True
        self._pieces.pop(one.workload, None)
        rows = self.held[one.workload]
        del rows[one.id]
        if not rows:
            del self.held[one.workload]

    def pieces(self, workload: str) -> tuple[Piece, ...]:
        """What a workload has of the devices that may be given out, in order."""
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
        """Place by this demand from now on; where none is given, by what the jobs of the pool ask for."""
        demand = given or typical_of(self._asked or {})
        if demand != self._demand:
            self._demand = demand
            self.bare.learn(demand)

    def wants_more(self) -> bool:
        """Whether anybody here wants more than they have."""
        asks = any(one.state is NotebookState.REQUESTED for one in self.notebooks)
        return asks or bool(self.waiting) or any(job.min_ranks is not None for job in self.busy.values())

    def has_guests(self) -> bool:
        """Whether work of other pools is on its devices, of which this part does not see what becomes."""
        gone = self._of_no_job()
        return bool(gone) and not {notebook.id for notebook in self.notebooks}.issuperset(gone)

    def strangers(self) -> list[Allocation]:
        """What is held by no job of the pool: by notebooks, by work of other pools, or by nobody that is known."""
        return [one for workload in self._of_no_job() for one in self.held[workload].values()]

    def _of_no_job(self) -> list[str]:
        busy, waiting = self.busy, self.waiting
        return [workload for workload in self.held if workload not in busy and workload not in waiting]


_WAITING = frozenset({JobState.QUEUED, JobState.PAUSED})
_STAYS_IN_LINE = frozenset({JobTarget.RUNNING, JobTarget.PAUSED})


def _waits(job: Job) -> bool:
    """Whether it stands in a queue."""
    return job.state in _WAITING and job.target in _STAYS_IN_LINE


class _Table(Generic[T]):
    """The rows of one table as they were read last."""

    def __init__(self) -> None:
        self._rows: tuple[T, ...] = ()

    def follow(self, rows: tuple[T, ...]) -> tuple[list[T], list[T]]:
        """Those that are gone, and those that are new, each in order; a row that is another object is both.

        Both tables are read side by side in the order of their ids. Out of order, what stays may be named too, as both.
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


class Parts:
    """The parts of the snapshot that was followed last, by pool in name order; ``nowhere`` is of no pool.

    Made for one inventory: these pools, devices and nodes.
    """

    def __init__(self, pools: Iterable[str], devices: Iterable[Device], nodes: Iterable[Node]) -> None:
        self.of = {name: Part(name=name) for name in sorted(set(pools))}
        self.nowhere = Part(name="")
        self._jobs, self._allocations = _Table[Job](), _Table[Allocation]()
        self._of_work: dict[str, Part] = {}
        self._of_device: dict[str, Part] = {}
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

    def everybody(self) -> Iterator[Part]:
        """Every part, that of no pool too."""
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
        """Notebooks and reservations: few, and read whole."""
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
        """Whether work of any pool, or of one that is gone, runs on what it has."""
        part = self._of_work.get(workload)
        if part is not None:
            job = part.busy.get(workload)
            return job is not None and job.state in (JobState.STARTING, JobState.RUNNING)
        books = (one for part in self.everybody() for one in part.notebooks)
        return any(one.id == workload and one.state is NotebookState.BOOKED for one in books)


def _shared_nodes(devices: Iterable[Device]) -> Mapping[str, dict[str, tuple[int, int]]]:
    """Nodes whose devices are in several pools, by pool: how many of a node's devices are there, and how many it has.

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
