"""Output files of a command: written completely or not at all, and never over its inputs."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from .session import USAGE, fail


def check_outputs(outputs: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """Fail before any work if an output (by its option) is an input or another output, or cannot be written."""
    taken = {path.resolve(): f"{path}, which is an input" for path in inputs if path.exists()}
    for option, path in outputs.items():
        if path is None or _is_special(path):
            continue
        if (place := _place(path)) in taken:
            fail(f"{option} would overwrite {taken[place]}; name another file", USAGE)
        if not path.parent.is_dir():
            fail(f"{path} cannot be written: the folder {path.parent} does not exist")
        if not all(os.access(each, os.W_OK) for each in (place.parent, place) if each.exists()):
            fail(f"{path} cannot be written: this account has no permission")
        taken[place] = f"{path}, another output"


def write_whole(path: Path, text: str) -> None:
    """Write a new file and rename it. Raises OSError; then an existing file is unchanged."""
    if _is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    place = _place(path)
    beside = place.with_name(f".{uuid.uuid4().hex}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def _place(path: Path) -> Path:
    """The file to which links lead. Raises OSError where they lead to each other."""
    try:
        return path.resolve()
    except RuntimeError as error:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def _is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, which is written and not replaced."""
    return path.exists() and not path.is_file()
