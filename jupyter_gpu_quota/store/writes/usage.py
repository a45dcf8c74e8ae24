"""Hours of use: what every workload had and used of every device, kept long after the readings are gone.

Used is summed from readings as they come, in this process, and written once a minute: a process that is killed leaves
at most a minute uncounted, and the hour says for how much of it anything is known. Allocated is not summed: allocations
say it themselves, to the millisecond, and write it into their hours when retention takes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...core.samples import DeviceSample
from ..database.tables import ALLOCATIONS, HOURS, JOBS, NOTEBOOKS, AllocationRow, HourRow, Key, Scope, Table, Where
from ..database.unit_of_work import UnitOfWork
from ..records.rows import UsageHour

HOUR_MS = 3_600_000
WRITE_EVERY_MS = 60_000
SPEAKS_MS = 60_000
"""A reading speaks for the time since the one before it of its device, if that is no longer ago than this."""

MILLI_OF_PERCENT = 10
KEYS_PER_QUERY = 500

Hour = tuple[int, str, str]
"""When it begins, a workload, a device."""


class Owner(NamedTuple):
    """Whose a workload is."""

    user: str = ""
    project: str = ""
    pool: str = ""


NOBODY = Owner()
"""Of a workload that retention has taken already."""


class Tally:
    """What readings told that is not in the database yet, in milli-GPU times milliseconds, and in milliseconds."""

    def __init__(self) -> None:
        self._read_at: dict[str, int] = {}
        self._used: Counter[Hour] = Counter()
        self._seen: Counter[Hour] = Counter()
        self._written_at: int | None = None

    def take(self, rows: Iterable[DeviceSample]) -> None:
        """Readings that are stored; one that is older than the one before says nothing: the clock was set."""
        for row in rows:
            before, self._read_at[row.device] = self._read_at.get(row.device), row.at
            if before is None or not 0 < row.at - before <= SPEAKS_MS:
                continue
            for hour_at, spent_ms in split_by_hour(before, row.at):
                for workload, percent in row.workloads.items():
                    if percent is not None:
                        self._seen[hour_at, workload, row.device] += spent_ms
                        self._used[hour_at, workload, row.device] += percent * MILLI_OF_PERCENT * spent_ms

    def due(self, now: int) -> dict[Hour, tuple[int, int]]:
        """What is to be written, (used in milli-GPU seconds, seen in seconds) by hour; nothing before it is time."""
        self._written_at = now if self._written_at is None else self._written_at
        if 0 <= now - self._written_at < WRITE_EVERY_MS:
            return {}
        return {hour: (self._used[hour] // 1000, seen // 1000) for hour, seen in self._seen.items()}

    def forget(self, written: Mapping[Hour, tuple[int, int]], now: int) -> None:
        """Those were written; what was less than a second of them is kept for the next time."""
        if not written:
            return
        self._written_at = now
        for hour, (used, seen) in written.items():
            self._used[hour] -= used * 1000
            self._seen[hour] -= seen * 1000
        open_hours = {max(hour_at for hour_at, _, _ in written)}
        self._used = Counter({hour: rest for hour, rest in self._used.items() if hour[0] in open_hours})
        self._seen = Counter({hour: rest for hour, rest in self._seen.items() if hour[0] in open_hours})


def split_by_hour(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """A stretch cut at whole hours: when each hour begins, and how many milliseconds of the stretch are in it."""
    at = begin
    while at < end:
        hour_at = at // HOUR_MS * HOUR_MS
        until = min(end, hour_at + HOUR_MS)
        yield hour_at, until - at
        at = until


# --- writing --------------------------------------------------------------------------------------------------------
def put_use(work: UnitOfWork, told: Mapping[Hour, tuple[int, int]]) -> None:
    """Add what readings told to its hours."""
    rows = _hours(work, told)
    for hour, (used_milli_s, seen_s) in told.items():
        row = rows[hour]
        work.put(HOURS, replace(row, used_milli_s=row.used_milli_s + used_milli_s, seen_s=row.seen_s + seen_s))


def fold(work: UnitOfWork, allocations: Sequence[AllocationRow]) -> None:
    """Write what allocations gave into their hours; they are dropped in the same transaction."""
    milli, seconds = Counter[Hour](), Counter[Hour]()
    for row in allocations:
        part = row.allocation
        for hour_at, spent_ms in split_by_hour(row.allocated_at, row.released_at or row.allocated_at):
            milli[hour_at, part.workload, part.device] += part.gpu_milli * spent_ms
            seconds[hour_at, part.workload, part.device] += spent_ms
    rows = _hours(work, milli)
    for hour, milli_ms in milli.items():
        had = rows[hour]
        milli_s, allocated_s = had.allocated_milli_s + milli_ms // 1000, had.allocated_s + seconds[hour] // 1000
        work.put(HOURS, replace(had, allocated_milli_s=milli_s, allocated_s=allocated_s))


def _hours(work: UnitOfWork, keys: Iterable[Hour]) -> dict[Hour, HourRow]:
    """The rows of hours, new ones where there are none yet, with the owners of their workloads."""
    wanted = list(keys)
    there = {HOURS.key(row): row for row in work.find(HOURS, "hour_at", sorted({hour_at for hour_at, _, _ in wanted}))}
    known = {key: row for key in wanted if (row := there.get(key)) is not None}
    new = [key for key in wanted if key not in known]
    owners = _owners(work, {workload for _, workload, _ in new})
    return known | {
        key: HourRow(hour_at=key[0], workload=key[1], device=key[2], **owners[key[1]]._asdict()) for key in new
    }


def _owners(work: UnitOfWork, workloads: Iterable[str]) -> dict[str, Owner]:
    keys: list[Key] = [(workload,) for workload in sorted(workloads)]
    work.fetch(NOTEBOOKS, keys)
    work.fetch(JOBS, [key for key in keys if work.get(NOTEBOOKS, key) is None])
    return {str(key[0]): _owner(work, key) for key in keys}


def _owner(work: UnitOfWork, key: Key) -> Owner:
    notebook = work.get(NOTEBOOKS, key)
    job = None if notebook is not None else work.get(JOBS, key)
    one = notebook.notebook if notebook is not None else None if job is None else job.job
    return NOBODY if one is None else Owner(one.user, one.project, one.pool)


# --- reading --------------------------------------------------------------------------------------------------------
COLUMNS = (
    "hour_at", "workload", "device", "user", "project", "pool", "allocated_milli_s", "allocated_s", "used_milli_s",
    "seen_s",
)  # fmt: skip
PARTS = ("workload", "device", "gpu_milli", "allocated_at", "released_at")
OWNERS = ("id", "user", "project", "pool")


def usage_between(scope: Scope, begin: int, end: int, *, now: int) -> list[UsageHour]:
    """Every hour that begins in [begin, end), by workload and device, in any order."""
    within = Where(at_least={"hour_at": begin}, below={"hour_at": end})
    had, owners = dict[Hour, list[int]](), dict[str, Owner]()
    for hour_at, workload, device, user, project, pool, *figures in _picked(scope, HOURS, COLUMNS, within):
        had[hour_at, workload, device] = figures
        owners[workload] = Owner(user, project, pool)
    for hour, (milli_ms, spent_ms) in _allocated(scope, begin, end, now).items():
        row = had.setdefault(hour, [0, 0, 0, 0])
        row[0] += milli_ms // 1000
        row[1] += spent_ms // 1000
    owners |= _owners_of(scope, sorted({workload for _, workload, _ in had} - owners.keys()))
    return [UsageHour(*hour, *owners.get(hour[1], NOBODY), *figures) for hour, figures in had.items()]


def _picked(scope: Scope, table: Table[Any], columns: Sequence[str], where: Where) -> list[Any]:
    return scope.pick(table, columns, where)


def _allocated(scope: Scope, begin: int, end: int, now: int) -> dict[Hour, list[int]]:
    """What allocations that are still kept gave, in milli-GPU times milliseconds, and in milliseconds."""
    before_end = {"allocated_at": end}
    live = Where(below=before_end, live=True)
    over = Where(below=before_end, at_least={"released_at": begin})
    found = dict[Hour, list[int]]()
    for workload, device, gpu_milli, since, until in (
        *_picked(scope, ALLOCATIONS, PARTS, live), *_picked(scope, ALLOCATIONS, PARTS, over)
    ):  # fmt: skip
        last = min(end, now if until is None else until)
        for hour_at, spent_ms in split_by_hour(max(begin, since), last):
            row = found.setdefault((hour_at, workload, device), [0, 0])
            row[0] += gpu_milli * spent_ms
            row[1] += spent_ms
    return found


def _owners_of(scope: Scope, workloads: Sequence[str]) -> dict[str, Owner]:
    found = dict[str, Owner]()
    for start in range(0, len(workloads), KEYS_PER_QUERY):
        where = Where(among={"id": workloads[start : start + KEYS_PER_QUERY]})
        for table in (NOTEBOOKS, JOBS):
            found |= {id: Owner(*owner) for id, *owner in _picked(scope, table, OWNERS, where)}
    return found
