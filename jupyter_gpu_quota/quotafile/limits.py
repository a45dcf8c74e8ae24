"""How large a quota file may be, part by part, so that whatever is accepted is previewed and applied in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..core.amounts import gpu_text
from .calendar_section import MOST_CHANGES, MOST_DATES, MOST_ENTRIES
from .document import Document
from .fields import FIRST_YEAR, LAST_YEAR
from .yaml_tree import Path

MOST_POOLS = 50
MOST_DEPARTMENTS = 200
MOST_PROJECTS = 1_000
MOST_ENVIRONMENTS = 200
MOST_QUOTAS = 5_000
"""Quotas of projects and departments, one for each pool that they name."""
MOST_IN_A_POOL_MILLI = 1_000_000_000
"""A million GPUs: what the quotas of all projects and departments in one pool add up to at most."""

Found = Iterator[tuple[Path, str]]


def excesses(file: Document) -> Found:
    """Places and sentences for each part of which there is more than is taken: at the first one too many."""
    yield from _list("pools", file.pools, MOST_POOLS)
    yield from _list("departments", file.departments, MOST_DEPARTMENTS)
    yield from _list("projects", file.projects, MOST_PROJECTS)
    yield from _list("environments", file.environments, MOST_ENVIRONMENTS)
    yield from _list("calendar", file.calendar, MOST_ENTRIES)
    quotas = [(("departments", i, "quota"), len(row.quota)) for i, row in enumerate(file.departments)]
    quotas += [(("projects", i, "quota"), len(row.quota)) for i, row in enumerate(file.projects)]
    yield from _sum("quotas of projects and departments, one for each pool", quotas, MOST_QUOTAS)
    yield from _sums(file)
    yield from _strange_years(file)
    dates = [(("calendar", i, "when", "dates"), len(row.when.dates or ())) for i, row in enumerate(file.calendar)]
    yield from _sum("dates in the calendar", dates, MOST_DATES)
    changes = [(("calendar", i), len(row.entry().changes)) for i, row in enumerate(file.calendar)]
    yield from _sum("changes of quotas in the calendar", changes, MOST_CHANGES)


def _sums(file: Document) -> Found:
    """One error for each pool, at the quota with which its quotas become too many GPUs."""
    rows = [(("departments", i), row.quota) for i, row in enumerate(file.departments)]
    rows += [(("projects", i), dict(row.quota)) for i, row in enumerate(file.projects)]
    for pool in file.pools:
        parts = [((*path, "quota", pool.name), quota[pool.name]) for path, quota in rows if pool.name in quota]
        milli = [(path, amounts.notebook + amounts.training) for path, amounts in parts]
        total = sum(count for _, count in milli)
        if total > MOST_IN_A_POOL_MILLI:
            yield (
                _first_above(milli, MOST_IN_A_POOL_MILLI),
                f"the quotas in pool {pool.name} add up to {gpu_text(total)} GPUs, and {gpu_text(MOST_IN_A_POOL_MILLI)}"
                " are the most that a quota file may give in one pool",
            )


def _strange_years(file: Document) -> Found:
    """Dates of the calendar so far away that a digit was mistyped."""
    for i, row in enumerate(file.calendar):
        for j, (first, last) in enumerate(row.when.when().dates or ()):
            year = first.year if first.year < FIRST_YEAR else last.year
            if not FIRST_YEAR <= year <= LAST_YEAR:
                yield (
                    ("calendar", i, "when", "dates", j),
                    f"{(row.when.dates or [])[j]} is in the year {year:04}; write days from {FIRST_YEAR} to"
                    f" {LAST_YEAR}",
                )


def _list(name: str, rows: Sequence[object], most: int) -> Found:
    if len(rows) > most:
        yield (name, most), f"{name}: there are {len(rows)}, and {most} are the most that a quota file may have"


def _sum(what: str, parts: Iterable[tuple[Path, int]], most: int) -> Found:
    """One error for all of them together, at the part with which they become too many."""
    parts = list(parts)
    total = sum(count for _, count in parts)
    if total > most:
        words = f"there are {total} {what}, and {most} are the most that a quota file may have"
        yield _first_above(parts, most), words


def _first_above(parts: Sequence[tuple[Path, int]], most: int) -> Path:
    so_far = 0
    for path, count in parts:
        so_far += count
        if so_far > most:
            return path
    return ()
