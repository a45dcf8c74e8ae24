"""Copies of a job's folders, to which one of its processes may still write. Copying waits for the disk."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

AT_ONCE = 1 << 30
OPEN_TO_ALL = 0o666
SAFELY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A job may replace a file by a link or a pipe at any moment."""


def copy_folder(source: Path, target: Path) -> None:
    """Copy files, folders and links; the target appears when it is complete. Raises OSError.

    Files that vanish meanwhile are left out, and no link is followed. The pods of a job have accounts of their own, so
    each copy is open to all accounts, as the folders of jobs are. Processes may copy to one target at the same time,
    such as a leader and the one that it replaced: the first complete copy stays, and the others are removed.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        _copy_whole(source, partial)
        if not target.exists():
            partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            raise
    else:
        for left in target.parent.glob(f".{target.name}.*partial"):
            shutil.rmtree(left, ignore_errors=True)


def _copy_whole(source: Path, target: Path) -> None:
    try:
        for folder, folders, files, opened in os.fwalk(source):
            into = target / Path(folder).relative_to(source)
            into.mkdir()
            into.chmod(0o777)
            for name in (*folders, *files):
                _copy(opened, name, into / name)
    except RecursionError:
        raise OSError(f"{source} has folders that are nested too deeply") from None


def _copy(folder: int, name: str, target: Path) -> None:
    """Copy a link or a file of an opened folder, if it is still there; pipes, sockets and devices are left out."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        link = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(mode) else None
        file = os.open(name, SAFELY, dir_fd=folder) if stat.S_ISREG(mode) else None
    except FileNotFoundError:
        return
    if link is not None:
        target.symlink_to(link)
    elif file is not None:
        with open(file, "rb") as old, target.open("xb") as new:
            _copy_file(old.fileno(), new.fileno())


def _copy_file(old: int, new: int) -> None:
    """The content, permissions and time of change.

    The file system copies where it can: an NFS server does not send the content, and some share the blocks.
    """
    found = os.fstat(old)
    try:
        while os.copy_file_range(old, new, AT_ONCE):
            pass
    except OSError:
        with open(old, "rb", closefd=False) as reader, open(new, "wb", closefd=False) as writer:
            reader.seek(0)
            writer.truncate(0)
            writer.seek(0)
            shutil.copyfileobj(reader, writer, 1 << 20)
    os.fchmod(new, stat.S_IMODE(found.st_mode) | OPEN_TO_ALL)
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
