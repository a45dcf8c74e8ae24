"""The log of one attempt as it is now: the whole of it, or its last lines."""

from __future__ import annotations

from email.message import Message
from typing import NamedTuple

from ..wire.fields import MAX_CHARACTER_BYTES
from .connection import Call, Connection, Query

TAIL_BYTES, LINE_BYTES, MAX_TAIL_BYTES = 16_384, 1_024, 1 << 20
"""The end of a log in which its last lines are looked for: at first, for each line, and at most."""


class Tail(NamedTuple):
    """The last lines, their attempt (0: unknown), and the offset in bytes at which the log goes on."""

    text: str
    attempt: int
    offset: int


class Log:
    """A log at ``path``. ``query`` names the attempt, None for the newest, and the rank."""

    def __init__(self, connection: Connection, path: str, query: Query) -> None:
        self._connection, self._path, self._query = connection, path, query

    def text(self) -> str:
        """All that is written by now. A job may write on, and resume in a newer attempt, while it is read."""
        end, offset, parts = self.tail(1), 0, list[bytes]()
        attempt = self._query["attempt"] or end.attempt or None
        while offset < end.offset:
            part, headers = self._part(offset, attempt)
            following = int(headers.get("X-Next-Offset", offset))
            parts.append(part)
            if not part or following <= offset:
                break
            offset = following
        return b"".join(parts).decode(errors="replace")

    def tail(self, lines: int) -> Tail:
        """The last lines, or fewer if they are long; the first is whole, unless it is the only one."""
        size, most = TAIL_BYTES, min(MAX_TAIL_BYTES, lines * LINE_BYTES)
        while True:
            part, headers = self._part(-size, self._query["attempt"])
            is_whole = len(part) + MAX_CHARACTER_BYTES <= size  # the service drops a cut character at the beginning
            if is_whole or part.count(b"\n") > lines or size >= most:
                if not is_whole and b"\n" in part[:-1]:
                    part = part[part.index(b"\n") + 1 :]  # the first line may have begun before it
                text = _last_lines(part.decode(errors="replace"), lines)
                return Tail(text, int(headers.get("X-Attempt", 0)), int(headers.get("X-Next-Offset", 0)))
            size *= 4

    def _part(self, offset: int, attempt: str | int | None) -> tuple[bytes, Message]:
        query: Query = {**self._query, "attempt": attempt, "offset": offset}
        return self._connection.bytes_of(Call(path=self._path, query=query))


def _last_lines(text: str, count: int) -> str:
    """The last lines with their line feeds. No other character ends a line of a log."""
    return "\n".join(text.removesuffix("\n").split("\n")[-count:]) + ("\n" if text.endswith("\n") else "")
