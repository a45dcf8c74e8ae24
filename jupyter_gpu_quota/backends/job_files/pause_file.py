"""The pause file of a rank, in a folder that the job's own account can write."""

from __future__ import annotations

import contextlib
import os
import threading

from .paths import RankPaths

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READABLE = 0o644


def make_pause_file(paths: RankPaths, text: str) -> None:
    """Make the pause file with this text. Raises OSError where its path has something, or the folder is closed.

    The job may have put a link or a pipe there. The service may write files that the job may not, so nothing that
    exists is opened. The file has its text as soon as it is there, except where the file system cannot do that.
    """
    folder, name = os.open(paths.run, FOLDER), os.path.basename(paths.pause)
    try:
        try:
            _make_complete(folder, name, text)
        except OSError:  # the disk is full, or the file system has no hard links
            _write(folder, name, text)
    finally:
        os.close(folder)


def _make_complete(folder: int, name: str, text: str) -> None:
    """Write another file, and give it this name, unless something has the name."""
    temporary = f".{name}.{os.getpid()}.{threading.get_native_id()}"
    _write(folder, temporary, text)
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _write(folder: int, name: str, text: str) -> None:
    """Write a new file that the job's account can read, whatever the umask. On a full disk it stays empty."""
    fd = os.open(name, FILE, READABLE, dir_fd=folder)
    with contextlib.suppress(OSError), os.fdopen(fd, "w") as file:
        os.fchmod(fd, READABLE)
        file.write(text)
