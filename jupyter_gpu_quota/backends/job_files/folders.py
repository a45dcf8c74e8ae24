"""Folders that other accounts pass through: the umask of the service must not close them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

PASSABLE = 0o711
"""Every account can enter it, and only its owner can list it."""


def make_folder(path: str | os.PathLike[str], mode: int) -> None:
    """Make a folder with at least this mode, also where an earlier call was killed between its two steps.

    Permissions beyond the mode stay: its owner gave them.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    found = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
    if mode & ~found:
        os.chmod(path, found | mode)


def make_passable(path: Path) -> None:
    """Make a folder and those above it that are missing. One that exists keeps its mode: an admin chose it."""
    if not path.is_dir():
        make_passable(path.parent)
        path.mkdir(mode=PASSABLE, exist_ok=True)
        path.chmod(PASSABLE)
