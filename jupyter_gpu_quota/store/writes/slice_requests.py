"""A slice that went back while its notebook was idle: its server runs on, and asks for it again by the same id."""

from __future__ import annotations

from dataclasses import replace

from ...core.lifecycle import notebook_after
from ...core.model import Activity, NotebookState
from ...core.plan import ReasonCode
from ..database.tables import NOTEBOOKS
from ..database.unit_of_work import Work
from ..records.commands import AskAgain, Recorded, Refusal
from ..records.rows import NotebookRecord


def ask_again(work: Work, request: AskAgain) -> Recorded | Refusal:
    """Queue the slice anew, like a new notebook's; one that is live is left as it is."""
    record = work.get(NOTEBOOKS, (request.notebook,))
    if record is None or (record.ended_at is not None and not may_ask_again(record)):
        return Refusal(code="ended", message="This notebook's server ended, so its slice is not asked for again.")
    if record.ended_at is None:
        return Recorded(id=request.notebook, version=work.version(), existed=True)
    if any(other.server == record.server for other in work.find(NOTEBOOKS, "user", [record.notebook.user])):
        return Refusal(code="ended", message="A newer start of this server has a slice of its own; nothing was asked.")
    _queue(work, record)
    payload = {"server": record.server, "pool": record.notebook.pool, "gpu_milli": record.notebook.gpu_milli}
    work.audit(request.actor, "notebook.ask_again", request.notebook, payload, record.notebook.project)
    return Recorded(id=request.notebook, version=work.stamp())


def may_ask_again(record: NotebookRecord) -> bool:
    """Whether its server lives on without it: it was released, or refused when it was asked for again."""
    released = record.reason is not None and record.reason.code is ReasonCode.SLICE_RELEASED
    refused = record.notebook.state is NotebookState.REFUSED and record.booked_at is not None
    return released or refused


def close(work: Work, record: NotebookRecord) -> bool:
    """Its server is gone: nobody asks for it again. Whether that was not known yet."""
    if not may_ask_again(record):
        return False
    ended = replace(record.notebook, state=NotebookState.RETURNED)
    work.put(NOTEBOOKS, replace(record, notebook=ended, reason=None, changed=work.stamp()))
    return True


def _queue(work: Work, record: NotebookRecord) -> None:
    asked = replace(
        record.notebook,
        state=notebook_after(record.notebook.state, "ask_again"),
        requested_at=work.now,
        activity=Activity.BUSY,
        seen_empty=False,
    )
    work.put(NOTEBOOKS, replace(record, notebook=asked, reason=None, ended_at=None, changed=work.stamp()))
