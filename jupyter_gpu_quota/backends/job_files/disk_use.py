"""Measures the size and the newest change of a job's folders, in small steps: no large tree delays the supervisor."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from .paths import job_directory, rank_paths

MAX_DEPTH = 64
"""A tree with folders below this depth exceeds every limit: to measure them takes as many open files."""

MIB = 1 << 20
STEP = 500
"""Entries between two pauses of a measurement."""


class Measured:
    """The sums of a measurement; ``newest_ms`` is the newest change of a file, None without any."""

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
    """Measure a tree that may change meanwhile; links are never followed. Yields after every few entries."""
    if (fd := _open_folder(path)) is not None:
        yield from _measure(fd, into, MAX_DEPTH)


def _measure(fd: int, into: Measured, depth: int) -> Iterator[None]:
    """Add the entries of an open folder, and close it."""
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
            child = _open_folder(name, parent=fd)
            if child is not None:
                yield from _measure(child, into, depth - 1)
    finally:
        os.close(fd)


def _add(entry: os.DirEntry[str], into: Measured) -> bool:
    """Add one entry; returns whether it is a folder to enter."""
    try:
        into.add(entry.stat(follow_symlinks=False))
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _open_folder(name: str, parent: int | None = None) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None


class OutputSizes:
    """The outputs below one state folder. ``measure`` waits for the disk: run it in a thread."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def sizes(self, jobs: Collection[str]) -> Mapping[str, int]:
        """The sizes of these jobs' outputs in MiB, where they were measured; others are forgotten."""
        with self._lock:
            self._sizes = {job: self._sizes[job] for job in jobs if job in self._sizes}
            return dict(self._sizes)

    def measure(self, jobs: Collection[str]) -> None:
        """Measure the outputs of these jobs, rounded up to MiB; a folder that is not there has none."""
        for job in jobs:
            found = Measured()
            for _ in measure(rank_paths(self._state_dir, job, 0, 0).outputs, found):
                pass
            with self._lock:
                self._sizes[job] = -(-found.size_bytes // MIB)

    def move_to_trash(self, job: str) -> Path:
        """Move a job's outputs to the trash; returns their new path."""
        moved = Path(self._state_dir, "trash", f"{job}.outputs.{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):
            Path(job_directory(self._state_dir, job), "outputs").rename(moved)
            with self._lock:
                self._sizes.pop(job, None)  # measured again, but only once
        return moved
