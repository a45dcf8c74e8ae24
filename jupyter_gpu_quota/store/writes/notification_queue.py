"""Queue notifications, and record the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..database.tables import NOTEBOOKS, NOTIFICATIONS, Where
from ..database.unit_of_work import UnitOfWork
from ..records.commands import Recorded, Refused
from ..records.notifications import ChangeNotification, NewNotification, NotificationRecord
from ..records.rows import NotebookRecord

MAX_PENDING = 1_000
"""Pending notifications of one channel; the next one is given up at once, which is audited."""

SENDER = "system:notices"


def queue_notifications(work: UnitOfWork, notebook: NotebookRecord, notifications: Iterable[NewNotification]) -> None:
    """Queue notifications for their channels, due now. One that exists already is left unchanged."""
    for each in notifications:
        if work.get(NOTIFICATIONS, (each.notification,)) is not None:
            continue
        row = NotificationRecord(
            id=each.notification,
            notebook=notebook.notebook.id,
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
            _end(work, row, notebook, "given_up", SENDER, f"{MAX_PENDING} messages wait for this channel already")


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
            _end(work, row, work.get(NOTEBOOKS, (row.notebook,)), request.change, request.actor, request.why)
        case _:
            raise Refused("invalid", f"{request.change!r} is no change of a notification.")
    return work.recorded(row.id)


def _end(
    work: UnitOfWork, row: NotificationRecord, notebook: NotebookRecord | None, state: str, actor: str, why: str
) -> None:
    fault = why if state == "given_up" else ""
    work.put(NOTIFICATIONS, replace(row, state=state, ended_at=work.now, fault=fault))
    payload = {"notice": row.id, "event": row.event, "channel": row.channel, "attempts": row.attempts, "why": why}
    project = None if notebook is None else notebook.notebook.project
    work.audit(actor, f"notice.{state}", row.notebook, payload, project)
