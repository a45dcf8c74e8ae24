"""Retention: remove old rows. Audit rows are never removed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from ..database import tables
from ..database.tables import Rows, Where
from ..database.unit_of_work import UnitOfWork
from ..records.activity import Note
from ..records.rows import JobRecord
from .activity import delete_notes, forget_activity
from .usage import HOUR_MS, HOURS_AT_A_TIME, add_allocated

JOBS_AT_A_TIME = 1_000
RANKS_AT_A_TIME = 2_000
"""Ranks and notes that one transaction removes: less than a tenth of the time that other writers wait for the lock."""

SAMPLES_AT_A_TIME = 20_000
NOTE_KEY = ("retention", "jobs", 0)


def forget_allocations(work: UnitOfWork, ended_before: int) -> bool:
    """Remove some allocations that ended before an instant, and add their amounts to the hours; False: none is left."""
    ended, hours = work.ended(tables.ALLOCATIONS, ended_before, HOURS_AT_A_TIME), 0
    removed = list[tables.AllocationRow]()
    for row in ended:
        hours += ((row.released_at or row.allocated_at) - row.allocated_at) // HOUR_MS + 2
        if removed and hours > HOURS_AT_A_TIME:
            break
        removed.append(row)
    add_allocated(work, removed)
    keys = [tables.ALLOCATIONS.key(row) for row in removed]
    work.fetch(tables.LABELS, keys)
    for key in keys:
        work.delete(tables.LABELS, key)
        work.delete(tables.ALLOCATIONS, key)
    return bool(keys)


def forget_jobs(work: UnitOfWork, found: Sequence[str], ended_before: int) -> tuple[list[str], bool]:
    """Remove some of the jobs that were found, and some notebooks, which ended before an instant, with all their rows.

    Returns the jobs' ids, and whether some of these jobs are left. One with very many ranks loses these in several
    transactions. Their allocations were removed before: the hours of those need their owners. Notebooks whose servers
    may request their slices again stay.
    """
    work.fetch(tables.JOBS, [(id,) for id in found])
    records = [record for id in found if (record := work.get(tables.JOBS, (id,))) is not None]
    ended = [record for record in records if record.ended_at is not None and record.ended_at < ended_before]
    jobs = _first_of(ended)
    if len(jobs) == 1 and _forget_ranks(work, jobs[0]):
        return [], True
    notebooks = _ended_notebooks(work, ended_before)
    for rank in work.find(tables.RANKS, "job", jobs):
        work.delete(tables.RANKS, tables.RANKS.key(rank))
    for row in work.find(tables.IDEMPOTENCY, "job", jobs):
        work.delete(tables.IDEMPOTENCY, tables.IDEMPOTENCY.key(row))
    work.fetch(tables.RESERVATIONS, [(id,) for id in jobs + notebooks])
    work.fetch(tables.SECRETS, [(id,) for id in jobs])
    work.fetch(tables.SERIES, [(id,) for id in jobs])
    for id in jobs + notebooks:
        work.delete(tables.RESERVATIONS, (id,))
        work.delete(tables.SECRETS, (id,))
        work.delete(tables.SERIES, (id,))
    work.find_ahead(tables.NOTES, "subject", jobs)
    for id in jobs:
        delete_notes(work, id)
        work.delete(tables.JOBS, (id,))
    for id in notebooks:
        forget_activity(work, id)
        work.delete(tables.NOTEBOOKS, (id,))
    for notification in work.ended(tables.NOTIFICATIONS, ended_before, JOBS_AT_A_TIME):
        work.delete(tables.NOTIFICATIONS, (notification.id,))
    if jobs or notebooks:
        seq = work.last_link[0]
        work.fetch(tables.NOTES, [NOTE_KEY])
        work.put(tables.NOTES, Note(kind="retention", subject="jobs", at=work.now, document={"after_audit_row": seq}))
        payload = {"jobs": len(jobs), "notebooks": len(notebooks), "ended_before": ended_before}
        work.audit("system:controller", "retention", "retention", payload, None)
    return jobs, len(jobs) < len(ended)


def _first_of(ended: Iterable[JobRecord]) -> list[str]:
    """The first jobs, as many as have together at most so many ranks and notes as one transaction removes, or one."""
    jobs, rows = list[str](), 0
    for record in ended:
        rows += record.job.ranks * record.job.attempt + 1  # an elastic job may have had fewer, and a job has few notes
        if jobs and rows > RANKS_AT_A_TIME:
            break
        jobs.append(record.job.id)
    return jobs


def _forget_ranks(work: UnitOfWork, job: str) -> bool:
    """Remove some ranks of a job; True: it has more."""
    ranks, count = work.some(tables.RANKS, Where(among={"job": [job]}), RANKS_AT_A_TIME)
    for rank in ranks:
        work.delete(tables.RANKS, tables.RANKS.key(rank))
    return count > len(ranks)


def _ended_notebooks(work: UnitOfWork, before: int) -> list[str]:
    """Some notebooks to remove. Those that stay ended first, and must not fill the page."""
    limit = JOBS_AT_A_TIME
    while True:
        ended = work.ended(tables.NOTEBOOKS, before, limit)
        due = [record.notebook.id for record in ended if not record.may_request_again]
        if due or len(ended) < limit:
            return due[:JOBS_AT_A_TIME]
        limit *= 2


def forget_samples(rows: Rows, writer: threading.Lock, before: int, usage_before: int) -> bool:
    """Remove some of the samples and hours of use before an instant, in a short transaction; True: call again."""
    with writer, rows.writing() as scope:
        dropped = scope.delete_below(tables.SAMPLES, "at", before, SAMPLES_AT_A_TIME)
        dropped += scope.delete_below(tables.BATCHES, "at", before, SAMPLES_AT_A_TIME)
        dropped += scope.delete_below(tables.HOURS, "hour_at", usage_before, SAMPLES_AT_A_TIME)
    return dropped >= SAMPLES_AT_A_TIME
