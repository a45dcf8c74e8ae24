"""Keep how a notebook was judged: its row, and an audit row where something happened."""

from __future__ import annotations

from dataclasses import replace

from ...core.facts import NotebookFact
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import Work
from ..records.commands import JudgeNotebook, Recorded, Refusal
from .allocations import observe_notebook
from .notification_queue import queue_notices


def judge_notebook(work: Work, request: JudgeNotebook) -> Recorded | Refusal:
    """Put the judgement and the stage into the notebook's row; the same again changes nothing."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None or record.ended_at is not None:
        return Refusal(code="ended", message=f"The notebook slice {request.notebook} has ended; nothing was judged.")
    fact = NotebookFact(notebook=request.notebook, activity=request.activity, seen_empty=request.seen_empty)
    observe_notebook(work, fact)
    if record.stage == request.stage and request.turn is None:
        return Recorded(id=request.notebook, version=work.version())
    seen = work.get(NOTEBOOKS, (request.notebook,)) or record
    work.put(NOTEBOOKS, replace(seen, stage=dict(request.stage), changed=work.stamp()))
    if request.turn is not None:
        payload = {"activity": request.activity, "stage": request.stage["stage"], "why": request.why}
        work.audit(request.actor, f"notebook.{request.turn}", request.notebook, payload, record.notebook.project)
    queue_notices(work, record, request.notices)
    return Recorded(id=request.notebook, version=work.version())
