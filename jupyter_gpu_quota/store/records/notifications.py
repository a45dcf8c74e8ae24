"""Notifications: the requests to queue and change them, and the stored record.

A notification is queued in the transaction of the event that it reports. A controller sends it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotification:
    """A message for the owner of a notebook, to be sent by one channel while that is of use: before ``until``.

    ``facts`` are what it tells beside what the notebook's own record says: ids and instants, never names.
    """

    notification: str
    event: str
    channel: str
    facts: Mapping[str, object]
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNotification:
    """What becomes of a message: ``try`` before each attempt, then ``sent``, ``retry`` or ``given_up``.

    ``next_at``: when it is tried again, of ``try`` in case nobody lives to tell how it ended. ``why`` holds no names.
    """

    notification: str
    change: str  # try | sent | retry | given_up
    next_at: int | None = None
    why: str = ""
    actor: str = "system:notices"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRecord:
    """A message in every state. ``state``: pending, sent or given_up; ``fault``: how the newest attempt failed."""

    id: str
    notebook: str
    event: str
    channel: str
    facts: Mapping[str, object]
    at: int
    until: int
    state: str
    attempts: int
    next_at: int
    ended_at: int | None
    fault: str
