"""Record the idle state of a notebook, with an audit row for each event."""

from __future__ import annotations

from dataclasses import replace

from ...core.facts import NotebookFact
from ...core.idle.state_document import to_document
from ...core.idle.state_machine import BEGINNING
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import UnitOfWork
from ..records.commands import Recorded, RecordIdleState, Refusal
from .allocations import observe_notebook
from .notification_queue import queue_notifications


def record_idle_state(work: UnitOfWork, request: RecordIdleState) -> Recorded | Refusal:
    """Store the classification and the idle state in the notebook's row; the same again changes nothing."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None or record.ended_at is not None:
        return Refusal(code="ended", message=f"The notebook slice {request.notebook} has ended; nothing was recorded.")
    if request.expected is not None and (record.idle_state or to_document(BEGINNING)) != request.expected:
        return Refusal(code="stale", message=f"Something happened to notebook {request.notebook} since it was read.")
    fact = NotebookFact(notebook=request.notebook, activity=request.activity, seen_empty=request.seen_empty)
    observe_notebook(work, fact)
    if record.idle_state == request.state and request.event is None:
        return Recorded(id=request.notebook, version=work.version())
    seen = work.get(NOTEBOOKS, (request.notebook,)) or record
    work.put(NOTEBOOKS, replace(seen, idle_state=dict(request.state), changed=work.stamp()))
    if request.event is not None:
        payload = {"activity": request.activity, "stage": request.state["stage"], "why": request.why}
        work.audit(request.actor, f"notebook.{request.event}", request.notebook, payload, record.notebook.project)
    queue_notifications(work, record, request.notifications)
    return Recorded(id=request.notebook, version=work.version())
