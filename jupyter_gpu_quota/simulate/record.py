"""What happened in one simulated world, as it was seen in the store's changes: the raw material of the figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core.lifecycle import FINAL, HOLDS_GPU, WAITING
from ..core.model import WHOLE_DEVICE, Allocation, Device, Health, JobState, Notebook, NotebookState
from ..store.records.rows import Changes, JobRecord, NotebookRecord


@dataclass(slots=True)
class Curve:
    """A quantity over time, constant between the instants at which it changed."""

    steps: list[tuple[int, int]] = field(default_factory=list)

    def set(self, at: int, value: int) -> None:
        """From ``at`` on it is ``value``; instants only grow."""
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
        """The mean in each of so many equal parts of the time."""
        width = max(1.0, (end - begin) / parts)
        sums = [0.0] * parts
        for low, high, value in self.spans(begin, end):
            first, last = int((low - begin) // width), min(parts - 1, int((high - 1 - begin) // width))
            for part in range(first, last + 1):
                left, right = begin + part * width, begin + (part + 1) * width
                sums[part] += max(0.0, min(high, right) - max(low, left)) * value
        return [total / width for total in sums]


@dataclass(slots=True, kw_only=True)
class Story:
    """One job or notebook: ``had_at`` is when it was first handed its devices."""

    project: str
    size_milli: int
    asked_at: int
    had_at: int | None = None
    ended_at: int | None = None
    state: str = ""
    pauses: int = 0


@dataclass(slots=True)
class Record:
    """Sees every change; curves are in milli-GPU, or count workloads."""

    jobs: dict[str, Story] = field(default_factory=dict)
    notebooks: dict[str, Story] = field(default_factory=dict)
    capacity: Curve = field(default_factory=Curve)
    allocated: Curve = field(default_factory=Curve)
    broken: Curve = field(default_factory=Curve)
    waiting: Curve = field(default_factory=Curve)
    lent: Curve = field(default_factory=Curve)
    used_by: dict[str, Curve] = field(default_factory=lambda: defaultdict(Curve))
    _devices: dict[str, Device] = field(default_factory=dict)
    _held: dict[str, Allocation] = field(default_factory=dict)
    _on: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _waits: set[str] = field(default_factory=set)
    _lent: dict[str, int] = field(default_factory=dict)
    _lent_milli: int = 0
    _holds: dict[str, tuple[str, int]] = field(default_factory=dict)
    _use: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def see(self, changes: Changes, now: int) -> None:
        """Take in what changed by ``now``."""
        for record in changes.jobs:
            self._see_job(record, now)
        for seen in changes.notebooks:
            self._see_notebook(seen, now)
        self._see_devices(changes, now)
        self.waiting.set(now, len(self._waits))

    def _see_job(self, record: JobRecord, now: int) -> None:
        job = record.job
        size = job.gpu_milli * job.ranks
        story = self.jobs.get(job.id)
        if story is None:
            story = self.jobs[job.id] = Story(project=job.project, size_milli=size, asked_at=job.submitted_at)
        if story.had_at is None and job.attempt:
            story.had_at = now
        story.state, story.ended_at, story.pauses = job.state.value, record.ended_at, record.pauses
        (self._waits.add if job.state in WAITING else self._waits.discard)(job.id)
        self._note_use(job.id, job.project, job.held_milli if job.state in HOLDS_GPU else 0, now)

    def _note_use(self, workload: str, project: str, milli: int, now: int) -> None:
        before = self._holds.pop(workload, (project, 0))
        if milli:
            self._holds[workload] = project, milli
        if before != (project, milli):
            self._use[project] += milli - before[1]
            self.used_by[project].set(now, self._use[project])

    def _see_notebook(self, record: NotebookRecord, now: int) -> None:
        notebook = record.notebook
        story = self.notebooks.get(notebook.id)
        if story is None:
            story = self.notebooks[notebook.id] = Story(
                project=notebook.project, size_milli=notebook.gpu_milli, asked_at=notebook.requested_at
            )
        story.had_at = record.booked_at if story.had_at is None else story.had_at
        story.state, story.ended_at = notebook.state.value, record.ended_at
        self._note_loan(notebook, now)
        waits = notebook.state is NotebookState.REQUESTED
        (self._waits.add if waits else self._waits.discard)(notebook.id)

    def _note_loan(self, notebook: Notebook, now: int) -> None:
        milli = notebook.gpu_milli if notebook.state is NotebookState.LENT else 0
        before = self._lent.pop(notebook.id, 0)
        if milli:
            self._lent[notebook.id] = milli
        self._lent_milli += milli - before
        self.lent.set(now, self._lent_milli)

    # --- devices --------------------------------------------------------------------------------------------------
    def _see_devices(self, changes: Changes, now: int) -> None:
        for device in changes.devices:
            self._devices[device.id] = device
        moved = {device.id for device in changes.devices}
        for id in changes.released:
            if (held := self._held.pop(id, None)) is not None:
                self._on[held.device] -= held.gpu_milli
                moved.add(held.device)
        for allocation in changes.allocations:
            if allocation.id not in self._held:
                self._held[allocation.id] = allocation
                self._on[allocation.device] += allocation.gpu_milli
                moved.add(allocation.device)
        if moved:
            self._sum_up(now)

    def _sum_up(self, now: int) -> None:
        given = [d.id for d in self._devices.values() if d.pool is not None and d.health is Health.HEALTHY]
        carried = [self._on[id] for id in given]
        self.capacity.set(now, len(given) * WHOLE_DEVICE)
        self.allocated.set(now, sum(carried))
        self.broken.set(now, sum(WHOLE_DEVICE - milli for milli in carried if 0 < milli < WHOLE_DEVICE))

    @property
    def unfinished(self) -> list[str]:
        """Jobs that have not ended."""
        return [name for name, story in self.jobs.items() if JobState(story.state) not in FINAL]
