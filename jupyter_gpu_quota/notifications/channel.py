"""What every way out can do: send one message, say whether its other end is there, and say where that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The other end took it. ``said``: what it answered, in a few words without names."""

    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It was not taken. ``why`` holds neither names nor secrets; ``final``: trying again would not help."""

    why: str
    final: bool = False


Outcome = Sent | Failed


class Channel(Protocol):
    """One way out. Neither call raises for what the other end does, and each ends within a bounded time."""

    @property
    def name(self) -> str:
        """The word by which the store knows it: ``webhook`` or ``mail``."""

    @property
    def where(self) -> str:
        """The other end, without whatever of its address may be secret."""

    @property
    def width(self) -> int:
        """How many may be under way at once."""

    async def send(self, message: Message) -> Outcome:
        """Hand one message over. The same id again is the same message."""

    async def probe(self) -> Outcome:
        """Whether the other end answers. Nothing is sent."""

    def close(self) -> None: ...
