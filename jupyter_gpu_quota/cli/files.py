"""Files that a command writes: whole or not at all, and never over what it reads."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from .session import USAGE, fail


def check_places(outputs: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """End before any work is done where two outputs (by their option) are one file, or one is what is read."""
    taken = {path.resolve(): f"{path}, which is read" for path in inputs if path.exists()}
    for option, path in outputs.items():
        if path is None or _is_special(path):
            continue
        if (place := path.resolve()) in taken:
            fail(f"{option} would write over {taken[place]}; name another file", USAGE)
        if not path.parent.is_dir():
            fail(f"{path} cannot be written: there is no folder {path.parent}")
        if not all(os.access(each, os.W_OK) for each in (place.parent, place) if each.exists()):
            fail(f"{path} cannot be written: this account may not write there")
        taken[place] = f"{path}, which is written too"


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place, then put it there. Raises OSError; then the place is as it was before."""
    if _is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    place = path.resolve()
    beside = place.with_name(f".{uuid.uuid4().hex}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    """Whether it is there and no file: a pipe or a device is written to, and not replaced."""
    return path.exists() and not path.is_file()
