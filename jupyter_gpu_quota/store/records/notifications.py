"""What the store keeps of messages that leave the hub: what is asked of it, and what it knows of each.

They are queued with the judgement that they tell of, in one transaction, and sent afterwards by somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotice:
    """A message for the owner of a notebook, to be sent by one channel while that is of use: before ``until``.

    ``facts`` are what it tells beside what the notebook's own record says: ids and instants, never names.
    """

    notice: str
    event: str
    channel: str
    facts: Mapping[str, object]
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNotice:
    """What becomes of a message: ``try`` before each attempt, then ``sent``, ``retry`` or ``given_up``.

    ``next_at``: when it is tried again, of ``try`` in case nobody lives to tell how it ended. ``why`` holds no names.
    """

    notice: str
    change: str  # try | sent | retry | given_up
    next_at: int | None = None
    why: str = ""
    actor: str = "system:notices"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRecord:
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
