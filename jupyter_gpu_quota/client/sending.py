"""The code of a job: its folder is packed, and sent unless this user has sent it before."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from ..bundle import OUTPUTS_MARK, Bundle, BundleRefused, pack, pattern_of
from ..wire.fields import NOTEBOOK_COMMAND
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


def is_marked(folder: Path) -> bool:
    """Whether a download has created the folder."""
    return (folder / OUTPUTS_MARK).is_file()


def mark_outputs(folder: Path, job: str) -> None:
    """Create a folder for downloaded outputs, marked so that it is not packed; one that is there stays as it is."""
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / OUTPUTS_MARK).write_text(f"Outputs of job {job}. Without this file, submit sends this folder, too.\n")


def output_target(folder: Path, name: str) -> Path:
    """The path of an output below a folder. Raises Refused for a name that leads elsewhere."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
        raise Refused(502, "path", f"The service named an output {name[:80]!r}, which is not a path below a folder.")
    return folder.joinpath(*parts)


def missing_script_notes(command: Sequence[str], directory: str | Path) -> tuple[str, ...]:
    """A note if the command runs a script or a notebook that is not in the folder of the job; otherwise none."""
    script = _script_of(command)
    if script is None or Path(directory, script).exists():
        return ()
    return (f"{script} is not in the folder {Path(directory).absolute()}, so the job will not find it.",)


def _script_of(command: Sequence[str]) -> str | None:
    """The script or notebook of a command, as a path; None for other commands."""
    if tuple(command[: len(NOTEBOOK_COMMAND)]) == NOTEBOOK_COMMAND:
        command = command[len(NOTEBOOK_COMMAND) :]
    if not command or command[0].endswith(".ipynb"):
        return command[0] if command else None
    program = Path(command[0]).name
    ending = ".py" if program.startswith("python") else ".sh" if program in ("bash", "sh") else None
    if ending is None or {"-m", "-c"} & set(command):
        return None
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    return script if script.endswith(ending) else None


def notes_of(bundle: Bundle, command: Sequence[str], directory: str | Path) -> tuple[str, ...]:
    """Notes for the sender of a bundle: a script that its command names and that is not there, the files left out."""
    return (*missing_script_notes(command, directory), *left_out_notes(bundle))


def left_out_notes(bundle: Bundle) -> tuple[str, ...]:
    """Notes on the files of the folder that the bundle lacks."""
    left_out = bundle.ignored_by_git
    if not left_out:
        return bundle.skipped
    named = ", ".join(left_out[:MAX_NAMED_FILES])
    more = f" and {len(left_out) - MAX_NAMED_FILES} more" if len(left_out) > MAX_NAMED_FILES else ""
    note = (
        f"Not sent, because .gitignore names them: {named}{more}. A line !{pattern_of(left_out[0])} in .gpuquotaignore"
        " includes the first."
    )
    return (*bundle.skipped, note)
