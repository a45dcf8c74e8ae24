"""Queue notifications, and record the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..database.tables import JOBS, NOTEBOOKS, NOTIFICATIONS, Where
from ..database.unit_of_work import UnitOfWork
from ..records.commands import Recorded, Refused
from ..records.notifications import (
    ChangeNotification,
    NewNotification,
    NotificationRecord,
    QueueJobNotifications,
)
from ..records.rows import NotebookRecord

MAX_PENDING = 1_000
"""Pending notifications of one channel; the next one is given up at once, which is audited."""

SENDER = "system:notifications"


def queue_notifications(work: UnitOfWork, notebook: NotebookRecord, notifications: Iterable[NewNotification]) -> None:
    """Queue notifications about a notebook for their channels, due now."""
    _queue(work, notebook.notebook.id, notebook.notebook.project, notifications)


def queue_job_notifications(work: UnitOfWork, request: QueueJobNotifications) -> Recorded:
    """Queue notifications about a job for their channels, due now."""
    record = work.get(JOBS, (request.job,))
    if record is None:
        raise Refused.unknown("job", request.job)
    _queue(work, request.job, record.job.project, request.notifications)
    return work.recorded(request.job)


def _queue(work: UnitOfWork, workload: str, project: str, notifications: Iterable[NewNotification]) -> None:
    """Queue each notification; one that exists already is left unchanged."""
    for each in notifications:
        if work.get(NOTIFICATIONS, (each.notification,)) is not None:
            continue
        row = NotificationRecord(
            id=each.notification,
            notebook=workload,
            event=each.event,
            channel=each.channel,
            facts=dict(each.facts),
            at=work.now,
            until=each.until,
            next_at=work.now,
        )
        if _pending(work, each.channel) < MAX_PENDING:
            work.put(NOTIFICATIONS, row)
        else:
            _end(work, row, project, "given_up", SENDER, f"{MAX_PENDING} messages wait for this channel already")


def _pending(work: UnitOfWork, channel: str) -> int:
    where = Where(among={"channel": [channel]}, live=True)
    return work.count(NOTIFICATIONS, where, lambda row: row.channel == channel and row.ended_at is None)


def change_notification(work: UnitOfWork, request: ChangeNotification) -> Recorded:
    """Record an attempt or its outcome. A notification that has ended is left unchanged."""
    row = work.get(NOTIFICATIONS, (request.notification,))
    if row is None or row.ended_at is not None:
        raise Refused("ended", f"The message {request.notification} is no longer pending.")
    match request.change:
        case "try":
            work.put(NOTIFICATIONS, replace(row, attempts=row.attempts + 1, next_at=request.next_at or work.now))
        case "retry":
            work.put(NOTIFICATIONS, replace(row, next_at=request.next_at or work.now, fault=request.why))
        case "sent" | "given_up":
            _end(work, row, _project(work, row.notebook), request.change, request.actor, request.why)
        case _:
            raise Refused("invalid", f"{request.change!r} is not a change of a notification.")
    return work.recorded(row.id)


def _project(work: UnitOfWork, workload: str) -> str | None:
    """The project of a notebook or job; None if retention removed it."""
    notebook, job = work.get(NOTEBOOKS, (workload,)), work.get(JOBS, (workload,))
    return notebook.notebook.project if notebook is not None else None if job is None else job.job.project


def _end(work: UnitOfWork, row: NotificationRecord, project: str | None, state: str, actor: str, why: str) -> None:
    fault = why if state == "given_up" else ""
    work.put(NOTIFICATIONS, replace(row, state=state, ended_at=work.now, fault=fault))
    payload = {"notice": row.id, "event": row.event, "channel": row.channel, "attempts": row.attempts, "why": why}
    work.audit(actor, f"notice.{state}", row.notebook, payload, project)
