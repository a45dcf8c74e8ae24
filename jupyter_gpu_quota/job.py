"""For training scripts: detect a pause request, save checkpoints atomically, report progress, get the rank.

One file on the standard library; copy it beside a script if the package is not in its environment. Outside a job no
pause is requested, progress is not reported, and files go to the working directory.

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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TypeVar

CHECKPOINTED = 75
"""Exit status after a checkpoint: the job is queued again and continues from it."""

Function = TypeVar("Function", bound=Callable[[], object])

_progress: dict[str, object] = {}
_on_pause: dict[str, Callable[[], object]] = {}
_sigterm = {"handled": False, "received": False}


def pause_requested() -> bool:
    """Whether the scheduler or a user requests that this job saves a checkpoint and exits.

    SIGTERM comes with the request. From the first call on, SIGTERM only makes this true; call it often enough to save
    within the grace period. The script's own handler stays.
    """
    _handle_sigterm()
    pause_file = os.environ.get("GPU_QUOTA_PAUSE_FILE")
    requested = _sigterm["received"] or (pause_file is not None and Path(pause_file).exists())
    if requested:
        _ignore_sigterm()
    return requested


def _handle_sigterm() -> None:
    """Set a handler for SIGTERM, inside a job and in the main thread, where Python allows it."""
    if _sigterm["handled"] or "GPU_QUOTA_PAUSE_FILE" not in os.environ:
        return
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _on_sigterm)
    except ValueError:
        return
    _sigterm["handled"] = True


def _ignore_sigterm() -> None:
    """Ignore SIGTERM after the pause request is known, since it could kill the interpreter during its exit."""
    try:
        if signal.getsignal(signal.SIGTERM) is _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError:
        return


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    _sigterm["received"] = True


def pause_seconds_left() -> float | None:
    """Seconds until a requested pause is enforced by a kill; None without a request, or if the time is unknown."""
    try:
        ends_at = int(Path(os.environ["GPU_QUOTA_PAUSE_FILE"]).read_text().splitlines()[-1])
    except (KeyError, OSError, ValueError, IndexError):
        return None
    return max(0.0, ends_at / 1000 - time.time())


def on_pause(function: Function) -> Function:
    """Register a function of a notebook that saves a checkpoint; a notebook job calls it when a pause is requested.

    It is called in the kernel, between cells or after the running cell was interrupted. A function of the same name
    replaces the earlier one. A script calls :func:`pause_requested` instead.
    """
    _on_pause[getattr(function, "__qualname__", repr(function))] = function
    return function


def call_on_pause() -> int:
    """Call the registered functions, in their order; returns their number. A notebook job does so in the kernel."""
    for function in _on_pause.values():
        function()
    return len(_on_pause)


def checkpoint_path(name: str = "") -> Path:
    """A path in the folder that survives pauses and restarts; outside a job, in ``./checkpoint``."""
    return _folder("GPU_QUOTA_CHECKPOINT_DIR", "checkpoint") / name


def output_path(name: str = "") -> Path:
    """A path in the folder whose files are kept after the job; outside a job, in ``./outputs``."""
    return _folder("GPU_QUOTA_OUTPUT_DIR", "outputs") / name


def _folder(variable: str, here: str) -> Path:
    folder = Path(os.environ.get(variable) or here)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def saving(path: Path) -> Iterator[Path]:
    """A new file, which replaces ``path`` when the block ends without an error, so that ``path`` is always complete.

    It has the suffix of ``path``, and a separate name in each rank. If all ranks would write the same, let only rank 0
    write.
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
    """The rank of this process, from 0; 0 in a job of one process and outside a job."""
    return int(os.environ.get("RANK") or 0)


def ranks() -> int:
    """The number of processes of this attempt."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def report_progress(done: int, total: int, /, **metrics: float) -> None:
    """Report the progress and metrics of the job; ``done`` = ``total`` also means that it is complete.

    Metrics that are not finite are left out, since JSON cannot have them.
    """
    numbers = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    _progress.update(done=int(done), total=int(total), metrics=numbers)
    _write_progress()


def complete() -> None:
    """Report that the work is complete; after a pause request, exit status 0 means success only with this."""
    _progress["completed"] = True
    _write_progress()


def _write_progress() -> None:
    path = os.environ.get("GPU_QUOTA_PROGRESS_FILE")
    if path is None:
        return
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(_progress))
    temporary.replace(path)
