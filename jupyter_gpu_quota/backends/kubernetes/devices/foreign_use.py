"""How much of each device is used by work of others: by claims of published devices, and by requests for counted ones.

Pure. A device plugin does not say which device a pod got. So many slots of the node that none of our work has are
counted as used, from the last one on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any

from ....core.model import WHOLE_DEVICE, Device
from ...protocol import DeviceUsers
from ...rendering.cluster_names import HUB
from ...rendering.plugin_resources import resource_of
from .inventory import MIB, PublishedDevice, not_allocatable
from .pod_requests import requested_on_nodes
from .quantities import exact

Json = dict[str, Any]


def is_ours(found: Json, hub: str, namespace: str) -> bool:
    """Whether an object belongs to a job or a notebook of this hub."""
    metadata = found["metadata"]
    return metadata.get("namespace") == namespace and (metadata.get("labels") or {}).get(HUB) == hub


def claimed_by_others(claims: Iterable[Json], published: Collection[PublishedDevice]) -> dict[str, int]:
    """Milli-GPU by device id, rounded up, of these claims of others. A claim without an amount has the whole device.

    One with admin access, such as that of a monitor, takes nothing of it. One for a partition takes the whole device,
    which cannot be given beside it.
    """
    devices = {(each.driver, each.pool, name): each for each in published for name in each.partitions}
    devices |= {(each.driver, each.pool, each.name): each for each in published}
    found: dict[str, int] = {}
    for claim in claims:
        allocation = claim.get("status", {}).get("allocation") or {}
        for result in allocation.get("devices", {}).get("results", ()):
            device = devices.get((result["driver"], result["pool"], result["device"]))
            if device is not None and not result.get("adminAccess"):
                is_partition = result["device"] != device.name
                amount = _milli(None if is_partition else result.get("consumedCapacity", {}).get("memory"), device)
                id = f"{device.node}/{device.name}"
                found[id] = min(WHOLE_DEVICE, found.get(id, 0) + amount)
    return found


def _milli(memory: str | None, device: PublishedDevice) -> int:
    if memory is None:
        return WHOLE_DEVICE
    part = exact(memory) * WHOLE_DEVICE / Fraction(device.memory_mib * MIB)
    return min(WHOLE_DEVICE, -int(-part // 1))


def counted_by_others(pods: Iterable[Json], users: DeviceUsers, nodes: Iterable[Json] = ()) -> dict[str, int]:
    """The same for the slots of device plugins, from the requests of these pods of others.

    So many devices of these nodes that their plugins do not give, since they are unhealthy, count as used by others.
    """
    requested = requested_on_nodes(pods)
    for node in nodes:
        for resource, number in not_allocatable(node).items():
            requested[node["metadata"]["name"], resource] += number
    slots = [device for device in users if device.uuid is None and not users[device]]
    found: dict[str, int] = {}
    for device in sorted(slots, key=lambda each: each.index, reverse=True):
        key = device.node, resource_of(device.id)
        if requested[key] > 0:
            requested[key] -= 1
            found[device.id] = WHOLE_DEVICE
    return found


def changed_use(devices: Iterable[Device], use: Mapping[str, int]) -> dict[str, int]:
    """The use by others of the devices for which another one is known."""
    return {
        each.id: use.get(each.id, 0)
        for each in devices
        if not each.simulated and each.foreign_milli != use.get(each.id, 0)
    }
