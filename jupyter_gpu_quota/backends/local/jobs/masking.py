"""Masks a job's secrets in its log: their values are replaced before anything reaches the disk."""

from __future__ import annotations

import re
from collections.abc import Iterable

MIN_MASKED_BYTES = 4
"""Values of fewer bytes are not masked: they occur in ordinary text, and masking them protects nothing."""

MASK = b"***"


class Mask:
    """Replaces values in a stream of chunks. A possible beginning of a value is kept until the next chunk."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {secret.encode(errors="surrogateescape") for secret in secrets}
        self._values = sorted((v for v in values if len(v) >= MIN_MASKED_BYTES), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values))) if self._values else None
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """The next chunk, masked, without a possible beginning of a value at its end."""
        if self._pattern is None:
            return data
        parts, at, data = [], 0, self._pending + data
        for found in self._pattern.finditer(data):
            parts += [data[at : found.start()], MASK]
            at = found.end()
        longest = min(len(data) - at, max(map(len, self._values)) - 1)
        ends = (data[len(data) - size :] for size in range(longest, 0, -1))
        certain = len(data) - next((len(end) for end in ends if any(v.startswith(end) for v in self._values)), 0)
        self._pending = data[certain:]
        return b"".join([*parts, data[at:certain]])

    def rest(self) -> bytes:
        """The kept bytes, at the end of the stream."""
        rest, self._pending = self._pending, b""
        return rest
