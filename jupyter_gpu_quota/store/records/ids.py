"""New ids: ULIDs, which sort by the instant they were made at."""

from __future__ import annotations

from ulid import ULID


def new_ulid(now: int) -> str:
    """A ULID of this instant (ms)."""
    return str(ULID.from_timestamp(now))
