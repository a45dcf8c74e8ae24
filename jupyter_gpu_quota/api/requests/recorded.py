"""The answer to an HTTP request that was recorded, where the database fails afterwards."""

from __future__ import annotations

from contextvars import ContextVar

from ...store.records.calls import StoreUnavailable
from ..access.refusals import Refused

recorded_id: ContextVar[str] = ContextVar("recorded_id", default="")
"""The id of what this HTTP request has recorded; empty before. After that no answer may advise a retry."""


def recorded_unread(id: str, error: StoreUnavailable) -> Refused:
    """The answer where a request was recorded, and the database cannot be read for its answer."""
    sentence = (
        f"The request was recorded as {id}, but the database cannot be read now: {error}"
        f" Do not repeat the request; look for {id} in a moment."
    )
    return Refused(503, "recorded_unread", sentence)
