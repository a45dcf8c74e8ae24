"""Keep what a notebook's server reports, what its owner asks for, and what the controllers note."""

from __future__ import annotations

from dataclasses import replace

from ...core.facts import NotebookFact
from ...core.idle.activity import IdlePolicy
from ...core.idle.state_document import from_document, to_document
from ...core.idle.state_machine import BEGINNING, InUse, KeepRefused, MachineState, Transition, asked, keep
from ...core.model import Activity
from ..database.tables import NOTEBOOKS, NOTES, REPORTS
from ..database.unit_of_work import UnitOfWork
from ..records.activity import KeepNotes, NotebookReport, PostponeWarning, RecordReport, WakeNotebook
from ..records.commands import Recorded, Refusal
from ..records.rows import NotebookRecord
from .allocations import observe_notebook

MOST_GONE = 100
"""Earlier starts of one server of which late reports are known for such."""

ASK_AGAIN_MS = 5_000
"""A kernel that goes on asking for the GPU is noted anew after so long."""


def record_report(work: UnitOfWork, request: RecordReport) -> Recorded | Refusal:
    """Keep the newest report; one from before it, or of an earlier start of the server, changes nothing."""
    if _live(work, request.notebook) is None:
        return _ended(request.notebook)
    newest = work.get(REPORTS, (request.notebook,))
    if newest is not None and _is_late(newest, request):
        return Recorded(id=request.notebook, version=work.version(), existed=True)
    gone = () if newest is None else newest.gone
    if newest is not None and newest.instance != request.instance:
        gone = (*gone, newest.instance)[-MOST_GONE:]
    row = NotebookReport(
        notebook=request.notebook,
        instance=request.instance,
        sequence=request.sequence,
        at=work.now,
        body=dict(request.body),
        gone=gone,
    )
    work.put(REPORTS, row)
    return Recorded(id=request.notebook, version=work.version())


def _is_late(newest: NotebookReport, request: RecordReport) -> bool:
    if newest.instance == request.instance:
        return request.sequence <= newest.sequence
    return request.instance in newest.gone


def postpone_warning(work: UnitOfWork, request: PostponeWarning) -> Recorded | Refusal:
    """Withdraw a warning as if the notebook had been used now."""
    record = _live(work, request.notebook)
    if record is None:
        return _ended(request.notebook)
    taken = keep(_stage_of(record), IdlePolicy(keep_at_most=request.keep_at_most), work.now)
    if isinstance(taken, KeepRefused):
        return Refusal(code=taken.why, message=_why_not_kept(taken))
    activity = record.notebook.activity
    observe_notebook(work, NotebookFact(notebook=record.notebook.id, activity=activity, seen_empty=False))
    _take(work, record, taken, request.actor, activity, f"postponed for the {taken.stage.kept.times}. time")
    return Recorded(id=request.notebook, version=work.version())


def wake_notebook(work: UnitOfWork, request: WakeNotebook) -> Recorded | Refusal:
    """Note that a kernel asks for the GPU; the slice is not lent from now on."""
    record = _live(work, request.notebook)
    if record is None:
        return _ended(request.notebook)
    stage = _stage_of(record)
    if isinstance(stage, InUse) and stage.asked_at is not None and 0 <= work.now - stage.asked_at < ASK_AGAIN_MS:
        return Recorded(id=request.notebook, version=work.version(), existed=True)
    observe_notebook(work, NotebookFact(notebook=record.notebook.id, activity=Activity.BUSY, seen_empty=False))
    _take(work, record, asked(stage, work.now), request.actor, Activity.BUSY, "a kernel asked for the GPU")
    return Recorded(id=request.notebook, version=work.version())


def _take(work: UnitOfWork, record: NotebookRecord, taken: Transition, actor: str, activity: str, why: str) -> None:
    """Put a stage that a person or their server asked for into the notebook's row, and what happened into the audit."""
    name, document = record.notebook.id, to_document(taken.stage)
    seen = work.get(NOTEBOOKS, (name,)) or record
    work.put(NOTEBOOKS, replace(seen, idle_state=document, changed=work.stamp()))
    if taken.turn is not None:
        payload = {"activity": activity, "stage": document["stage"], "why": why}
        work.audit(actor, f"notebook.{taken.turn}", name, payload, record.notebook.project)


def keep_notes(work: UnitOfWork, request: KeepNotes) -> Recorded:
    """Write and drop notes; one that is kept as it is is not written."""
    subjects = [subject for _, subject, *_ in (*request.over, *request.below)]
    work.find_ahead(NOTES, "subject", subjects)
    work.fetch(NOTES, [NOTES.key(note) for note in request.notes])
    for kind, subject in request.over:
        _drop(work, kind, subject, None)
    for kind, subject, slot in request.below:
        _drop(work, kind, subject, slot)
    for note in request.notes:
        work.put(NOTES, note)
    return Recorded(id="notes", version=work.version())


def _drop(work: UnitOfWork, kind: str, subject: str, below: int | None) -> None:
    for note in work.find(NOTES, "subject", [subject]):
        if note.kind == kind and (below is None or note.slot < below):
            work.delete(NOTES, NOTES.key(note))


def forget_activity(work: UnitOfWork, notebook: str) -> None:
    """A notebook is over: what its server reported and what was noted of it is of no use any more."""
    work.delete(REPORTS, (notebook,))
    for note in work.find(NOTES, "subject", [notebook]):
        work.delete(NOTES, NOTES.key(note))


def _live(work: UnitOfWork, notebook: str) -> NotebookRecord | None:
    record = work.get(NOTEBOOKS, (notebook,))
    return None if record is None or record.ended_at is not None else record


def _stage_of(record: NotebookRecord) -> MachineState:
    return BEGINNING if record.idle_state is None else from_document(record.idle_state)


def _ended(notebook: str) -> Refusal:
    return Refusal(code="ended", message=f"The notebook slice {notebook} has ended; nothing was noted.")


def _why_not_kept(refused: KeepRefused) -> str:
    if refused.why == "kept_enough":
        return (
            f"The warning was postponed {refused.times} times already, and the policy allows {refused.most} before the "
            "notebook is used again. Run a cell to keep its GPU."
        )
    return "Nothing was postponed: no warning is under way for this notebook."
