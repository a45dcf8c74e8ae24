"""Request a released slice again, under the same id, for a notebook server that still runs."""

from __future__ import annotations

from dataclasses import replace

from ...core.lifecycle import notebook_after
from ...core.model import Activity, NotebookState
from ...core.reasons import ReasonCode
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import UnitOfWork
from ..records.commands import Recorded, Refusal, RequestSliceAgain
from ..records.rows import NotebookRecord


def request_slice_again(work: UnitOfWork, request: RequestSliceAgain) -> Recorded | Refusal:
    """Queue the slice like that of a new notebook; a live slice is left unchanged."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None or (record.ended_at is not None and not may_request_again(record)):
        return Refusal(
            code="ended", message="This notebook's server has ended, so its slice cannot be requested again."
        )
    if record.ended_at is None:
        return Recorded(id=request.notebook, version=work.version(), existed=True)
    if any(other.server == record.server for other in work.find(NOTEBOOKS, "user", [record.notebook.user])):
        return Refusal(code="ended", message="A newer start of this server has its own slice; nothing was requested.")
    _queue(work, record)
    payload = {"server": record.server, "pool": record.notebook.pool, "gpu_milli": record.notebook.gpu_milli}
    work.audit(request.actor, "notebook.ask_again", request.notebook, payload, record.notebook.project)
    return Recorded(id=request.notebook, version=work.stamp())


def may_request_again(record: NotebookRecord) -> bool:
    """Whether its server still runs: the slice was released, or refused when it was requested again."""
    released = record.reason is not None and record.reason.code is ReasonCode.SLICE_RELEASED
    refused = record.notebook.state is NotebookState.REFUSED and record.booked_at is not None
    return released or refused


def close(work: UnitOfWork, record: NotebookRecord) -> bool:
    """Record that its server ended, so that it is not requested again; returns whether that is new."""
    if not may_request_again(record):
        return False
    ended = replace(record.notebook, state=NotebookState.RETURNED)
    work.put(NOTEBOOKS, replace(record, notebook=ended, reason=None, changed=work.stamp()))
    return True


def _queue(work: UnitOfWork, record: NotebookRecord) -> None:
    asked = replace(
        record.notebook,
        state=notebook_after(record.notebook.state, "ask_again"),
        requested_at=work.now,
        activity=Activity.BUSY,
        seen_empty=False,
    )
    work.put(NOTEBOOKS, replace(record, notebook=asked, reason=None, ended_at=None, changed=work.stamp()))
