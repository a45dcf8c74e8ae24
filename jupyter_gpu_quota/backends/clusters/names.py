"""The names of nodes and devices of several clusters: those of a further cluster begin with its name. Pure.

The ids of the hub's own cluster have no prefix, so that a site may add clusters while its jobs run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...core.frozen import with_changes
from ...core.model import OWN_CLUSTER, Allocation, Device, Node, Placement
from ...core.recovery.differences import AttemptRecord
from ..protocol import Inventory, StartOrder

SEPARATOR = ":"
"""No name of a Kubernetes node or device has it."""


def cluster_of(id: str) -> str:
    """The cluster of a node or device, by its id."""
    name, found, _ = id.partition(SEPARATOR)
    return name if found else OWN_CLUSTER


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one cluster: ``inside`` as its own backend has them, ``outside`` as all others do."""

    cluster: str

    def outside(self, id: str) -> str:
        return id if self.cluster == OWN_CLUSTER else f"{self.cluster}{SEPARATOR}{id}"

    def inside(self, id: str) -> str:
        return id if self.cluster == OWN_CLUSTER else id.removeprefix(f"{self.cluster}{SEPARATOR}")

    # --- what a backend reports -----------------------------------------------------------------------------------
    def inventory(self, found: Inventory) -> tuple[list[Node], list[Device]]:
        """The nodes and devices of this cluster."""
        nodes = [replace(node, id=self.outside(node.id), cluster=self.cluster) for node in found.nodes]
        devices = [replace(one, id=self.outside(one.id), node=self.outside(one.node)) for one in found.devices]
        return nodes, devices

    def attempt(self, record: AttemptRecord) -> AttemptRecord:
        placements = None if record.placements is None else _placed(record.placements, self.outside)
        return replace(record, placements=placements)

    # --- what a backend is given ----------------------------------------------------------------------------------
    def device(self, device: Device) -> Device:
        return replace(device, id=self.inside(device.id), node=self.inside(device.node))

    def allocations(self, held: Iterable[Allocation]) -> list[Allocation]:
        return [with_changes(each, device=self.inside(each.device)) for each in held]

    def order(self, order: StartOrder) -> StartOrder:
        devices = tuple(map(self.device, order.devices))
        return with_changes(order, devices=devices, placements=_placed(order.placements, self.inside))


def _placed(placements: Iterable[Placement], renamed: Callable[[str], str]) -> tuple[Placement, ...]:
    return tuple(with_changes(each, device=renamed(each.device)) for each in placements)
