"""For training scripts: hear of a pause, save in one piece, tell how far one is, know which rank one is.

One file on the standard library; copy it beside a script if the package is not in its environment. Outside a job
everything works and does little: nothing asks for a pause, progress goes nowhere, files go to the working directory.

    from jupyter_gpu_quota import job

    for step in range(first, total):
        train(step)
        job.report_progress(step + 1, total, loss=loss)
        if job.pause_requested():
            with job.saving(job.checkpoint_path("state.npz")) as part:
                save(part)
            raise SystemExit(job.CHECKPOINTED)
    job.complete()
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

CHECKPOINTED = 75
"""Exit with this after saving, and the job is queued again to go on from there."""

_progress: dict[str, object] = {}
_sigterm = {"awaited": False, "came": False}


def pause_requested() -> bool:
    """Whether the queue, or a person, wants this job to save and leave.

    SIGTERM comes with the request. From the first call on it no longer ends the process at once, but makes this
    true; ask often enough to save within the grace period. A handler that the script set itself stays.
    """
    _await_sigterm()
    pause_file = os.environ.get("GPU_QUOTA_PAUSE_FILE")
    asked = _sigterm["came"] or (pause_file is not None and Path(pause_file).exists())
    if asked:
        _need_no_sigterm()
    return asked


def _await_sigterm() -> None:
    """Only inside a job, and only from the main thread, where Python lets a handler be set."""
    if _sigterm["awaited"] or "GPU_QUOTA_PAUSE_FILE" not in os.environ:
        return
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _note_sigterm)
    except ValueError:
        return
    _sigterm["awaited"] = True


def _need_no_sigterm() -> None:
    """The request is known; a SIGTERM that comes now would find the interpreter leaving, and make its exit a death."""
    try:
        if signal.getsignal(signal.SIGTERM) is _note_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError:
        return


def _note_sigterm(number: int, frame: FrameType | None) -> None:
    _sigterm["came"] = True


def checkpoint_path(name: str = "") -> Path:
    """A path in the folder that survives pauses and restarts; outside a job, in ``checkpoint`` here."""
    return _folder("GPU_QUOTA_CHECKPOINT_DIR", "checkpoint") / name


def output_path(name: str = "") -> Path:
    """A path in the folder whose files are kept and shown after the job; outside a job, in ``outputs`` here."""
    return _folder("GPU_QUOTA_OUTPUT_DIR", "outputs") / name


def _folder(variable: str, here: str) -> Path:
    folder = Path(os.environ.get(variable) or here)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def saving(path: Path) -> Iterator[Path]:
    """A new file to write, which takes the place of ``path`` when the block ends well: it is whole, or not there.

    It has the ending of ``path``, and a name of its own in each rank, so that two ranks that save do not spoil each
    other's file. Where all would write the same, let rank 0 do it alone.
    """
    part = path.with_name(f".{path.stem}.rank-{rank()}.part{path.suffix}")
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def rank() -> int:
    """Which of the job's processes this is, from 0; a job of one process, and a script outside a job, is rank 0."""
    return int(os.environ.get("RANK") or 0)


def ranks() -> int:
    """How many processes this attempt of the job has."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def report_progress(done: int, total: int, **metrics: float) -> None:
    """Tell how far the job is, and its figures; shown live. ``done`` = ``total`` also says that it is complete.

    Metrics that are not finite numbers are left out: JSON has no word for them.
    """
    numbers = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    _progress.update(done=int(done), total=int(total), metrics=numbers)
    _write_progress()


def complete() -> None:
    """Say that the work is done. An exit with 0 after a pause request counts as success only if this was said."""
    _progress["completed"] = True
    _write_progress()


def _write_progress() -> None:
    path = os.environ.get("GPU_QUOTA_PROGRESS_FILE")
    if path is None:
        return
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(_progress))
    temporary.replace(path)
