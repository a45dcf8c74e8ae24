"""Hours of use: the allocation and use of each device by each workload, kept long after the readings are removed.

The use is summed from readings as they arrive, in this process, and written once a minute: a killed process loses at
most one minute, and each hour has the time that its readings cover. The allocation is computed from the allocations
themselves, to the millisecond; retention adds it to the hours when it removes them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from ...core.samples import DeviceSample
from ..database.tables import ALLOCATIONS, HOURS, JOBS, NOTEBOOKS, RANKS, AllocationRow, Scope, Table, Where
from ..database.unit_of_work import UnitOfWork
from ..records.calls import UsageReader
from ..records.rows import JobStart, UsageHour

HOUR_MS = 3_600_000
WRITE_EVERY_MS = 60_000
MAX_GAP_MS = 60_000
"""A reading covers the time since the previous one of its device, if that is not longer than this."""

MILLI_OF_PERCENT = 10
KEYS_PER_QUERY = 500
HOURS_AT_A_TIME = 2_000
"""Hours that one transaction changes: less than a tenth of the time that other writers wait for the lock."""

Hour = tuple[int, str, str]
"""The beginning of the hour, a workload, a device."""

Part = tuple[str, str, int, int, int]
"""A workload, a device, milli-GPU, since, until."""


class Owner(NamedTuple):
    """The owner of a workload; the default is that of one which retention removed."""

    user: str = ""
    project: str = ""
    pool: str = ""


class Tally:
    """The use by readings that are not in the database yet, in milli-GPU times milliseconds, and in milliseconds.

    Several threads may use a tally: what one of them takes to write, no other one has.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: Counter[Hour] = Counter()
        self._seen: Counter[Hour] = Counter()
        self._written_at: int | None = None

    def take(self, rows: Iterable[DeviceSample], read_at: Mapping[str, int]) -> None:
        """Add stored readings; ``read_at`` is the previous one of each device, which another process may have stored.

        A reading older than the previous one is not counted: the clock was set back.
        """
        known, used, seen = dict(read_at), Counter[Hour](), Counter[Hour]()
        for row in rows:
            before, known[row.device] = known.get(row.device), row.at
            if before is None or not 0 < row.at - before <= MAX_GAP_MS:
                continue
            for hour_at, spent_ms in split_by_hour(before, row.at):
                for workload, percent in row.workloads.items():
                    if percent is not None:
                        seen[hour_at, workload, row.device] += spent_ms
                        used[hour_at, workload, row.device] += percent * MILLI_OF_PERCENT * spent_ms
        self._add(used, seen)

    def take_due(self, now: int) -> list[dict[Hour, tuple[int, int]]]:
        """Remove and return the use to write now, (used in milli-GPU seconds, seen in seconds) by hour.

        Nothing within the minute. Each part is for one transaction. Parts of a second in the newest hour are kept for
        the next time.
        """
        with self._lock:
            self._written_at = now if self._written_at is None else self._written_at
            if 0 <= now - self._written_at < WRITE_EVERY_MS:
                return []
            self._written_at = now
            due = [(hour, (self._used[hour] // 1000, seen // 1000)) for hour, seen in self._seen.items()]
            newest = max((hour_at for hour_at, _, _ in self._seen), default=0)
            self._used = Counter({hour: used % 1000 for hour, used in self._used.items() if hour[0] == newest})
            self._seen = Counter({hour: seen % 1000 for hour, seen in self._seen.items() if hour[0] == newest})
        return [dict(due[first : first + HOURS_AT_A_TIME]) for first in range(0, len(due), HOURS_AT_A_TIME)]

    def put_back(self, parts: Iterable[Mapping[Hour, tuple[int, int]]], now: int) -> None:
        """Add parts that could not be written; they are due at once."""
        not_written = [each for part in parts for each in part.items()]
        used = Counter({hour: used * 1000 for hour, (used, _) in not_written})
        self._add(used, Counter({hour: seen * 1000 for hour, (_, seen) in not_written}))
        with self._lock:
            self._written_at = now - WRITE_EVERY_MS

    def _add(self, used: Counter[Hour], seen: Counter[Hour]) -> None:
        with self._lock:
            self._used.update(used)
            self._seen.update(seen)


def split_by_hour(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """A period divided at whole hours: the beginning of each hour, and the milliseconds of the period in it."""
    at = begin
    while at < end:
        hour_at = at // HOUR_MS * HOUR_MS
        until = min(end, hour_at + HOUR_MS)
        yield hour_at, until - at
        at = until


# --- writing --------------------------------------------------------------------------------------------------------
def add_use(work: UnitOfWork, use: Mapping[Hour, tuple[int, int]]) -> None:
    """Add the use by readings to its hours."""
    for row in _hours(work, use):
        used_milli_s, seen_s = use[row.hour_at, row.workload, row.device]
        work.put(HOURS, replace(row, used_milli_s=row.used_milli_s + used_milli_s, seen_s=row.seen_s + seen_s))


def add_allocated(work: UnitOfWork, allocations: Iterable[AllocationRow]) -> None:
    """Add the amounts of released allocations to their hours; the caller removes them in the same transaction."""
    parts = [
        (each.workload, each.device, each.gpu_milli, row.allocated_at, row.released_at or row.allocated_at)
        for row in allocations
        for each in (row.allocation,)
    ]
    amounts = _by_hour(parts)
    for row in _hours(work, amounts):
        milli_ms, spent_ms = amounts[row.hour_at, row.workload, row.device]
        milli_s, allocated_s = row.allocated_milli_s + milli_ms // 1000, row.allocated_s + spent_ms // 1000
        work.put(HOURS, replace(row, allocated_milli_s=milli_s, allocated_s=allocated_s))


def _hours(work: UnitOfWork, keys: Iterable[Hour]) -> list[UsageHour]:
    """The rows of hours; new ones where none are stored, with the owners of their workloads."""
    wanted = list(keys)
    work.fetch(HOURS, wanted)
    stored = {key: row for key in wanted if (row := work.get(HOURS, key)) is not None}
    new = [key for key in wanted if key not in stored]
    owners = _owners_of(work.scope, sorted({workload for _, workload, _ in new}))
    for key in new:
        hour_at, workload, device = key
        owner = owners.get(workload, Owner())
        stored[key] = UsageHour(hour_at=hour_at, workload=workload, device=device, **owner._asdict())
    return [stored[key] for key in wanted]


# --- reading --------------------------------------------------------------------------------------------------------
COLUMNS = tuple(field.name for field in fields(UsageHour))
PARTS = ("workload", "device", "gpu_milli", "allocated_at", "released_at")
OWNERS = ("id", "user", "project", "pool")
OWNED: tuple[Table[Any], ...] = (NOTEBOOKS, JOBS)


def usage_between(
    scope: Scope, begin: int, end: int, *, now: int, reader: UsageReader | None = None
) -> list[UsageHour]:
    """Every hour that begins in [begin, end), by workload and device, in any order; of a reader, those they see."""
    seen = [] if reader is None else [{"user": [reader.user], "project": reader.projects}]
    within = Where(at_least={"hour_at": begin}, below={"hour_at": end}, either=seen)
    had, owners = dict[Hour, list[int]](), dict[str, Owner]()
    for hour_at, workload, device, user, project, pool, *figures in scope.pick(HOURS, COLUMNS, within):
        had[hour_at, workload, device] = figures
        owners[workload] = Owner(user, project, pool)
    parts = _allocated(scope, begin, end, now)
    owners |= _owners_of(scope, sorted({workload for workload, *_ in parts} - owners.keys()), seen)
    if reader is not None:  # before they are divided: a share of a month has 744 hours
        parts = [part for part in parts if part[0] in owners]
    for hour, (milli_ms, spent_ms) in _by_hour(parts).items():
        row = had.setdefault(hour, [0, 0, 0, 0])
        row[0] += milli_ms // 1000
        row[1] += spent_ms // 1000
    unknown = Owner()
    return [
        UsageHour(
            hour_at=hour_at, workload=workload, device=device,
            user=owner.user, project=owner.project, pool=owner.pool,
            allocated_milli_s=figures[0], allocated_s=figures[1], used_milli_s=figures[2], seen_s=figures[3],
        )
        for (hour_at, workload, device), figures in had.items()
        for owner in (owners.get(workload, unknown),)
    ]  # fmt: skip


def _allocated(scope: Scope, begin: int, end: int, now: int) -> list[Part]:
    """The parts of stored allocations in a period."""
    before_end = {"allocated_at": end}
    live = Where(below=before_end, live=True)
    released = Where(below=before_end, at_least={"released_at": begin})
    rows = (*scope.pick(ALLOCATIONS, PARTS, live), *scope.pick(ALLOCATIONS, PARTS, released))
    return [
        (workload, device, milli, max(begin, since), min(end, now if until is None else until))
        for workload, device, milli, since, until in rows
    ]


def _by_hour(parts: Iterable[Part]) -> dict[Hour, list[int]]:
    """Milli-GPU times milliseconds, and milliseconds, in each hour of these parts."""
    found = dict[Hour, list[int]]()
    for workload, device, gpu_milli, since, until in parts:
        for hour_at, spent_ms in split_by_hour(since, until):
            row = found.setdefault((hour_at, workload, device), [0, 0])
            row[0] += gpu_milli * spent_ms
            row[1] += spent_ms
    return found


def _owners_of(
    scope: Scope, workloads: Sequence[str], either: Sequence[Mapping[str, Sequence[str]]] = ()
) -> dict[str, Owner]:
    """The owners of stored workloads for which the conditions hold."""
    found = dict[str, Owner]()
    for ids in _parts(workloads):
        where = Where(among={"id": ids}, either=either)
        for table in OWNED:
            found |= {id: Owner(*owner) for id, *owner in scope.pick(table, OWNERS, where)}
    return found


def job_starts(scope: Scope, workloads: Sequence[str]) -> dict[str, JobStart]:
    """The first start of each workload that is a job."""
    found, first = dict[str, JobStart](), dict[str, int]()
    for ids in _parts(workloads):
        for job, started_at in scope.pick(RANKS, ("job", "started_at"), Where(among={"job": ids})):
            if started_at is not None:
                first[job] = min(started_at, first.get(job, started_at))
        for job, submitted_at in scope.pick(JOBS, ("id", "submitted_at"), Where(among={"id": ids})):
            found[job] = JobStart(submitted_at=submitted_at, started_at=first.get(job))
    return found


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids divided into those of one query each."""
    return (ids[start : start + KEYS_PER_QUERY] for start in range(0, len(ids), KEYS_PER_QUERY))
