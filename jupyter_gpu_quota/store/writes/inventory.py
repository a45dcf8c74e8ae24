"""Nodes and devices: the inventory, the orders of an admin, and facts about a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...core.facts import DeviceFact
from ...core.model import Device, Health, Node, Upkeep
from ..database.tables import ALLOCATIONS, DEVICES, NODES, DeviceRow, NodeRow
from ..database.unit_of_work import UnitOfWork
from ..records.commands import ChangeNode, Recorded, Refused, SetInventory


def set_inventory(work: UnitOfWork, request: SetInventory) -> Recorded:
    """Replace the nodes and devices by those of the request.

    A node that the request does not name becomes unschedulable, such a device unhealthy; both are gone from then on,
    until a reading reports them again. The devices of such a node keep their health for the first KEEPS_WORK_MS.
    Known nodes keep the orders of an admin. Known devices keep quarantine, foreign use and UUID: only a DeviceFact
    changes those. The audit has the nodes and devices that changed, and how many are listed.
    """
    _check_names(request)
    nodes = {row.node.id: row for row in work.every(NODES)}
    devices = {row.device.id: row for row in work.every(DEVICES)}
    wanted_nodes = {node.id: _reported_node(node, nodes.get(node.id)) for node in request.nodes}
    wanted_nodes |= {id: _gone_node(row, work.now) for id, row in nodes.items() if id not in wanted_nodes}
    wanted = {device.id: _reported_device(device, devices.get(device.id)) for device in request.devices}
    reported = {node.id for node in request.nodes}
    wanted |= {
        id: _gone_device(row, work.now, on_reported_node=row.device.node in reported)
        for id, row in devices.items()
        if id not in wanted
    }
    if nodes == wanted_nodes and devices == wanted:
        return work.recorded("inventory", existed=True)
    new_nodes = {id: row for id, row in wanted_nodes.items() if nodes.get(id) != row}
    new_devices = {id: row for id, row in wanted.items() if devices.get(id) != row}
    for node in new_nodes.values():
        work.put(NODES, replace(node, changed=work.stamp()))
    for device in new_devices.values():
        work.put(DEVICES, replace(device, changed=work.stamp()))
    payload = {
        "nodes": _by_id({id: row.node for id, row in new_nodes.items()}),
        "devices": _by_id({id: row.device for id, row in new_devices.items()}),
        "listed": {"nodes": _count_listed(wanted_nodes.values()), "devices": _count_listed(wanted.values())},
    }
    work.audit("system:controller", "inventory", "inventory", payload, None)
    return work.recorded("inventory")


def _count_listed(rows: Iterable[NodeRow | DeviceRow]) -> int:
    return sum(row.removed_at is None for row in rows)


def _by_id(found: Mapping[str, Node | Device]) -> list[Node | Device]:
    """In a fixed order: the audit has the same bytes on every database."""
    return [found[id] for id in sorted(found)]


def _check_names(request: SetInventory) -> None:
    """Refuse an inventory that names something twice, or a device on an unknown node."""
    counts = Counter(node.id for node in request.nodes), Counter(device.id for device in request.devices)
    twice = sorted(id for count in counts for id, times in count.items() if times > 1)
    if twice:
        raise Refused("invalid", f"The inventory names {twice[0]} more than once; nothing was stored.")
    nodes = {node.id for node in request.nodes}
    for device in request.devices:
        if device.node not in nodes:
            message = f"Device {device.id} is on node {device.node}, which the inventory does not name."
            raise Refused("invalid", message)


def _reported_node(node: Node, row: NodeRow | None) -> NodeRow:
    if row is None:
        return NodeRow(node=node, changed=0)
    known = replace(node, upkeep=row.node.upkeep, drain_by_at=row.node.drain_by_at)
    return replace(row, node=known, gone_at=None, removed_at=None)


def _gone_node(row: NodeRow, now: int) -> NodeRow:
    if row.removed_at is not None:
        return row
    return replace(row, node=replace(row.node, schedulable=False), gone_at=row.gone_at or now)


GONE = "no longer reported by its node"
KEEPS_WORK_MS = 300_000
"""How long work keeps devices of a node of which nothing is reported: a driver that restarts may take minutes.

