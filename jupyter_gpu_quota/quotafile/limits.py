"""Limits on the size of a quota file, so that every accepted file is previewed and applied in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..core.amounts import gpu_text
from .calendar_section import MAX_CHANGES, MAX_DATES, MAX_ENTRIES, dates_text
from .document import Document
from .fields import FIRST_YEAR, LAST_YEAR
from .yaml_tree import Path

MAX_PROJECTS = 1_000
MAX_LISTED = {
    "pools": 50,
    "departments": 200,
    "projects": MAX_PROJECTS,
    "environments": 200,
    "data": 200,
    "calendar": MAX_ENTRIES,
}
"""Items of each list of the file."""
MAX_QUOTAS = 5_000
"""Quotas of projects and departments, one for each pool that they name."""
MAX_POOL_MILLI = 1_000_000_000
"""A million GPUs: the largest sum of the quotas of all projects and departments in one pool."""

Found = Iterator[tuple[Path, str]]
THE_LIMIT = "the limit of a quota file"


def limit_errors(file: Document) -> Found:
    """Places and sentences for each part of which there are too many: the place of the first one too many."""
    for name, most in MAX_LISTED.items():
        if len(rows := getattr(file, name)) > most:
            yield (name, most), f"{name}: there are {len(rows)}, and {most} are {THE_LIMIT}"
    quotas = [(("departments", i, "quota"), row.quota) for i, row in enumerate(file.departments)]
    quotas += [(("projects", i, "quota"), row.quota) for i, row in enumerate(file.projects)]
    named = "quotas of projects and departments, one for each pool"
    yield from _too_many(named, [(path, len(quota)) for path, quota in quotas], MAX_QUOTAS)
    for pool in file.pools:
        amounts = [((*path, pool.name), quota[pool.name]) for path, quota in quotas if pool.name in quota]
        yield from _most_in_pool(pool.name, [(path, each.notebook + each.training) for path, each in amounts])
    yield from _years_out_of_range(file)
    dates = [(("calendar", i, "when", "dates"), len(row.when.dates or ())) for i, row in enumerate(file.calendar)]
    yield from _too_many("dates in the calendar", dates, MAX_DATES)
    changes = [(("calendar", i), len(row.entry().changes)) for i, row in enumerate(file.calendar)]
    yield from _too_many("changes of quotas in the calendar", changes, MAX_CHANGES)


def _most_in_pool(pool: str, parts: Sequence[tuple[Path, int]]) -> Found:
    """One error for each pool, at the quota with which its quotas become too many GPUs."""
    total, most = sum(milli for _, milli in parts), MAX_POOL_MILLI
    if total > most:
        words = f"the quotas in pool {pool} add up to {gpu_text(total)} GPUs, and {gpu_text(most)} are the limit of one"
        yield _first_above(parts, most), f"{words} pool in a quota file"


def _years_out_of_range(file: Document) -> Found:
    """Dates of the calendar in a year that can only be a typing error."""
    for i, row in enumerate(file.calendar):
        for j, dates in enumerate(row.when.dates or ()):
            year = next((day.year for day in dates if not FIRST_YEAR <= day.year <= LAST_YEAR), None)
            if year is not None:
                words = f"{dates_text(dates)} is in the year {year:04}; write days from {FIRST_YEAR} to {LAST_YEAR}"
                yield ("calendar", i, "when", "dates", j), words


def _too_many(what: str, parts: Sequence[tuple[Path, int]], most: int) -> Found:
    """One error for all of them together, at the part with which they become too many."""
    total = sum(count for _, count in parts)
    if total > most:
        yield _first_above(parts, most), f"there are {total} {what}, and {most} are {THE_LIMIT}"


def _first_above(parts: Sequence[tuple[Path, int]], most: int) -> Path:
    """The part with which the sum is above ``most``."""
    sums = accumulate(count for _, count in parts)
    return next(path for (path, _), so_far in zip(parts, sums, strict=True) if so_far > most)
