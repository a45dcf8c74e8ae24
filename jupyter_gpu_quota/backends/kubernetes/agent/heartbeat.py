"""The sign of life of an agent: a file whose time the liveness probe of its pod reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Turned = Callable[[], object]


class Heartbeat:
    """Touches a file when every part has turned since the last time, so that no part hangs unnoticed.

    A part turns whether it succeeds or not: an agent is not started again because the service or the API server is
    away. The longest turn is that of samples: its pause of at most 60 s, and the time-outs of driver and service.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._parts, self._turned = 0, set[int]()

    def part(self) -> Turned:
        """A function for another part, which calls it at each turn."""
        number = self._parts
        self._parts += 1
        return lambda: self._note(number)

    def _note(self, number: int) -> None:
        self._turned.add(number)
        if self._path is not None and len(self._turned) == self._parts:
            self._turned.clear()
            self._path.touch()