Kubernetes waits as long before it evicts the pods of a node that is not ready.
"""


def _reported_device(device: Device, row: DeviceRow | None) -> DeviceRow:
    if row is None:
        return DeviceRow(device=device, changed=0)
    return replace(row, device=_with_known_state(device, row), gone_at=None, removed_at=None)


def _gone_device(row: DeviceRow, now: int, *, on_reported_node: bool) -> DeviceRow:
    if row.removed_at is not None:
        return row
    gone_at = row.gone_at or now
    keeps_work = not on_reported_node and now - gone_at < KEEPS_WORK_MS
    return replace(row, device=_without_report(row.device, keeps_work=keeps_work), gone_at=gone_at)


def _without_report(device: Device, *, keeps_work: bool) -> Device:
    """The health with which work on the device stays or is evicted; nothing new starts on its node (rule R69)."""
    if device.health is not Health.HEALTHY:
        return device if device.health is Health.QUARANTINED else replace(device, trouble=GONE)
    return replace(device, health=Health.HEALTHY if keeps_work else Health.UNHEALTHY, trouble=GONE)


def _with_known_state(device: Device, row: DeviceRow) -> Device:
    """The device as a reading reports it; a quarantine and a recorded fault stay, since a driver may omit them."""
    if row.device == device:
        return device
    known = row.device
    kept = known if known.health is Health.QUARANTINED or row.fault is not None else device
    if row.fault is not None and kept.health is Health.HEALTHY:
        kept = replace(kept, health=Health.UNHEALTHY, trouble=row.fault)
    return replace(
        device,
        health=kept.health,
        trouble=kept.trouble,
        foreign_milli=known.foreign_milli,
        uuid=device.uuid or known.uuid,
    )


# --- orders of an admin -----------------------------------------------------------------------------------
UPKEEP = {"cordon": Upkeep.CORDONED, "uncordon": Upkeep.NONE, "drain": Upkeep.DRAINING}


def change_node(work: UnitOfWork, request: ChangeNode) -> Recorded:
    """Cordon, uncordon or drain a node. Its devices count as changed, so that an earlier plan places nothing there.

    A cordon ends a drain: work that still runs there stays. Uncordoning clears the recorded faults of the node's
    devices, also where the node was not cordoned.
    """
    row = work.get(NODES, (request.node,))
    if row is None or row.removed_at is not None:
        raise Refused("unknown", f"There is no node {request.node}; nothing was changed.")
    if request.change not in UPKEEP:
        raise ValueError(f"a node can be cordoned, uncordoned or drained, not {request.change!r}")
    node = replace(row.node, upkeep=UPKEEP[request.change], drain_by_at=request.drain_by_at)
    devices = [each for each in work.every(DEVICES) if each.device.node == node.id]
    faulty = [each for each in devices if each.fault is not None] if node.upkeep is Upkeep.NONE else []
    if node == row.node and not faulty:
        return work.recorded(node.id, existed=True)
    work.put(NODES, replace(row, node=node, changed=work.stamp()))
    for each in devices:
        work.put(DEVICES, replace(_cleared(each) if each in faulty else each, changed=work.stamp()))
    payload: dict[str, object] = {"was": row.node.upkeep, "is": node.upkeep, "drain_by_at": node.drain_by_at}
    if faulty:
        payload["cleared"] = {each.device.id: each.fault for each in faulty}
    work.audit(request.actor, f"node.{request.change}", node.id, payload, None)
    return work.recorded(node.id)


# --- facts about a device ---------------------------------------------------------------------------------------
def observe_device(work: UnitOfWork, fact: DeviceFact) -> None:
    """Record a device's health, its trouble, foreign use, UUID or fault; an unknown device is ignored."""
    row = work.get(DEVICES, (fact.device,))
    if row is None:
        return
    new = _with_fault(row, fact)
    device = _observed(new, fact)
    if new == row and device == row.device:
        return
    work.put(DEVICES, replace(new, device=device, changed=work.stamp()))
    if device.uuid != row.device.uuid:
        for allocation in work.find(ALLOCATIONS, "device", [device.id]):
            work.put(ALLOCATIONS, replace(allocation, device_uuid=device.uuid, changed=work.stamp()))
    if (device.uuid, device.health) != (row.device.uuid, row.device.health):  # foreign use comes and goes all day
        payload = {"was": row.device.health, "is": device.health, "uuid": device.uuid, "trouble": device.trouble}
        work.audit("system:controller", "device", device.id, payload, None)


def _observed(row: DeviceRow, fact: DeviceFact) -> Device:
    known = row.device
    health = known.health if fact.health is None else Health(fact.health)
    trouble = known.trouble if fact.trouble is None and fact.health is None else fact.trouble
    device = replace(
        known,
        health=health,
        trouble=None if health is Health.HEALTHY else trouble,
        foreign_milli=known.foreign_milli if fact.foreign_milli is None else fact.foreign_milli,
        uuid=known.uuid if fact.uuid is None else fact.uuid,
    )
    if row.fault is not None and health is Health.HEALTHY:
        return replace(device, health=Health.UNHEALTHY, trouble=row.fault)
    return device


def _with_fault(row: DeviceRow, fact: DeviceFact) -> DeviceRow:
    """The row with the fault of a fact, or without a fault that was seen under another driver than the loaded one."""
    if fact.loaded is None:
        return row
    if fact.fault is not None:
        return replace(row, fault=fact.fault, fault_loaded=fact.loaded)
    return row if row.fault_loaded in (None, fact.loaded) else _cleared(row)


def _cleared(row: DeviceRow) -> DeviceRow:
    """Without its fault; the next reading reports any other one."""
    device = row.device
    if device.health is Health.UNHEALTHY:
        device = replace(device, health=Health.HEALTHY, trouble=None)
    return replace(row, device=device, fault=None, fault_loaded=None)
