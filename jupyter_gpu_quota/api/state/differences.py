"""The changes of a store that was read anew, after a restore or in another term of a leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...core.model import Allocation, Node
from ...store.reads.snapshot import Mirror
from ...store.records.rows import Changes


def differences(
    live: Changes, missed: Changes, mirror: Mirror, nodes: Mapping[str, Node], allocations: Mapping[str, Allocation]
) -> Changes:
    """The rows that differ from those of a view, as changes up to the version of ``live``.

    ``live``: all rows of live work; ``missed``: the changes since the version of the view, among them the work that has
    ended; ``mirror``, ``nodes`` and ``allocations``: those of the view. A changed row of a device counts also where
    the device is equal: its view depends on its node, too.
    """
    jobs = {record.job.id: record for record in (*missed.jobs, *live.jobs)}
    slices = {record.notebook.id: record for record in (*missed.notebooks, *live.notebooks)}
    changed = {device.id for device in missed.devices}
    return replace(
        live,
        jobs=tuple(record for name, record in jobs.items() if mirror.jobs.get(name) != record),
        notebooks=tuple(record for name, record in slices.items() if mirror.notebooks.get(name) != record),
        nodes=tuple(node for node in live.nodes if nodes.get(node.id) != node),
        devices=tuple(
            device
            for device in live.devices
            if device.id in changed
            or mirror.devices.get(device.id) != device
            or mirror.gone_devices.get(device.id) != live.gone_devices.get(device.id)
        ),
        removed_nodes=missed.removed_nodes,
        removed_devices=missed.removed_devices,
        allocations=tuple(part for part in live.allocations if allocations.get(part.id) != part),
        released=tuple(allocations.keys() - {part.id for part in live.allocations}),
    )
