"""Small JSON records that survive a kill at any moment, and the fencing number of the newest leader."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

MAX_RECORD_BYTES, MAX_UNTRUSTED_BYTES = 1 << 20, 1 << 16
LOCK_TIMEOUT_S, LOCK_AGAIN_S = 2.0, 0.05


def write_record(path: str, record: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace a JSON file atomically; ``durable`` also waits until it is on the disk. Raises OSError."""
    temporary, data = f"{path}.{os.getpid()}.{threading.get_native_id()}.tmp", json.dumps(record).encode()
    try:
        _write_whole(temporary, data, durable=durable)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_whole(path: str, data: bytes, *, durable: bool) -> None:
    """Write a file of the service. Raises OSError where not all of it can be written."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, data) < len(data):  # the disk is full, or a limit is reached
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_record(path: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file, or no object in it."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(MAX_RECORD_BYTES))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_untrusted(path: str) -> dict[str, Any] | None:
    """The JSON object in a file that a job wrote; None for a link, a pipe, a folder, more than 64 KiB, or no object.

    The caller may have more rights than the job, so the file is opened without following links and without waiting.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_UNTRUSTED_BYTES:
            return None
        value = json.loads(os.read(fd, MAX_UNTRUSTED_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def file_lock(path: str) -> Iterator[bool]:
    """Try to lock a file; yields whether it is locked. The kernel releases it when this process dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)  # a process that can open it can lock it
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def read_fence(path: str) -> int:
    """The newest fencing number; 0 before the first."""
    record = read_record(path)
    return int(record["fencing"]) if record else 0


def raise_fence(path: str, fencing: int) -> int:
    """Raise the stored fencing number to at least this, durably. Returns the newest.

    Raises TimeoutError while another process holds the lock: a leader may have been frozen while it wrote.
    """
    until = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        with file_lock(f"{path}.lock") as is_locked:
            if is_locked:
                present = read_fence(path)
                if fencing > present:
                    write_record(path, {"fencing": fencing})
                return max(fencing, present)
        if time.monotonic() >= until:
            raise TimeoutError(f"{path}.lock is locked by another process, which may be frozen: end that process")
        time.sleep(LOCK_AGAIN_S)
