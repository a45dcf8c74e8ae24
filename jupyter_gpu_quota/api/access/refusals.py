"""Refusals: every handler raises the same exception, and the resource writes it as an answer."""

from __future__ import annotations

from collections.abc import Mapping

from ...store.records.commands import Refusal

STATUS_OF_REFUSAL = {"unknown": 404, "ended": 409, "exists": 409, "stale": 409, "invalid": 400, "queue_full": 429}


class Refused(Exception):
    """A refused request: status, a code for programs, a sentence for people. Nothing was stored."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.headers = status, reason, message, headers or {}


def refused(refusal: Refusal) -> Refused:
    """A store's refusal as an answer."""
    return Refused(STATUS_OF_REFUSAL.get(refusal.code, 409), refusal.code, refusal.message)


def closed() -> Refused:
    """The client has closed its connection, so the work was skipped."""
    return Refused(400, "closed", "The connection was closed before the answer.")


def not_found(what: str, name: str) -> Refused:
    """Unknown, and hidden from this person: the same answer."""
    return Refused(404, "not_found", f"There is no {what} {name[:80]!r}, or you may not see it. Check the name.")
