"""The newest position that a leader has seen in the database, in a file outside the database.

A leader updates it after each durable write and before the orders that follow from it. So a database without this
position is an older one, or another one. The file is not synchronised with the disk: after a power loss, or while its
volume is full, it may be older than the database, but never newer.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .records.rows import Position

MARK = "history.json"
"""The name of the file in the state folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A position, with the leader that saw it."""

    position: Position
    holder: str
    fencing: int


class HistoryMark:
    """The file of one state folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: Mark | None = None

    @property
    def newest(self) -> Mark | None:
        """The mark that this object wrote last, or that is in the file."""
        return self._written or self.read()

    def read(self) -> Mark | None:
        """The mark; None before the first, and where the file is damaged."""
        try:
            found = json.loads(self._path.read_bytes())
            position = Position(audit_seq=int(found["audit_seq"]), audit_hash=str(found["audit_hash"]))
            return Mark(position=position, holder=str(found["holder"]), fencing=int(found["fencing"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, mark: Mark) -> None:
        """Replace the mark, unless this object wrote the same one. Raises OSError."""
        if mark == self._written:
            return
        text = json.dumps({**asdict(mark.position), "holder": mark.holder, "fencing": mark.fencing})
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            part.unlink(missing_ok=True)
            part.touch(mode=0o600)  # only the service reads it
            part.write_text(text)
            part.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        self._written = mark
