"""Reads a rank's log segments as one log."""

from __future__ import annotations

from ...protocol import LogPart
from .paths import rank_paths
from .rank_log import end_of, segments


def log_path(state_dir: str, job: str, attempt: int, rank: int) -> str:
    """The folder of a rank's log segments; ``read_log`` reads them as one."""
    return rank_paths(state_dir, job, attempt, rank).log


def read_log(state_dir: str, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
    """Read from ``offset`` (bytes since the attempt began), at most ``limit`` bytes; negative counts from the end.

    Returns an empty part at the end of what there is: ask again later with its ``next_offset``.
    Raises ValueError for what is no job id.
    """
    directory = log_path(state_dir, job, attempt, rank)
    start = max(0, _end_or_none(directory) + offset) if offset < 0 else offset
    for _ in range(3):
        part = _read_once(directory, start, limit)
        if part is not None:
            return part
    return LogPart(start, b"", start)


def _end_or_none(directory: str) -> int:
    try:
        return end_of(directory)
    except FileNotFoundError:  # a segment was dropped between listing and asking
        return end_of(directory)


def _read_once(directory: str, offset: int, limit: int) -> LogPart | None:
    """None if a segment was dropped while it was being opened: look again."""
    found = segments(directory)
    begin = max(offset, found[0][0]) if found else offset
    data = b""
    try:
        for base, path in found:
            if begin + len(data) >= base and len(data) < limit:
                with open(path, "rb") as file:
                    file.seek(begin + len(data) - base)
                    data += file.read(limit - len(data))
    except FileNotFoundError:
        return None
    return LogPart(begin, data, begin + len(data), begin - offset)
