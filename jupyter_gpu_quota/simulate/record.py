"""The history of one simulation, from the changes of its store: the source of the figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core.lifecycle import HOLDS_GPU, WAITING
from ..core.model import WHOLE_DEVICE, Allocation, Device, Health, NotebookState
from ..store.records.rows import Changes, JobRecord, NotebookRecord


@dataclass(slots=True)
class Curve:
    """A quantity over time, constant between the instants at which it changed."""

    steps: list[tuple[int, int]] = field(default_factory=list)

    def set(self, at: int, value: int) -> None:
        """Set the value from ``at`` on; ``at`` is never before the last change."""
        if self.steps and self.steps[-1][0] == at:
            self.steps[-1] = at, value
        elif not self.steps or self.steps[-1][1] != value:
            self.steps.append((at, value))

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(from, to, value) between two instants; 0 before the first change."""
        for at, (since, value) in enumerate(self.steps):
            until = self.steps[at + 1][0] if at + 1 < len(self.steps) else end
            low, high = max(since, begin), min(until, end)
            if low < high:
                yield low, high, value

    def area(self, begin: int, end: int) -> int:
        """The integral, in units x ms."""
        return sum((high - low) * value for low, high, value in self.spans(begin, end))

    def means(self, begin: int, end: int, parts: int) -> list[float]:
        """The mean in each of ``parts`` equal intervals."""
        width = max(1.0, (end - begin) / parts)
        sums = [0.0] * parts
        for low, high, value in self.spans(begin, end):
            first, last = int((low - begin) // width), min(parts - 1, int((high - 1 - begin) // width))
            for part in range(first, last + 1):
                left, right = begin + part * width, begin + (part + 1) * width
                sums[part] += max(0.0, min(high, right) - max(low, left)) * value
        return [total / width for total in sums]


@dataclass(slots=True)
class Total(Curve):
    """The sum of the amounts of named parts over time."""

    _parts: dict[str, int] = field(default_factory=dict)
    _sum: int = 0

    def put(self, part: str, amount: int, now: int) -> None:
        """Set the amount of a part from ``now`` on."""
        before = self._parts.pop(part, 0)
        if amount:
            self._parts[part] = amount
        if amount != before:
            self._sum += amount - before
            self.set(now, self._sum)


@dataclass(slots=True, kw_only=True)
class WorkloadRecord:
    """One job or notebook. ``work`` is its id in the trace; ``allocated_at``: when it first had its devices."""

    work: str
    project: str
    size_milli: int
    asked_at: int
    allocated_at: int | None = None
    ended_at: int | None = None
    state: str = ""
    pauses: int = 0

    @property
    def wait_ms(self) -> int | None:
        """How long it waited for its devices; None where it never had them."""
        return None if self.allocated_at is None else self.allocated_at - self.asked_at


@dataclass(slots=True)
class Record:
    """Observes a replay. Curves are in milli-GPU; ``waiting`` counts workloads.

    ``fragmented`` is the free part of partly allocated devices; ``used_by`` what each project's jobs have in each
    pool.
    """

    jobs: dict[str, WorkloadRecord] = field(default_factory=dict)
    notebooks: dict[str, WorkloadRecord] = field(default_factory=dict)
    capacity: Total = field(default_factory=Total)
    allocated: Total = field(default_factory=Total)
    fragmented: Total = field(default_factory=Total)
    waiting: Total = field(default_factory=Total)
    lent: Total = field(default_factory=Total)
    used_by: dict[tuple[str, str], Total] = field(default_factory=lambda: defaultdict(Total))
    _devices: dict[str, Device] = field(default_factory=dict)
    _allocations: dict[str, Allocation] = field(default_factory=dict)
    _milli_on: Counter[str] = field(default_factory=Counter)

    def observe(self, changes: Changes, now: int) -> None:
        """Apply the changes up to ``now``."""
        for record in changes.jobs:
            self._update_job(record, now)
        for seen in changes.notebooks:
            self._update_notebook(seen, now)
        self._update_devices(changes, now)

    def _update_job(self, record: JobRecord, now: int) -> None:
        job = record.job
        workload = self.jobs.get(job.id)
        if workload is None:
            size = job.gpu_milli * job.ranks
            workload = self.jobs[job.id] = WorkloadRecord(
                work=job.id, project=job.project, size_milli=size, asked_at=job.submitted_at
            )
        if workload.allocated_at is None and job.attempt:
            workload.allocated_at = now
        workload.state, workload.ended_at, workload.pauses = job.state.value, record.ended_at, record.pauses
        self.waiting.put(job.id, job.state in WAITING, now)
        self.used_by[job.project, job.pool].put(job.id, job.held_milli if job.state in HOLDS_GPU else 0, now)

    def _update_notebook(self, record: NotebookRecord, now: int) -> None:
        notebook = record.notebook
        workload = self.notebooks.get(notebook.id)
        if workload is None:
            workload = self.notebooks[notebook.id] = WorkloadRecord(
                work=record.server,
                project=notebook.project,
                size_milli=notebook.gpu_milli,
                asked_at=notebook.requested_at,
            )
        workload.allocated_at = record.booked_at if workload.allocated_at is None else workload.allocated_at
        workload.state, workload.ended_at = notebook.state.value, record.ended_at
        self.lent.put(notebook.id, notebook.gpu_milli if notebook.state is NotebookState.LENT else 0, now)
        self.waiting.put(notebook.id, notebook.state is NotebookState.REQUESTED, now)

    def _update_devices(self, changes: Changes, now: int) -> None:
        self._devices |= {device.id: device for device in changes.devices}
        changed = {device.id for device in changes.devices}
        for id in changes.released:
            if (gone := self._allocations.pop(id, None)) is not None:
                self._milli_on[gone.device] -= gone.gpu_milli
                changed.add(gone.device)
        for allocation in changes.allocations:
            if allocation.id not in self._allocations:
                self._allocations[allocation.id] = allocation
                self._milli_on[allocation.device] += allocation.gpu_milli
                changed.add(allocation.device)
        for id in changed:
            device = self._devices[id]
            counts = device.pool is not None and device.health is Health.HEALTHY
            milli = self._milli_on[id] if counts else 0
            self.capacity.put(id, WHOLE_DEVICE if counts else 0, now)
            self.allocated.put(id, milli, now)
            self.fragmented.put(id, WHOLE_DEVICE - milli if 0 < milli < WHOLE_DEVICE else 0, now)
