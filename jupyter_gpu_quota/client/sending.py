"""The code of a job: its folder is packed, and sent unless this user has sent it before."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..bundle import Bundle, BundleRefused, pack
from .arguments import checked_path
from .connection import Call, Connection, Refused

MAX_NAMED_FILES = 5
"""The number of left-out files that a note names."""

OnProgress = Callable[[str, int, int | None], object]
"""It gets "packed" and the number of files; then "sent", the bytes so far, and all."""


def send_folder(
    connection: Connection,
    directory: str | Path,
    *,
    on_file: Callable[[str], object] | None = None,
    extra: Mapping[str, bytes] | None = None,
    on_progress: OnProgress | None = None,
) -> Bundle:
    """Pack a folder and send it. Raises Refused, Unreachable, WrongArgument."""
    if on_progress is not None:
        packed = itertools.count(1)
        on_file = lambda name: on_progress("packed", next(packed), None)  # noqa: E731
    with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
        into = Path(folder) / "bundle.tar.gz"
        try:
            bundle = pack(checked_path(directory, "dir"), into, on_file=on_file, extra=extra)
        except BundleRefused as error:
            raise Refused(413, "bundle", str(error)) from None
        path = f"bundles/{bundle.digest}"
        try:
            connection.bytes_of(Call(method="HEAD", path=path))
        except Refused:  # a HEAD has no sentence; the PUT is refused with one
            on_sent = None if on_progress is None else partial(on_progress, "sent")
            connection.bytes_of(Call(method="PUT", path=path, body=bundle.path, on_sent=on_sent))
        return bundle


def notes_of(bundle: Bundle) -> tuple[str, ...]:
    """Notes for the sender of a bundle: the files that are not in it."""
    left_out = bundle.ignored_by_git
    if not left_out:
        return bundle.skipped
    named = ", ".join(left_out[:MAX_NAMED_FILES])
    more = f" and {len(left_out) - MAX_NAMED_FILES} more" if len(left_out) > MAX_NAMED_FILES else ""
    note = (
        f"Not sent, because .gitignore names them: {named}{more}. A line !{left_out[0]} in .gpuquotaignore includes the"
        " first."
    )
    return (*bundle.skipped, note)
