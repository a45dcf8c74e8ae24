"""The pause file of a rank, in a folder that the job's own account can write."""

from __future__ import annotations

import os

from .paths import RankPaths

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_pause_file(paths: RankPaths, text: str) -> None:
    """Make the pause file with this text. Raises OSError where its path has something, or the folder is closed.

    The job may have put a link or a pipe there. The service may write files that the job may not, so nothing that
    exists is opened.
    """
    folder = os.open(paths.run, FOLDER)
    try:
        fd = os.open(os.path.basename(paths.pause), FILE, 0o644, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(fd, "w") as file:
        file.write(text)
