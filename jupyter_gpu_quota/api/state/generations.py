"""How often the parts of the store view have changed that the answers of one project or user show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ...core.frozen import with_changes
from ...core.lifecycle import WAITING
from ...core.model import Device
from ...store.reads.snapshot import Mirror
from ...store.records.rows import Changes, JobRecord, NotebookRecord

V = TypeVar("V")
EVERY = ""
"""The owner of all jobs."""


class Generations:
    """Counters that grow with each change, by owner: the name of a project, or the id of a user.

    ``jobs``: the records of jobs, their allocations, use, enforcement, reasons and positions. ``slices``: the size and
    state of slices. ``common``: what answers to everybody show: nodes, devices, removed jobs, another history of the
    store.
    """

    def __init__(self) -> None:
        self.jobs, self.slices, self.common = Counter[str](), Counter[str](), 0
        self._waiting: tuple[tuple[int, int], frozenset[str]] | None = None

    def count_changes(self, changes: Changes, mirror: Mirror) -> None:
        """Count changes that this mirror does not have yet."""
        self.common += bool(changes.nodes or changes.removed_nodes) or _changes_devices(changes, mirror)
        for job in changes.jobs:
            self._count_job(job)
        for slice in changes.notebooks:
            before = mirror.notebooks.get(slice.notebook.id)
            if before is None or _shown(before) != _shown(slice):
                self.slices.update((slice.notebook.project, slice.notebook.user))

    def count_jobs(self, mirror: Mirror, ids: Iterable[str]) -> None:
        """Count a change of what is shown of these workloads; those that are not live jobs are left out."""
        for id in ids:
            if (record := mirror.jobs.get(id)) is not None:
                self._count_job(record)

    def _count_job(self, record: JobRecord) -> None:
        self.jobs.update((record.job.project, record.job.user, EVERY))

    def waiting(self, mirror: Mirror) -> frozenset[str]:
        """The owners of waiting jobs, computed once per change of jobs."""
        key = self.common, self.jobs[EVERY]
        if self._waiting is None or self._waiting[0] != key:
            waiting = [record.job for record in mirror.jobs.values() if record.job.state in WAITING]
            self._waiting = key, frozenset(name for job in waiting for name in (job.project, job.user, EVERY))
        return self._waiting[1]


def differing(before: Mapping[str, V], after: Mapping[str, V]) -> list[str]:
    """The keys whose values differ."""
    return [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]


def _shown(record: NotebookRecord) -> tuple[object, ...]:
    slice = record.notebook
    return slice.project, slice.user, slice.pool, slice.gpu_milli, slice.state, record.server


def _changes_devices(changes: Changes, mirror: Mirror) -> bool:
    """Whether devices change other than by the work of others on them."""
    if changes.gone_devices or changes.removed_devices:
        return True
    return any(
        device.id in mirror.gone_devices or _without_use(mirror.devices.get(device.id)) != _without_use(device)
        for device in changes.devices
    )


def _without_use(device: Device | None) -> Device | None:
    return None if device is None else with_changes(device, foreign_milli=0)
