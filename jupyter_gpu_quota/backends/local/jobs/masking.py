"""A job's secrets kept out of its log: their values are replaced before anything reaches the disk."""

from __future__ import annotations

import re
from collections.abc import Iterable

SHORTEST_MASKED = 4
"""Values shorter than this many bytes are not masked: they would black out ordinary text and protect nothing."""

MASK = b"***"


class Mask:
    """Replaces values in a stream of pieces; what may be the beginning of a value waits for the next piece."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {secret.encode(errors="surrogateescape") for secret in secrets}
        self._values = sorted((v for v in values if len(v) >= SHORTEST_MASKED), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values))) if self._values else None
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """The next piece, masked, as far as it is certain."""
        if self._pattern is None:
            return data
        parts, at, data = [], 0, self._begun + data
        for found in self._pattern.finditer(data):
            parts += [data[at : found.start()], MASK]
            at = found.end()
        certain = len(data) - self._open(data[at:])
        self._begun = data[certain:]
        return b"".join([*parts, data[at:certain]])

    def rest(self) -> bytes:
        """What still waits, when nothing more comes."""
        rest, self._begun = self._begun, b""
        return rest

    def _open(self, tail: bytes) -> int:
        """How many bytes at the end could be the beginning of a value."""
        longest = min(len(tail), max(map(len, self._values)) - 1)
        return next((n for n in range(longest, 0, -1) if self._begins_a_value(tail[-n:])), 0)

    def _begins_a_value(self, end: bytes) -> bool:
        return any(value.startswith(end) for value in self._values)
