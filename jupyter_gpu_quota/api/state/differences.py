"""The changes of a store that was read anew, after a restore or in another term of a leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...core.model import Allocation
from ...store.reads.snapshot import Mirror
from ...store.records.rows import Changes


def differences(live: Changes, missed: Changes, mirror: Mirror, allocations: Mapping[str, Allocation]) -> Changes:
    """The rows that differ from those of a view, as changes up to the version of ``live``.

    ``live``: all rows of live work; ``missed``: the changes since the version of the view, among them the work that has
    ended; ``mirror`` and ``allocations``: those of the view.
    """
    jobs = {record.job.id: record for record in (*missed.jobs, *live.jobs)}
    slices = {record.notebook.id: record for record in (*missed.notebooks, *live.notebooks)}
    return replace(
        live,
        jobs=tuple(record for name, record in jobs.items() if mirror.jobs.get(name) != record),
        notebooks=tuple(record for name, record in slices.items() if mirror.notebooks.get(name) != record),
        devices=tuple(device for device in live.devices if mirror.devices.get(device.id) != device),
        allocations=tuple(part for part in live.allocations if allocations.get(part.id) != part),
        released=tuple(allocations.keys() - {part.id for part in live.allocations}),
    )


def is_restored(live: Changes, missed: Changes, mirror: Mirror) -> bool:
    """Whether the store is a restored backup: its version went back, or it lacks work that is live in the view.

    A restored store may have passed the version of the view before it is read. ``live`` and ``missed`` as above.
    """
    read = (live, missed)
    jobs = {record.job.id for changes in read for record in changes.jobs}
    slices = {record.notebook.id for changes in read for record in changes.notebooks}
    return live.version < mirror.version or not (mirror.jobs.keys() <= jobs and mirror.notebooks.keys() <= slices)
