"""What a job left in its outputs folder, for the web door: listed and opened without ever following a link.

A file that belongs to another account than the folder is left out too. The door may read what the job may not: where
the kernel lets people link to files of others (``fs.protected_hardlinks=0``), a hard link would have it give them out.
A second name of a job's own file is given: checkpoints are linked into outputs for good reasons, and where all jobs
run under one account they can copy whatever they can link, so that counting links would keep nothing from anybody.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from ...protocol import MOST_OUTPUTS, Output, OutputRefused
from .paths import outputs_dir


def list_outputs(state_dir: str, job: str, most: int = MOST_OUTPUTS) -> list[Output]:
    """The job's regular files below the outputs folder, by path; links, sockets and pipes are left out.

    Returns at most ``most`` files. Raises ValueError for what is no job id.
    """
    root = outputs_dir(state_dir, job)
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    found = []
    try:
        for output in _files(fd, "", depth=32, owner=os.fstat(fd).st_uid):
            found.append(output)
            if len(found) >= most:
                break
    finally:
        os.close(fd)
    return sorted(found)


def _files(fd: int, prefix: str, depth: int, owner: int) -> Iterator[Output]:
    for name in sorted(os.listdir(fd)):
        status = _stat(name, fd)
        if status is None:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_uid == owner:
            yield Output(prefix + name, status.st_size, status.st_mtime_ns // 1_000_000)
        elif stat.S_ISDIR(status.st_mode) and depth:
            yield from _files_below(fd, name, prefix, depth, owner)


def _files_below(fd: int, name: str, prefix: str, depth: int, owner: int) -> Iterator[Output]:
    try:
        child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return
    try:
        yield from _files(child, f"{prefix}{name}/", depth - 1, owner)
    finally:
        os.close(child)


def _stat(name: str, fd: int) -> os.stat_result | None:
    try:
        name.encode()  # a name that is no UTF-8 cannot be asked for in JSON either
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except (OSError, UnicodeEncodeError):
        return None


def open_output(state_dir: str, job: str, path: str, limit_bytes: int | None = None) -> BinaryIO:
    """Open one output for reading, part by part from the outputs folder, following no link.

    Raises OutputRefused with a sentence: no such file, a path that leaves the folder, a link, another's, too large.
    """
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise OutputRefused(f"{path!r} is not a path inside the outputs folder: name a file as `outputs` lists it.")
    fd, owner = _open_below(outputs_dir(state_dir, job), parts, path)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OutputRefused(f"{path!r} is not a regular file; only those are given out.")
    if status.st_uid != owner:
        os.close(fd)
        raise OutputRefused(f"{path!r} belongs to another account than the job's; only the job's own files are given.")
    if limit_bytes is not None and status.st_size > limit_bytes:
        os.close(fd)
        raise OutputRefused(f"{path!r} has {status.st_size} bytes; at most {limit_bytes} are given out at once.")
    return os.fdopen(fd, "rb")


def _open_below(root: str, parts: list[str], path: str) -> tuple[int, int]:
    """The open file, and the account to which the folder belongs."""
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
        raise OutputRefused(f"{path!r} cannot be given out: {error.strerror}.") from error
