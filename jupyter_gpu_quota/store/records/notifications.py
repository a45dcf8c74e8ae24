"""Notifications: the requests to queue and change them, and the stored record.

A notification is queued in the transaction of the event that it reports. A controller sends it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotification:
    """A message for the owner of a notebook or job, to be sent by one channel before ``until``.

    ``facts`` are its figures beside those of the record of the notebook or job: ids and instants, never names.
    """

    notification: str
    event: str
    channel: str
    facts: Mapping[str, object]
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueJobNotifications:
    """Queue messages for the owner of a job. One that was queued before, by its id, is left unchanged."""

    job: str
    notifications: tuple[NewNotification, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNotification:
    """An attempt or its outcome: ``try`` before each attempt, then ``sent``, ``retry`` or ``given_up``.

    ``next_at``: the next attempt; for ``try``, the next one if the sender dies in this one. ``why`` has no names.
    """

    notification: str
    change: str  # try | sent | retry | given_up
    next_at: int | None = None
    why: str = ""
    actor: str = "system:notifications"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRecord:
    """A message in every state. ``state``: pending, sent or given_up; ``fault``: how the newest attempt failed.

    ``notebook`` is the id of the notebook; of an event of a job, the job's.
    """

    id: str
    notebook: str
    event: str
    channel: str
    facts: Mapping[str, object]
    at: int
    until: int
    state: str = "pending"
    attempts: int = 0
    next_at: int
    ended_at: int | None = None
    fault: str = ""
