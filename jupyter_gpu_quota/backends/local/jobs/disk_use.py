"""How much a job has written and when it last saved, walked in small steps so that nobody waits for a large tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

DEEPEST = 64
"""Folders below this depth count as over every limit: walking them would need as many open files."""

STEP = 500
"""Entries looked at between two pauses of the walk."""


class Measured:
    """What a walk has added up so far; ``newest_ms`` is the newest change of a file, None without any."""

    __slots__ = ("entries", "newest_ms", "size_bytes", "too_deep")

    def __init__(self) -> None:
        self.size_bytes, self.entries, self.too_deep = 0, 0, False
        self.newest_ms: int | None = None

    def add(self, status: os.stat_result) -> None:
        self.entries += 1
        self.size_bytes += max(status.st_blocks * 512, 512)
        if not stat.S_ISDIR(status.st_mode):
            changed = status.st_mtime_ns // 1_000_000
            self.newest_ms = changed if self.newest_ms is None else max(self.newest_ms, changed)


def measure(path: str, into: Measured) -> Iterator[None]:
    """Walk a tree that may change, or be hostile, meanwhile: links are never followed. Yields every few entries."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    yield from _measure(fd, into, DEEPEST)


def _measure(fd: int, into: Measured, depth: int) -> Iterator[None]:
    """Adds what lies in an open folder, which is closed at the end."""
    below = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if into.entries % STEP == STEP - 1:
                    yield
                if _add(entry, into):
                    below.append(entry.name)
        if below and depth == 0:
            into.too_deep = True
            return
        for name in below:
            child = _open_folder(name, fd)
            if child is not None:
                yield from _measure(child, into, depth - 1)
    finally:
        os.close(fd)


def _add(entry: os.DirEntry[str], into: Measured) -> bool:
    """Adds one entry; returns whether it is a folder to go into."""
    try:
        into.add(entry.stat(follow_symlinks=False))
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _open_folder(name: str, parent: int) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
