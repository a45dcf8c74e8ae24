"""What is dropped when its time is over; audit rows never are."""

from __future__ import annotations

import threading

from ..database.tables import (
    ALLOCATIONS,
    AUDIT,
    BATCHES,
    HOURS,
    IDEMPOTENCY,
    JOBS,
    LABELS,
    NOTEBOOKS,
    NOTIFICATIONS,
    RANKS,
    RESERVATIONS,
    SAMPLES,
    SECRETS,
    Rows,
)
from ..database.unit_of_work import UnitOfWork
from .activity import forget_activity
from .usage import fold

JOBS_AT_A_TIME = 1_000
SAMPLES_AT_A_TIME = 20_000


def forget_jobs(work: UnitOfWork) -> list[str]:
    """Drop jobs and notebooks that ended before ``work.now``, with everything of them; returns the jobs' ids."""
    jobs = [record.job.id for record in work.over(JOBS, JOBS_AT_A_TIME)]
    notebooks = [record.notebook.id for record in work.over(NOTEBOOKS, JOBS_AT_A_TIME)]
    for rank in work.find(RANKS, "job", jobs):
        work.delete(RANKS, RANKS.key(rank))
    for told in work.find(IDEMPOTENCY, "job", jobs):
        work.delete(IDEMPOTENCY, IDEMPOTENCY.key(told))
    work.fetch(RESERVATIONS, [(id,) for id in jobs + notebooks])
    work.fetch(SECRETS, [(id,) for id in jobs])
    for id in jobs + notebooks:
        work.delete(RESERVATIONS, (id,))
        work.delete(SECRETS, (id,))
    allocations = work.over(ALLOCATIONS, 10 * JOBS_AT_A_TIME)
    fold(work, allocations)
    over = [ALLOCATIONS.key(allocation) for allocation in allocations]
    work.fetch(LABELS, over)
    for key in over:
        work.delete(LABELS, key)
        work.delete(ALLOCATIONS, key)
    for id in jobs:
        work.delete(JOBS, (id,))
    for id in notebooks:
        forget_activity(work, id)
        work.delete(NOTEBOOKS, (id,))
    for notification in work.over(NOTIFICATIONS, JOBS_AT_A_TIME):
        work.delete(NOTIFICATIONS, (notification.id,))
    if jobs or notebooks:
        payload = {"jobs": len(jobs), "notebooks": len(notebooks), "ended_before": work.now}
        last = work.get(AUDIT, (work.last_link[0],))
        work.now = max(work.now, last.at if last else 0)  # the caller names no instant, and the audit never goes back
        work.audit("system:controller", "retention", "retention", payload, None)
    return jobs


def forget_samples(rows: Rows, writer: threading.Lock, before: int, usage_before: int) -> bool:
    """Drop some of the samples and hours of use before an instant; whether there may be more. Nobody waits long."""
    with writer, rows.writing() as scope:
        dropped = scope.delete_below(SAMPLES, "at", before, SAMPLES_AT_A_TIME)
        dropped += scope.delete_below(BATCHES, "at", before, SAMPLES_AT_A_TIME)
        dropped += scope.delete_below(HOURS, "hour_at", usage_before, SAMPLES_AT_A_TIME)
    return dropped >= SAMPLES_AT_A_TIME
