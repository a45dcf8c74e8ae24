"""Progress bars below the output of the scenario: one for each job that has run, from the job's progress file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from .observer import Observation, ProcessObserver, RankId

REFRESH_S = 0.5


class ProgressBars:
    """Shows progress bars on a terminal, and nothing elsewhere. ``owner`` returns the user of a rank's job."""

    def __init__(self, console: Console, observer: ProcessObserver) -> None:
        self.console, self.observer = console, observer
        self.owner: Callable[[Observation], str | None] = lambda observation: None
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[where]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="bars", daemon=True)

    def __enter__(self) -> ProgressBars:
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(5)
        self._progress.stop()

    def _refresh(self) -> None:
        while not self._stopping.wait(REFRESH_S):
            for observation in self.observer.ranks():
                self._show(observation)

    def _show(self, observation: Observation) -> None:
        """Show one attempt; a later attempt of the same job takes over its bar."""
        workload = observation.workload
        assert isinstance(workload, RankId)
        done, total = progress_of(observation)
        if workload.job not in self._tasks:
            owner = self.owner(observation) or "?"
            self._tasks[workload.job] = self._progress.add_task(
                f"{owner:>5} {workload.job[-4:]}", total=total, where=""
            )
        where = ", ".join(observation.devices) if observation.present else "done" if done == total else "waiting"
        where = f"{where}  attempt {workload.attempt}" if workload.attempt > 1 else where
        self._progress.update(self._tasks[workload.job], completed=done, total=total, where=where)


def progress_of(observation: Observation) -> tuple[int, int]:
    """(done, total) from the progress file of a rank; (0, 1) before it wrote one."""
    try:
        progress = json.loads(Path(observation.environ["GPU_QUOTA_PROGRESS_FILE"]).read_text())
        return int(progress["done"]), int(progress["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 1
