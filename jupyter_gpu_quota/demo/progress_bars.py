"""The live picture under the story: a bar for each job that has run, filled by the progress file it writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from .observer import RankOf, Sighting, Witness

REFRESH_S = 0.5


class Bars:
    """Bars on a terminal; elsewhere nothing but the lines of the story. ``owner`` says whose job a rank is."""

    def __init__(self, console: Console, witness: Witness) -> None:
        self.console, self.witness = console, witness
        self.owner: Callable[[Sighting], str | None] = lambda sighting: None
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[where]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="bars", daemon=True)

    def __enter__(self) -> Bars:
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join(5)
        self._progress.stop()

    def _refresh(self) -> None:
        while not self._leaving.wait(REFRESH_S):
            for sighting in self.witness.ranks():
                self._show(sighting)

    def _show(self, sighting: Sighting) -> None:
        """Draw one attempt; a later attempt of the same job takes over its bar."""
        holder = sighting.holder
        assert isinstance(holder, RankOf)
        done, total = progress_of(sighting)
        if holder.job not in self._tasks:
            owner = self.owner(sighting) or "?"
            self._tasks[holder.job] = self._progress.add_task(f"{owner:>5} {holder.job[-4:]}", total=total, where="")
        where = ", ".join(sighting.devices) if sighting.present else "done" if done == total else "waiting"
        where = f"{where}  attempt {holder.attempt}" if holder.attempt > 1 else where
        self._progress.update(self._tasks[holder.job], completed=done, total=total, where=where)


def progress_of(sighting: Sighting) -> tuple[int, int]:
    """(done, total) from the progress file of a rank; (0, 1) before it wrote one."""
    try:
        told = json.loads(Path(sighting.environ["GPU_QUOTA_PROGRESS_FILE"]).read_text())
        return int(told["done"]), int(told["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 1
