"""A rank's log: bounded on disk, with offsets that stay valid while old lines are dropped.

A log is a folder of segments. The name of each is the offset of its first byte since the attempt began, so rotation is
one new file and a few unlinks, and a reader can continue at any offset.
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise

_DIGITS = 20
_SEGMENTS = 16
"""The number of segments of a log at its limit."""


class RotatingLog:
    """Keeps the newest ``limit_bytes``, on disk up to a segment more; the log itself reports dropped bytes."""

    def __init__(self, directory: str, limit_bytes: int) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.directory, self.segment_bytes = directory, max(4096, limit_bytes // _SEGMENTS)
        self.limit_bytes, self.lost_bytes, self.last = limit_bytes, 0, b"\n"
        self.end = end_offset(directory)
        self.fd, self.room = -1, 0
        self.report_at = 0

    def write(self, data: bytes) -> None:
        """Append; on a full disk bytes are dropped and counted, without waiting."""
        while data:
            if self.room <= 0:
                self._rotate()
            part = data[: self.room]
            if self.fd < 0 or not self._append(part):
                self.lost_bytes += len(data)
                return
            data = data[len(part) :]
            if self.lost_bytes:
                lost, self.lost_bytes = self.lost_bytes, 0
                self.write_notice(f"{lost} bytes before this could not be written: the disk was full")

    def write_notice(self, sentence: str) -> None:
        """Write a line of the service, marked as such."""
        start = b"" if self.last == b"\n" else b"\n"
        self.write(start + f"[jupyter-gpu-quota] {sentence}\n".encode())

    def close(self) -> None:
        """Wait until the log is on the disk, and close it. Raises OSError: a network file system may be full."""
        if self.fd >= 0:
            fd, self.fd, self.room = self.fd, -1, 0
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _append(self, part: bytes) -> bool:
        try:
            written = os.write(self.fd, part)
        except OSError:
            return False
        self.end, self.room, self.last = self.end + written, self.room - written, part[written - 1 : written]
        return written == len(part) or self._append(part[written:])

    def _rotate(self) -> None:
        """Start a segment, and remove segments older than the newest ``limit_bytes``. On a full disk the log stops."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd, self.room = -1, 0
        for (_, oldest), (following, _) in pairwise(segments(self.directory)):
            if self.end - following >= self.limit_bytes:
                with contextlib.suppress(OSError):  # the next rotation tries again
                    os.unlink(oldest)
        path = os.path.join(self.directory, f"{self.end:0{_DIGITS}d}")
        try:
            self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self.room = self.segment_bytes
        first = segments(self.directory)[0][0]
        if first and self.end >= self.report_at:
            self.report_at = self.end + self.limit_bytes  # one report is always in the part that is kept
            limit = f"its limit is {self.limit_bytes} bytes"
            self.write_notice(f"the first {first} bytes of this log were dropped: {limit}")


def segments(directory: str) -> list[tuple[int, str]]:
    """The segments of a log, oldest first: (offset of the first byte, path)."""
    try:
        names = sorted(name for name in os.listdir(directory) if len(name) == _DIGITS and name.isdigit())
    except FileNotFoundError:
        return []
    return [(int(name), os.path.join(directory, name)) for name in names]


def end_offset(directory: str) -> int:
    found = segments(directory)
    return found[-1][0] + os.path.getsize(found[-1][1]) if found else 0
