"""Streams that continue after a broken connection: a job's log and the service's events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .connection import Call, Connection, Event, Refused, Unreachable

FINAL = frozenset({"succeeded", "failed", "cancelled"})
"""Final states of a job."""

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 8.0
MAX_ATTEMPTS = 8
"""Attempts in a row without an event before a stream is given up: about half a minute without the service."""


def follow_log(
    connection: Connection,
    path: str,
    *,
    attempt: int | None,
    rank: int,
    newest: Callable[[], int],
    after: tuple[int, int] | None = None,
) -> Iterator[str]:
    """A job's log as it is written, each part once, until the job has ended, or the named ``attempt``.

    A stream that continues names its attempt and ends with it; ``newest`` is the job's newest attempt, which may be a
    later one. ``after``: the attempt and the offset at which to begin. Raises Unreachable when the service stays
    unreachable, and Refused.
    """
    position: dict[str, str | int | None] = {"attempt": attempt, "rank": rank, "offset": 0, "follow": 1}
    if after is not None:
        position |= {"attempt": after[0], "offset": after[1]}
    while True:
        ended: dict[str, Any] = {}
        for event in _reconnected(connection, Call(path=path, query=position)):
            if event.name == "end":
                ended = event.data
                break
            if event.name == "log":
                position |= {"offset": event.data["offset"], "attempt": event.data["attempt"]}
                yield str(event.data["text"])
        if attempt is not None or (ended["state"] in FINAL and ended["attempt"] >= newest()):
            return
        position |= {"attempt": ended["attempt"] + 1, "offset": 0}


def follow_events(connection: Connection) -> Iterator[Event]:
    """Changes as events; after a broken connection from the last event that was received."""
    seen: dict[str, str] = {}
    for event in _reconnected(connection, Call(path="events", headers=seen)):
        if event.id is not None:
            seen["Last-Event-ID"] = event.id
        if event.name != "beat":
            yield event


def _reconnected(connection: Connection, call: Call) -> Iterator[Event]:
    """Events of one stream after another; each new request has the current query and headers of the call."""
    failed = 0
    while True:
        try:
            for event in connection.events(call):
                failed = 0
                yield event
        except (Refused, Unreachable) as error:
            if failed >= MAX_ATTEMPTS or (isinstance(error, Refused) and not error.is_temporary):
                raise
        failed += 1
        connection.sleep(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (failed - 1)))
