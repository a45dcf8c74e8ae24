"""What the police of shares does to a notebook: the warning in the audit, and why its server was stopped."""

from __future__ import annotations

from dataclasses import replace

from ...core.idle.state_document import from_document
from ...core.idle.state_machine import Stopping
from ...core.plan import SERVER_STOPPED, Reason, ReasonCode
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import Work
from ..records.commands import PoliceNotebook, Recorded, Refusal
from ..records.rows import NotebookRecord
from .notification_queue import queue_notices


def police_notebook(work: Work, request: PoliceNotebook) -> Recorded | Refusal:
    """Keep a warning in the audit, a stop in the notebook's row too, and queue what its owner is told."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None or record.ended_at is not None:
        return Refusal(code="ended", message=f"The notebook slice {request.notebook} has ended; nobody was stopped.")
    if request.turn == "stopped":
        if is_stopped(record):
            return Recorded(id=request.notebook, version=work.version(), existed=True)
        work.put(NOTEBOOKS, replace(record, reason=request.why, changed=work.stamp()))
    work.audit(
        request.actor, f"notebook.{request.turn}", request.notebook, {"reason": request.why}, record.notebook.project
    )
    queue_notices(work, record, request.notices)
    return Recorded(id=request.notebook, version=work.version())


def is_stopped(record: NotebookRecord) -> bool:
    """Whether the service decided that the server of a slice is stopped."""
    return record.reason is not None and record.reason.code in SERVER_STOPPED


def why_it_ended(record: NotebookRecord, now: int) -> Reason | None:
    """What stays as the reason of a slice that goes back: why its server was stopped, where the service did that."""
    stage = None if record.stage is None else from_document(record.stage)
    if is_stopped(record) or not isinstance(stage, Stopping):
        return record.reason
    return Reason(code=ReasonCode.STOPPED_IDLE, figures=(("freed_s", max(0, now - stage.freed_at) // 1000),))
