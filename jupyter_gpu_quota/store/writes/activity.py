"""How notebooks are used: reports of their servers, notes of the controllers, idle states, and requests of owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...core.amounts import counted
from ...core.facts import NotebookFact
from ...core.idle.activity import IdlePolicy
from ...core.idle.state_document import from_document, to_document
from ...core.idle.state_machine import BEGINNING, InUse, KeepRefused, MachineState, keep, request_gpu
from ...core.model import Activity
from ..database.tables import NOTEBOOKS, NOTES, REPORTS
from ..database.unit_of_work import UnitOfWork
from ..records.activity import KeepNotes, NotebookReport, PostponeWarning, RecordReport, WakeNotebook
from ..records.commands import Recorded, RecordIdleState, Refused
from ..records.rows import NotebookRecord
from .allocations import live_notebook, observe_notebook
from .notification_queue import queue_notifications

MAX_EARLIER_INSTANCES = 100
"""Earlier instances of one server whose late reports are recognised."""

REPEATED_WAKE_MS = 5_000
"""Repeated GPU requests of a kernel within this time change nothing."""


def record_report(work: UnitOfWork, request: RecordReport) -> Recorded:
    """Store the newest report; an older one, or one of an earlier instance of the server, changes nothing."""
    live_notebook(work, request.notebook)
    newest = work.get(REPORTS, (request.notebook,))
    gone: tuple[str, ...] = ()
    if newest is not None:
        gone = newest.gone
        is_same = newest.instance == request.instance
        if (is_same and request.sequence <= newest.sequence) or request.instance in gone:
            return work.recorded(request.notebook, existed=True)
        if not is_same:
            gone = (*gone, newest.instance)[-MAX_EARLIER_INSTANCES:]
    row = NotebookReport(
        notebook=request.notebook,
        instance=request.instance,
        sequence=request.sequence,
        at=work.now,
        body=dict(request.body),
        gone=gone,
    )
    work.put(REPORTS, row)
    return work.recorded(request.notebook)


def record_idle_state(work: UnitOfWork, request: RecordIdleState) -> Recorded:
    """Store the classification and the idle state in the notebook's row; a repeated request changes nothing."""
    record = live_notebook(work, request.notebook)
    if request.expected is not None and (record.idle_state or to_document(BEGINNING)) != request.expected:
        raise Refused("stale", f"Notebook {request.notebook} changed since its state was read.")
    fact = NotebookFact(notebook=request.notebook, activity=request.activity, seen_empty=request.seen_empty)
    observe_notebook(work, fact)
    if record.idle_state != request.state or request.event is not None:
        _put_idle_state(work, record, request.state, request.event, fact.activity, request.actor, request.why)
        queue_notifications(work, record, request.notifications)
    return work.recorded(request.notebook)


def postpone_warning(work: UnitOfWork, request: PostponeWarning) -> Recorded:
    """Withdraw a warning as if the notebook had been used now."""
    record = live_notebook(work, request.notebook)
    kept = keep(_state_of(record), IdlePolicy(keep_at_most=request.keep_at_most), work.now)
    if isinstance(kept, KeepRefused):
        message = "Nothing was postponed: no warning is active for this notebook."
        if kept.why == "kept_enough":
            message = (
                f"The warning was postponed {counted(kept.times, 'time')} already, and the policy allows {kept.most}"
                " before the notebook is used again. Run a cell to keep its GPU."
            )
        raise Refused(kept.why, message)
    activity, why = record.notebook.activity, f"postponed for the {kept.state.kept.times}. time"
    observe_notebook(work, NotebookFact(notebook=request.notebook, activity=activity, seen_empty=False))
    _put_idle_state(work, record, to_document(kept.state), kept.event, activity, request.actor, why)
    return work.recorded(request.notebook)


def wake_notebook(work: UnitOfWork, request: WakeNotebook) -> Recorded:
    """Record that a kernel requests the GPU; from now on the slice is not lent."""
    record = live_notebook(work, request.notebook)
    state = _state_of(record)
    if isinstance(state, InUse) and state.asked_at is not None and 0 <= work.now - state.asked_at < REPEATED_WAKE_MS:
        return work.recorded(request.notebook, existed=True)
    woken, why = request_gpu(state, work.now), "a kernel requested the GPU"
    observe_notebook(work, NotebookFact(notebook=request.notebook, activity=Activity.BUSY, seen_empty=False))
    _put_idle_state(work, record, to_document(woken.state), woken.event, Activity.BUSY, request.actor, why)
    return work.recorded(request.notebook)


def _state_of(record: NotebookRecord) -> MachineState:
    return BEGINNING if record.idle_state is None else from_document(record.idle_state)


def _put_idle_state(
    work: UnitOfWork, record: NotebookRecord, state: Mapping[str, object], event: str | None, activity: str, actor: str,
    why: str,
) -> None:  # fmt: skip
    """Store a state of the idle state machine in the notebook's row, and its event in the audit."""
    name = record.notebook.id
    present = work.get(NOTEBOOKS, (name,)) or record
    work.put(NOTEBOOKS, replace(present, idle_state=dict(state), changed=work.stamp()))
    if event is not None:
        payload = {"activity": activity, "stage": state["stage"], "why": why}
        work.audit(actor, f"notebook.{event}", name, payload, record.notebook.project)


def keep_notes(work: UnitOfWork, request: KeepNotes) -> Recorded:
    """Remove and write notes."""
    work.find_ahead(NOTES, "subject", [subject for _, subject, *_ in (*request.over, *request.below)])
    work.fetch(NOTES, [NOTES.key(note) for note in request.notes])
    for kind, subject in request.over:
        delete_notes(work, subject, kind)
    for kind, subject, slot in request.below:
        delete_notes(work, subject, kind, below=slot)
    for note in request.notes:
        work.put(NOTES, note)
    return work.recorded("notes")


def delete_notes(work: UnitOfWork, subject: str, kind: str | None = None, below: int | None = None) -> None:
    for note in work.find(NOTES, "subject", [subject]):
        if kind in (None, note.kind) and (below is None or note.slot < below):
            work.delete(NOTES, NOTES.key(note))


def forget_activity(work: UnitOfWork, notebook: str) -> None:
    """Remove the report and the notes of a notebook that has ended."""
    work.delete(REPORTS, (notebook,))
    delete_notes(work, notebook)
