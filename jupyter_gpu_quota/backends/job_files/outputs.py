"""Reads the logs and the outputs of jobs, without following links.

A file that belongs to another account than the folder is left out. The service may read files that the job may not:
where the kernel allows hard links to files of others (``fs.protected_hardlinks=0``), such a link would publish them.
A hard link to a job's own file is listed, because jobs link checkpoints into outputs. Where all jobs run under one
account they can also copy each file that they can link. A pod mounts its own job's folders alone, and no link leads out
of a mount, so that files of all accounts may be listed there: containers run under any.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

from ..protocol import MAX_OUTPUTS, DataState, LogPart, Output, OutputList, OutputRefused, Provenance
from .paths import rank_paths
from .rank_log import end_offset, segments
from .record_files import read_record

MAX_VISITED = 50_000
"""Entries of one outputs folder that a listing looks at: links and folders count, too."""
MAX_DEPTH = 32
"""Folders inside each other that a listing looks into: each is open while those in it are read."""


class JobOutputs:
    """The logs and outputs of a state folder; the only code that opens such files for readers.

    ``any_owner``: jobs reach no files but their own, so that the account of a file does not matter.
    """

    def __init__(self, state_dir: str | os.PathLike[str], *, any_owner: bool = False) -> None:
        self._state_dir, self._any_owner = os.fspath(state_dir), any_owner

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset``. Raises ValueError for an invalid job id."""
        directory = rank_paths(self._state_dir, job, attempt, rank).log
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):  # a segment was dropped meanwhile: list them again
                return _read_log(directory, max(0, end_offset(directory) + offset) if offset < 0 else offset, limit)
        start = max(0, offset)
        return LogPart(start, b"", start)

    def outputs(self, job: str, limit: int = MAX_OUTPUTS) -> OutputList:
        """The job's regular files, by path, without links and pipes. Raises ValueError for an invalid job id."""
        visits = _Visits(MAX_VISITED, self._any_owner)
        found = list(islice(_files(self._outputs_of(job), None, "", MAX_DEPTH, None, visits), limit + 1))
        return OutputList(sorted(found[:limit]), visits.has_stopped or len(found) > limit)

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output, open for reading. Raises OutputRefused for links, and for files outside or of others."""
        parts = path.split("/")
        if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise OutputRefused(f"{path!r} is not a path inside the outputs folder: name a file as `outputs` lists it.")
        fd, owner = _open_below(self._outputs_of(job), parts, path)
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and (self._any_owner or status.st_uid == owner):
            return os.fdopen(fd, "rb")
        os.close(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OutputRefused(f"{path!r} is not a regular file; only those can be read.")
        raise OutputRefused(
            f"{path!r} belongs to another account than the job's; only the job's own files can be read."
        )

    def provenance(self, job: str, attempt: int) -> Provenance | None:
        """The start conditions of an attempt; None where they were not recorded."""
        record = read_record(rank_paths(self._state_dir, job, attempt, 0).provenance)
        return None if record is None else _provenance(record)

    def _outputs_of(self, job: str) -> str:
        return rank_paths(self._state_dir, job, 0, 0).outputs


def _provenance(record: Mapping[str, Any]) -> Provenance:
    """The record that a rank's process wrote. File names in it may be no UTF-8, which JSON cannot have."""
    known = json.loads(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
    return Provenance(
        python=known["python"],
        python_from=known["python_from"],
        version=known["version"],
        distributions=known["distributions"],
        data={name: _data_state(state) for name, state in known["data"].items()},
    )


def _data_state(state: Mapping[str, Any]) -> DataState:
    return DataState(
        path=state["path"],
        version=state.get("version"),
        files=state.get("files"),
        bytes=state.get("bytes"),
        newest_at=state.get("newest_at"),
        is_complete=state.get("complete", True),
    )


def _read_log(directory: str, offset: int, limit: int) -> LogPart:
    found = segments(directory)
    start = max(offset, found[0][0]) if found else offset
    data = b""
    for base, path in found:
        if start + len(data) >= base and len(data) < limit:
            with open(path, "rb") as file:
                within = start + len(data) - base
                if within < os.fstat(file.fileno()).st_size:  # the file system may refuse an offset far beyond the end
                    file.seek(within)
                    data += file.read(limit - len(data))
    return LogPart(start, data, start + len(data), start - offset)


class _Visits:
    """The entries that a listing may still look at; ``has_stopped``: there were more, or deeper ones.

    ``any_owner``: files of all accounts are listed.
    """

    def __init__(self, left: int, any_owner: bool) -> None:
        self.left, self.any_owner, self.has_stopped = left, any_owner, False

    def names_in(self, fd: int) -> list[str]:
        """The names in an open folder, in order, as many as may be looked at."""
        with os.scandir(fd) as entries:
            names = [entry.name for entry in islice(entries, self.left + 1)]
        self.has_stopped |= len(names) > self.left
        del names[self.left :]
        self.left -= len(names)
        return sorted(names)


def _files(
    name: str, parent: int | None, prefix: str, depth: int, owner: int | None, visits: _Visits
) -> Iterator[Output]:
    """The files of a folder and below it; ``owner`` None: the owner of this folder."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return
    try:
        owner = os.fstat(fd).st_uid if owner is None else owner
        for entry in visits.names_in(fd):
            if (status := _stat(entry, fd)) is None:
                continue
            if stat.S_ISREG(status.st_mode) and (visits.any_owner or status.st_uid == owner):
                yield Output(prefix + entry, status.st_size, status.st_mtime_ns // 1_000_000)
            elif stat.S_ISDIR(status.st_mode):
                visits.has_stopped |= not depth
                if depth:
                    yield from _files(entry, fd, f"{prefix}{entry}/", depth - 1, owner, visits)
    finally:
        os.close(fd)


def _stat(name: str, fd: int) -> os.stat_result | None:
    try:
        name.encode()  # JSON cannot name a file that is no UTF-8
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except (OSError, UnicodeEncodeError):
        return None


def _open_below(root: str, parts: list[str], path: str) -> tuple[int, int]:
    """The open file, and the account that owns the folder."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = None
    try:
        fd = os.open(root, flags | os.O_DIRECTORY)
        owner = os.fstat(fd).st_uid
        for number, part in enumerate(parts, 1):
            below = os.open(part, flags | (os.O_DIRECTORY if number < len(parts) else 0), dir_fd=fd)
            os.close(fd)
            fd = below
        return fd, owner
    except OSError as error:
        if fd is not None:
            os.close(fd)
        raise OutputRefused(f"{path!r} cannot be read: {error.strerror}.") from error
