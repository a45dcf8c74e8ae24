"""Requests on notebook slices: request, return, request again, memory enforcement."""

from __future__ import annotations

from dataclasses import replace

from ...core.facts import NotebookFact
from ...core.idle.state_document import from_document
from ...core.idle.state_machine import Stopping
from ...core.lifecycle import next_notebook_state
from ...core.model import Activity, Notebook, NotebookState
from ...core.reasons import Reason, StoppedIdle
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import UnitOfWork
from ..records.commands import (
    MAX_NUMBER,
    Recorded,
    RecordMemoryEnforcement,
    Refused,
    RequestNotebook,
    RequestSliceAgain,
    ReturnNotebook,
)
from ..records.rows import NotebookRecord
from .activity import forget_activity
from .allocations import drop_reservation, live_notebook, move_notebook, observe_notebook, release_devices
from .notification_queue import queue_notifications


def request_notebook(work: UnitOfWork, request: RequestNotebook) -> Recorded:
    """Queue a slice. An equal live one of the same start of the server is the answer; any other of the server ends.

    A later start never has the slice of an earlier one: a late return of that slice would end it under a live server.
    """
    if not 1 <= request.gpu_milli <= MAX_NUMBER:
        raise Refused("invalid", f"A notebook asked for {request.gpu_milli} milli-GPU; 1 is the least.")
    if work.get(NOTEBOOKS, (request.notebook,)) is not None:
        return work.recorded(request.notebook, existed=True)
    for earlier in work.find(NOTEBOOKS, "user", [request.user]):
        if earlier.server != request.server:
            continue
        present = earlier.notebook
        is_equal = (present.project, present.pool, present.gpu_milli) == (
            request.project, request.pool, request.gpu_milli,
        )  # fmt: skip
        if is_equal and not earlier.is_stopped and earlier.token_digest == request.token_digest:
            if present.state is NotebookState.LENT:  # a server that requests its lent slice is not idle
                observe_notebook(work, NotebookFact(notebook=present.id, activity=Activity.BUSY))
            return work.recorded(present.id, existed=True)
        _end_notebook(work, earlier, request.user, REQUESTED_ANEW if is_equal else REQUESTED_ANOTHER)
    notebook = Notebook(
        id=request.notebook,
        project=request.project,
        user=request.user,
        pool=request.pool,
        gpu_milli=request.gpu_milli,
        requested_at=work.now,
    )
    digest, stamp = request.token_digest, work.stamp()
    work.put(NOTEBOOKS, NotebookRecord(notebook=notebook, server=request.server, token_digest=digest, changed=stamp))
    _audit_request(work, request.user, "notebook.request", notebook, request.server)
    return work.recorded(request.notebook)


REQUESTED_ANOTHER, REQUESTED_ANEW = (
    "the same server requested another slice",
    "the server was stopped and requested a slice again",
)


def _audit_request(work: UnitOfWork, actor: str, kind: str, notebook: Notebook, server: str) -> None:
    payload = {"server": server, "pool": notebook.pool, "gpu_milli": notebook.gpu_milli}
    work.audit(actor, kind, notebook.id, payload, notebook.project)


def return_notebook(work: UnitOfWork, request: ReturnNotebook) -> Recorded:
    """End a slice, or record that the server of a released one ended."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None:
        raise Refused.unknown("notebook slice", request.notebook)
    if record.ended_at is None:
        _end_notebook(work, record, request.actor, request.why)
    elif record.may_request_again:
        ended = replace(record.notebook, state=NotebookState.RETURNED)
        work.put(NOTEBOOKS, replace(record, notebook=ended, reason=None, changed=work.stamp()))
        _audit_return(work, record, request.actor, request.why)
    else:
        return work.recorded(request.notebook, existed=True)
    return work.recorded(request.notebook)


def _end_notebook(work: UnitOfWork, record: NotebookRecord, actor: str, why: str) -> None:
    """Release a slice at once: the hub reported that its server ended, so nothing uses the devices any more."""
    notebook = record.notebook
    move_notebook(work, record, "return", _end_reason(record, work.now))
    release_devices(work, notebook.id)
    drop_reservation(work, notebook.id)
    forget_activity(work, notebook.id)
    _audit_return(work, record, actor, why)


def _audit_return(work: UnitOfWork, record: NotebookRecord, actor: str, why: str) -> None:
    notebook = record.notebook
    work.audit(actor, "notebook.return", notebook.id, {"was": notebook.state, "why": why}, notebook.project)


def _end_reason(record: NotebookRecord, now: int) -> Reason | None:
    """The reason of an ended slice: why its server was stopped, where the service stopped it."""
    state = None if record.idle_state is None else from_document(record.idle_state)
    if record.is_stopped or not isinstance(state, Stopping):
        return record.reason
    return StoppedIdle(freed_s=max(0, now - state.freed_at) // 1000)


def request_slice_again(work: UnitOfWork, request: RequestSliceAgain) -> Recorded:
    """Queue a released slice, under the same id, for a server that still runs; a live slice is left unchanged."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is not None and record.ended_at is None:
        return work.recorded(request.notebook, existed=True)
    if record is None or not record.may_request_again:
        raise Refused("ended", "This notebook's server has ended, so its slice cannot be requested again.")
    if any(other.server == record.server for other in work.find(NOTEBOOKS, "user", [record.notebook.user])):
        raise Refused("ended", "A newer start of this server has its own slice; nothing was requested.")
    queued = replace(
        record.notebook,
        state=next_notebook_state(record.notebook.state, "ask_again"),
        requested_at=work.now,
        activity=Activity.BUSY,
        seen_empty=False,
    )
    work.put(NOTEBOOKS, replace(record, notebook=queued, reason=None, ended_at=None, changed=work.stamp()))
    _audit_request(work, request.actor, "notebook.ask_again", queued, record.server)
    return work.recorded(request.notebook)


def record_memory_enforcement(work: UnitOfWork, request: RecordMemoryEnforcement) -> Recorded:
    """Audit a warning or a stop, store the reason of a stop with the notebook, and queue the notifications."""
    record = live_notebook(work, request.notebook)
    if request.event == "stopped":
        if record.is_stopped:
            return work.recorded(request.notebook, existed=True)
        work.put(NOTEBOOKS, replace(record, reason=request.why, changed=work.stamp()))
    payload = {"reason": request.why}
    work.audit(request.actor, f"notebook.{request.event}", request.notebook, payload, record.notebook.project)
    queue_notifications(work, record, request.notifications)
    return work.recorded(request.notebook)
