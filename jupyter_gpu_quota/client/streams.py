"""Streams that outlive a broken wire: a job's log and the service's events, taken up again where they stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .connection import Call, Connection, Event, Unreachable

FINAL = frozenset({"succeeded", "failed", "cancelled"})
"""States a job does not leave."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
MOST_FRUITLESS = 8
"""Tries in a row that bring nothing before a stream is given up: about half a minute of service away."""


def follow_log(
    connection: Connection, path: str, *, attempt: int | None, rank: int, newest: Callable[[], int]
) -> Iterator[str]:
    """A job's log as it is written, each part once, until the job has ended; then, with an ``attempt``, until that has.

    A stream that is taken up again names the attempt it was in, and so ends with it: ``newest`` tells whether a later
    one is still to be read. Raises Unreachable when the service stays away, Refused when it says no.
    """
    place: dict[str, str | int | None] = {"attempt": attempt, "rank": rank, "offset": 0, "follow": 1}
    while True:
        ended: dict[str, Any] = {}
        for event in _kept_up(connection, Call(method="GET", path=path, query=place)):
            if event.name == "end":
                ended = event.data
                break
            if event.name == "log":
                place |= {"offset": event.data["offset"], "attempt": event.data["attempt"]}
                yield str(event.data["text"])
        if attempt is not None or (ended["state"] in FINAL and ended["attempt"] >= newest()):
            return
        place |= {"attempt": ended["attempt"] + 1, "offset": 0}


def follow_events(connection: Connection) -> Iterator[Event]:
    """What changes, for as long as it is wanted; after a break from the last event that was seen."""
    seen: dict[str, str] = {}
    for event in _kept_up(connection, Call(method="GET", path="events", headers=seen)):
        if event.id is not None:
            seen["Last-Event-ID"] = event.id
        if event.name != "beat":
            yield event


def _kept_up(connection: Connection, call: Call) -> Iterator[Event]:
    """Events of one stream after another; each new one asks for what the call's query and headers say by then."""
    fruitless = 0
    while True:
        try:
            for event in connection.events(call):
                fruitless = 0
                yield event
        except Unreachable:
            if fruitless >= MOST_FRUITLESS:
                raise
        fruitless += 1
        connection.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (fruitless - 1)))
