"""Copies of a job's folders, to which one of its processes may still write. Copying waits for the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from .disk_use import MAX_LINKS

AT_ONCE, READ_AT_ONCE = 1 << 30, 1 << 20
OPEN_TO_ALL = 0o666
Inode = tuple[int, int, int, int]
"""A file by its device, inode number, size and time of change."""

SAFELY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A job may replace a file by a link or a pipe at any moment."""


def copy_folder(source: Path, target: Path) -> None:
    """Copy files, folders and links; the target appears when it is complete. Raises OSError.

    A copy takes no more space than its source had at first: holes that the file system reports stay holes, a file with
    several names is copied once, and what is appended to a file meanwhile is left out.

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
    copied = dict[Inode, Path]()
    try:
        for folder, folders, files, opened in os.fwalk(source):
            into = target / Path(folder).relative_to(source)
            into.mkdir()
            into.chmod(0o777)
            for name in (*folders, *files):
                _copy(opened, name, into / name, copied)
    except RecursionError:
        raise OSError(f"{source} has folders that are nested too deeply") from None


def _copy(folder: int, name: str, target: Path, copied: dict[Inode, Path]) -> None:
    """Copy a link or a file of an opened folder, if it is still there; pipes, sockets and devices are left out.

    ``copied``: the copies of files with several names, by inode.
    """
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        link = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(mode) else None
        file = os.open(name, SAFELY, dir_fd=folder) if stat.S_ISREG(mode) else None
    except FileNotFoundError:
        return
    if link is not None:
        target.symlink_to(link)
    elif file is not None:
        with open(file, "rb") as old:
            _copy_or_link(old.fileno(), target, copied)


def _copy_or_link(old: int, target: Path, copied: dict[Inode, Path]) -> None:
    """Copy a file, or link to its copy under another name."""
    found = os.fstat(old)
    if not stat.S_ISREG(found.st_mode):  # it was replaced meanwhile
        return
    inode = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)  # a new file may have the inode of another
    if found.st_nlink > 1 and inode in copied:
        with contextlib.suppress(OSError):  # the file system has no links, or not so many
            os.link(copied[inode], target)
            return
    with target.open("xb") as new:
        _copy_file(old, new.fileno())
    if found.st_nlink > 1 and len(copied) < MAX_LINKS:
        copied[inode] = target


def _copy_file(old: int, new: int) -> None:
    """The content, permissions and time of change. What is appended or cut off meanwhile is not part of the copy."""
    found = os.fstat(old)
    for start, end in _parts(old, found.st_size):
        _copy_part(old, new, start, end)
    os.ftruncate(new, min(found.st_size, os.fstat(old).st_size))
    os.fchmod(new, stat.S_IMODE(found.st_mode) | OPEN_TO_ALL)
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))


def _parts(file: int, size: int) -> Iterator[tuple[int, int]]:
    """The start and the end of each part of a file that is no hole, up to this size."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is no data any more
                return
            start, end = end, size  # the file system does not know
        yield start, end


def _copy_part(old: int, new: int, start: int, end: int) -> None:
    """The bytes between two offsets, as far as they are still there.

    The file system copies where it can: an NFS server does not send the content, and some share the blocks.
    """
    while start < end:
        copied = 0
        with contextlib.suppress(OSError):
            copied = os.copy_file_range(old, new, min(end - start, AT_ONCE), start, start)
        copied = copied or os.pwrite(new, os.pread(old, min(end - start, READ_AT_ONCE), start), start)
        if not copied:
            return
        start += copied
