"""The protocol of a notification channel: send one message, check whether the receiver answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .job_message import JobMessage
from .message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The receiver accepted it. ``answer``: its answer in a few words, without names."""

    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It was not accepted. ``why`` has neither names nor secrets; ``final``: a new attempt would not help."""

    why: str
    final: bool = False


Outcome = Sent | Failed


class Channel(Protocol):
    """One channel. No call raises for what the receiver does, and each ends in bounded time."""

    @property
    def name(self) -> str:
        """Its name in the store: ``webhook`` or ``mail``."""

    @property
    def where(self) -> str:
        """The receiver, without the secret parts of its address."""

    @property
    def width(self) -> int:
        """How many messages may be in transit at once."""

    async def send(self, message: Message | JobMessage) -> Outcome:
        """Send one message. The same id again is the same message."""

    async def probe(self) -> Outcome:
        """Whether the receiver answers. Nothing is sent."""

    def close(self) -> None: ...
