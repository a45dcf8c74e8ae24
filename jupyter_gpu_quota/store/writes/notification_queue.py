"""Queue messages with the judgement that they tell of, and keep what becomes of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..database.tables import NOTEBOOKS, NOTICES, Where
from ..database.unit_of_work import Work
from ..records.commands import Recorded, Refusal
from ..records.notifications import ChangeNotice, NewNotice, NoticeRecord
from ..records.rows import NotebookRecord

MOST_PENDING = 1_000
"""Messages of one channel that may wait; whatever comes then is given up at once, and the audit says so."""

SENDER = "system:notices"
PENDING, SENT, GIVEN_UP = "pending", "sent", "given_up"


def queue_notices(work: Work, notebook: NotebookRecord, notices: Iterable[NewNotice]) -> None:
    """Put messages into the queue of their channel, due now. One that is there already stays as it is."""
    for each in notices:
        if work.get(NOTICES, (each.notice,)) is not None:
            continue
        row = NoticeRecord(
            id=each.notice,
            notebook=notebook.notebook.id,
            event=each.event,
            channel=each.channel,
            facts=dict(each.facts),
            at=work.now,
            until=each.until,
            state=PENDING,
            attempts=0,
            next_at=work.now,
            ended_at=None,
            fault="",
        )
        if _pending(work, each.channel) < MOST_PENDING:
            work.put(NOTICES, row)
        else:
            _end(work, row, notebook, GIVEN_UP, SENDER, f"{MOST_PENDING} messages wait for this channel already")


def _pending(work: Work, channel: str) -> int:
    where = Where(among={"channel": [channel]}, live=True)
    return work.count(NOTICES, where, lambda row: row.channel == channel and row.ended_at is None)


def change_notice(work: Work, request: ChangeNotice) -> Recorded | Refusal:
    """Take an attempt or its outcome; a message that has ended is left as it is, whatever comes late."""
    row = work.get(NOTICES, (request.notice,))
    if row is None or row.ended_at is not None:
        return Refusal(code="ended", message=f"The message {request.notice} is not waiting any more.")
    match request.change:
        case "try":
            work.put(NOTICES, replace(row, attempts=row.attempts + 1, next_at=request.next_at or work.now))
        case "retry":
            work.put(NOTICES, replace(row, next_at=request.next_at or work.now, fault=request.why))
        case "sent" | "given_up":
            _end(work, row, work.get(NOTEBOOKS, (row.notebook,)), request.change, request.actor, request.why)
        case _:
            return Refusal(code="invalid", message=f"{request.change!r} is nothing that becomes of a message.")
    return Recorded(id=row.id, version=work.version())


def _end(work: Work, row: NoticeRecord, notebook: NotebookRecord | None, state: str, actor: str, why: str) -> None:
    fault = why if state == GIVEN_UP else ""
    work.put(NOTICES, replace(row, state=state, ended_at=work.now, fault=fault))
    payload = {"notice": row.id, "event": row.event, "channel": row.channel, "attempts": row.attempts, "why": why}
    project = None if notebook is None else notebook.notebook.project
    work.audit(actor, f"notice.{state}", row.notebook, payload, project)
