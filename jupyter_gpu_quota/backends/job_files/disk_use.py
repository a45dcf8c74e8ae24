"""Measures the size and the newest change of a job's folders, in small steps: no large tree delays the supervisor."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ..protocol import TOO_DEEP_MIB
from .paths import job_directory, rank_paths

MAX_DEPTH = 64
"""A tree with folders below this depth exceeds every limit: to measure them takes as many open files."""

MIB = 1 << 20
STEP = 500
"""Entries between two pauses of a measurement."""


MAX_LINKS = 100_000
"""A file with several names counts once, for so many files of a measurement; each name of the others counts."""


class Links:
    """The files with several names that were measured."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen = set[tuple[int, int]]()

    def count_once(self, status: os.stat_result) -> bool:
        """Remember a file with several names. Returns whether this is its first name, so that its size counts."""
        if status.st_nlink < 2 or stat.S_ISDIR(status.st_mode):
            return True
        file = (status.st_dev, status.st_ino)
        if file in self._seen:
            return False
        if len(self._seen) < MAX_LINKS:
            self._seen.add(file)
        return True


class Measured:
    """The sums of a measurement; ``newest_ms`` is the newest change of a file, None without any.

    ``unreadable``: a folder could not be read, so the size is unknown. ``links`` may be those of several measurements.
    """

    __slots__ = ("entries", "links", "newest_ms", "size_bytes", "too_deep", "unreadable")

    def __init__(self, links: Links | None = None) -> None:
        self.size_bytes, self.entries, self.too_deep = 0, 0, False
        self.links = links or Links()
        self.unreadable = False
        self.newest_ms: int | None = None

    def add(self, status: os.stat_result) -> None:
        self.entries += 1
        if self.links.count_once(status):
            self.size_bytes += max(status.st_blocks * 512, 512)
        if not stat.S_ISDIR(status.st_mode):
            changed = status.st_mtime_ns // 1_000_000
            self.newest_ms = changed if self.newest_ms is None else max(self.newest_ms, changed)


def measure(path: str, into: Measured) -> Iterator[None]:
    """Measure a tree that may change meanwhile; links are never followed. Yields after every few entries."""
    if (fd := _open_folder(path, into)) is not None:
        yield from _measure(fd, into, MAX_DEPTH)


def _measure(fd: int, into: Measured, depth: int) -> Iterator[None]:
    """Add the entries of an open folder, and close it."""
    below = []
    try:
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if into.entries % STEP == STEP - 1:
                        yield
                    if _add(entry, into):
                        below.append(entry.name)
        except OSError:  # of a network file system
            into.unreadable = True
        if below and depth == 0:
            into.too_deep = True
            return
        for name in below:
            child = _open_folder(name, into, parent=fd)
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


def _open_folder(name: str, into: Measured, parent: int | None = None) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        into.unreadable |= error.errno != errno.ENOENT
        return None


class OutputSizes:
    """The outputs below one state folder. ``measure`` waits for the disk: run it in a thread."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._sizes: dict[str, int | None] = {}
        self._measuring: dict[str, Measured] = {}
        self._lock = threading.Lock()

    def sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        """The sizes of these jobs' outputs in MiB, where they were measured; others are forgotten.

        None: they could not be measured. That is returned once, so that they are measured again.
        """
        with self._lock:
            found = {job: self._sizes[job] for job in jobs if job in self._sizes}
            self._sizes = {job: mib for job, mib in found.items() if mib is not None}
            return found

    def measure(self, jobs: Collection[str]) -> None:
        """Measure the outputs of these jobs, rounded up to MiB; a folder that is not there has none.

        One that is known is not measured again. A measurement is discarded if the outputs are removed meanwhile.
        """
        for job in jobs:
            found = Measured()
            with self._lock:
                if job in self._sizes:
                    continue
                self._measuring[job] = found
            for _ in measure(rank_paths(self._state_dir, job, 0, 0).outputs, found):
                pass
            with self._lock:
                if self._measuring.get(job) is found:
                    del self._measuring[job]
                    self._sizes[job] = _mib(found)

    def move_to_trash(self, job: str) -> Path:
        """Move a job's outputs to the trash; returns their new path. Their size is measured again."""
        moved, is_there = Path(self._state_dir, "trash", f"{job}.outputs.{time.time_ns()}"), True
        try:
            Path(job_directory(self._state_dir, job), "outputs").rename(moved)
        except FileNotFoundError:
            is_there = False
        with self._lock:
            if is_there:
                self._measuring.pop(job, None)
            if self._sizes.get(job) != 0:
                self._sizes.pop(job, None)
        return moved


def _mib(found: Measured) -> int | None:
    if found.too_deep:
        return TOO_DEEP_MIB
    return None if found.unreadable else -(-found.size_bytes // MIB)
