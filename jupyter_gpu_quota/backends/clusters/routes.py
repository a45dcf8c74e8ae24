"""The cluster of each job, in a folder that outlives this process.

    routes/<cluster>/<job>      an empty file: the job was ordered to start in this cluster last

A job without a file is in the hub's own cluster. The controllers' process writes the folder, those of the API read it.
The file of a job is there before its first pod is.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core.model import OWN_CLUSTER
from ..job_files.paths import is_job_id

log = logging.getLogger(__name__)

Task = Callable[[], object]


class JobRoutes:
    """The routes of one state folder to further ``clusters``. ``later`` runs a task in another thread, in order."""

    def __init__(
        self, state_dir: str | os.PathLike[str], clusters: Sequence[str], later: Callable[[Task], object] | None = None
    ) -> None:
        self._folders = {name: Path(state_dir, "routes", name) for name in clusters}
        self._known: dict[str, str] = {}
        self._writing = set[str]()
        self._later = later or ThreadPoolExecutor(1, thread_name_prefix="routes").submit

    def of(self, job: str) -> str:
        """The cluster of a job, as this process noted it, or read it once."""
        if job not in self._known:
            self._known[job] = self.stored(job)
        return self._known[job]

    def stored(self, job: str) -> str:
        """The cluster of a job by its file, which another process may have written."""
        if not is_job_id(job):
            return OWN_CLUSTER
        return next((name for name, folder in self._folders.items() if (folder / job).exists()), OWN_CLUSTER)

    def read_again(self) -> None:
        """Another process may have written the files since they were read."""
        self._known = {job: name for job, name in self._known.items() if job in self._writing}

    def note(self, job: str, cluster: str, then: Task = lambda: None) -> None:
        """The job is in this cluster from now on; ``then`` is called once that is stored, maybe in another thread.

        While it is being stored, and where it cannot be, ``then`` of a further call is not called.
        """
        if job in self._writing:
            return
        stored = self.of(job) == cluster
        self._known[job] = cluster
        if stored:
            then()
        else:
            self._writing.add(job)
            self._later(lambda: self._write(job, cluster, then))

    def forget(self, job: str) -> None:
        """The job and its files are removed."""
        if self._known.pop(job, None) != OWN_CLUSTER:
            self._later(lambda: self._remove(job, None))

    def _write(self, job: str, cluster: str, then: Task) -> None:
        try:
            if (folder := self._folders.get(cluster)) is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / job).touch()
            self._remove(job, cluster)
        except OSError as error:
            log.warning("job %s does not start yet: its cluster cannot be stored: %s", job, error)
            self._known.pop(job, None)
        else:
            then()
        finally:
            self._writing.discard(job)

    def _remove(self, job: str, kept: str | None) -> None:
        for name, folder in self._folders.items():
            if name != kept:
                with contextlib.suppress(FileNotFoundError):
                    (folder / job).unlink()
