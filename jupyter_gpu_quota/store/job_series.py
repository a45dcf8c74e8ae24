"""The series of each job: its metrics and progress as it reported them, and the use of its devices as it was read.

A series has at most SLOTS slots of equal width. When a job lasts longer, the width doubles, and pairs of slots become
one, so a series has the same size after a week as after an hour. Points are collected in this process and written every
ten seconds, apart from decisions, so a killed process loses at most ten seconds. A series is removed with its job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.facts import RankFact
from ..core.samples import DeviceSample
from .database.tables import JOBS, SERIES
from .database.unit_of_work import UnitOfWork
from .records.rows import DONE, MEMORY, METRIC, USE, JobSeries, Slot
from .writes.observe import finite, whole_number
from .writes.usage import MILLI_OF_PERCENT

SLOTS = 120
WIDTH_MS = 10_000
"""The width of a slot of a new series."""
WRITE_EVERY_MS = 10_000
SERIES_AT_A_TIME = 50
"""Jobs whose points one transaction writes: each costs about 2 ms."""
MAX_METRICS = 32
"""The number of metrics of one job that have a series, the first by name."""
MAX_NAME = 100

Point = tuple[int, str, float]
"""An instant, the name of a series, and a value."""


class Points:
    """The points that are not in the database yet, by workload. Several threads may add and take points."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, list[Point]] = {}
        self._written_at: int | None = None

    def take_facts(self, facts: Iterable[RankFact], now: int) -> None:
        """Add the progress and the metrics that jobs reported. Rank 0 reports for all ranks."""
        found: dict[str, list[Point]] = {}
        for fact in facts:
            if fact.rank == 0:
                kept = sorted((name, value) for name, value in finite(fact.metrics).items() if len(name) <= MAX_NAME)
                points: list[Point] = [(now, METRIC + name, value) for name, value in kept[:MAX_METRICS]]
                if (done := whole_number(fact.done)) is not None:
                    points.append((now, DONE, done))
                if points:
                    found.setdefault(fact.job, []).extend(points)
        self._add(found)

    def take_samples(self, rows: Iterable[DeviceSample]) -> None:
        """Add the use of devices. Unknown use adds no point."""
        found: dict[str, list[Point]] = {}
        for row in rows:
            for workload, percent in row.workloads.items():
                points = found.setdefault(workload, [])
                if percent is not None:
                    points.append((row.at, USE + row.device, percent * MILLI_OF_PERCENT))
                if (mib := row.workload_memory_mib.get(workload)) is not None:
                    points.append((row.at, MEMORY + row.device, mib))
        self._add(found)

    def _add(self, found: Mapping[str, Sequence[Point]]) -> None:
        with self._lock:
            for workload, points in found.items():
                self._points.setdefault(workload, []).extend(points)

    def take_due(self, now: int) -> Mapping[str, Sequence[Point]]:
        """Remove and return the points to write now; none if points were written in the last ten seconds."""
        with self._lock:
            self._written_at = now if self._written_at is None else self._written_at
            if 0 <= now - self._written_at < WRITE_EVERY_MS:
                return {}
            found, self._points, self._written_at = self._points, {}, now
            return found


def write_points(work: UnitOfWork, due: Mapping[str, Sequence[Point]]) -> None:
    """Add points to the series of their jobs; those of notebooks, and of jobs that were removed, are dropped."""
    work.fetch(JOBS, [(workload,) for workload in due])
    jobs = {id: points for id, points in due.items() if points and work.get(JOBS, (id,)) is not None}
    work.fetch(SERIES, [(id,) for id in jobs])
    for id, points in jobs.items():
        begins_at = min(at for at, _, _ in points)
        row = work.get(SERIES, (id,)) or JobSeries(job=id, begins_at=begins_at, width_ms=WIDTH_MS)
        work.put(SERIES, with_points(row, points))


def with_points(row: JobSeries, points: Iterable[Point]) -> JobSeries:
    """The series with more points, in slots that are wide enough. A point before its beginning is in its first slot."""
    series = {name: {slot[0]: slot for slot in slots} for name, slots in row.series.items()}
    width = row.width_ms
    for at, name, value in points:
        while (slot := max(0, at - row.begins_at) // width) >= SLOTS:
            width *= 2
            series = {known: _halved(slots) for known, slots in series.items()}
        slots = series.setdefault(name, {})
        new = slot, 1, value, value, value
        slots[slot] = _merged(slots[slot], new) if slot in slots else new
    found = {name: tuple(slots[at] for at in sorted(slots)) for name, slots in series.items()}
    return replace(row, width_ms=width, series=found)


def _halved(slots: Mapping[int, Slot]) -> dict[int, Slot]:
    """Pairs of slots as one."""
    found: dict[int, Slot] = {}
    for at in sorted(slots):
        moved = at // 2, *slots[at][1:]
        found[at // 2] = _merged(found[at // 2], moved) if at // 2 in found else moved
    return found


def _merged(one: Slot, other: Slot) -> Slot:
    """Two slots as one: the mean is that of all points, and never overflows."""
    count = one[1] + other[1]
    mean = one[2] * (one[1] / count) + other[2] * (other[1] / count)
    return one[0], count, mean, min(one[3], other[3]), max(one[4], other[4])
