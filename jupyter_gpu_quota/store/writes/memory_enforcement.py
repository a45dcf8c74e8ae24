"""Record memory enforcement on a notebook: a warning in the audit, or the reason why its server is stopped."""

from __future__ import annotations

from dataclasses import replace

from ...core.idle.state_document import from_document
from ...core.idle.state_machine import Stopping
from ...core.reasons import SERVER_STOPPED, Reason, StoppedIdle
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import UnitOfWork
from ..records.commands import Recorded, RecordMemoryEnforcement, Refusal
from ..records.rows import NotebookRecord
from .notification_queue import queue_notifications


def record_memory_enforcement(work: UnitOfWork, request: RecordMemoryEnforcement) -> Recorded | Refusal:
    """Audit a warning or a stop, store the reason of a stop with the notebook, and queue the notifications."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None or record.ended_at is not None:
        return Refusal(
            code="ended", message=f"The notebook slice {request.notebook} has ended; its server was not stopped."
        )
    if request.event == "stopped":
        if is_stopped(record):
            return Recorded(id=request.notebook, version=work.version(), existed=True)
        work.put(NOTEBOOKS, replace(record, reason=request.why, changed=work.stamp()))
    work.audit(
        request.actor, f"notebook.{request.event}", request.notebook, {"reason": request.why}, record.notebook.project
    )
    queue_notifications(work, record, request.notifications)
    return Recorded(id=request.notebook, version=work.version())


def is_stopped(record: NotebookRecord) -> bool:
    """Whether the service decided that the server of a slice is stopped."""
    return record.reason is not None and record.reason.code in SERVER_STOPPED


def why_it_ended(record: NotebookRecord, now: int) -> Reason | None:
    """What stays as the reason of a slice that goes back: why its server was stopped, where the service did that."""
    state = None if record.idle_state is None else from_document(record.idle_state)
    if is_stopped(record) or not isinstance(state, Stopping):
        return record.reason
    return StoppedIdle(freed_s=max(0, now - state.freed_at) // 1000)
