"""The audit and the events: what was decided, and what changed."""

from __future__ import annotations

from datetime import datetime

from .cluster import DeviceView
from .fields import Wire
from .jobs import JobView
from .notebooks import NotebookView


class AuditView(Wire):
    """One decision or edit. ``who`` and ``what`` make a sentence; the chain of hashes is over the other fields."""

    seq: int
    at: datetime
    actor: str
    who: str
    what: str
    kind: str
    subject: str
    project: str | None
    payload: dict[str, object]
    previous: str
    hash: str


class AuditActionView(Wire):
    """A kind of rows of the audit, and its words."""

    kind: str
    words: str


class VerifiedView(Wire):
    """``GET audit/verify``: whether the hash chain of the audit is intact, with a sentence."""

    intact: bool
    rows: int | None
    message: str


class ChangedView(Wire):
    """The data of the event ``changed``: the complete views of visible changes."""

    version: int
    jobs: list[JobView]
    notebooks: list[NotebookView]
    devices: list[DeviceView]
