"""Nodes and devices: what the inventory sets, and what facts about a device change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ...core.facts import DeviceFact
from ...core.model import Device, Health, Node, Upkeep
from ..database.tables import ALLOCATIONS, DEVICES, NODES, DeviceRow, NodeRow
from ..database.unit_of_work import UnitOfWork
from ..records.commands import ChangeNode, Recorded, Refusal, SetInventory


def set_inventory(work: UnitOfWork, request: SetInventory) -> Recorded | Refusal:
    """Make the nodes and devices those of the request.

    What is not named any more stays, unschedulable or unhealthy. Of a device that is known already, quarantine,
    foreign use and a UUID that was read back are kept: only a DeviceFact changes those; and of a node what an admin
    said of it.
    """
    if refusal := _contradiction(request):
        return refusal
    nodes = {row.node.id: row.node for row in work.every(NODES)}
    wanted_nodes = {node.id: _as_kept(node, nodes.get(node.id)) for node in request.nodes}
    wanted_nodes |= {id: replace(node, schedulable=False) for id, node in nodes.items() if id not in wanted_nodes}
    rows = {row.device.id: row for row in work.every(DEVICES)}
    wanted = {device.id: _as_seen(device, rows.get(device.id)) for device in request.devices}
    devices = {id: row.device for id, row in rows.items()}
    wanted |= {id: _as_gone(device) for id, device in devices.items() if id not in wanted}
    if nodes == wanted_nodes and devices == wanted:
        return Recorded(id="inventory", version=work.version(), existed=True)
    _put_nodes(work, nodes, wanted_nodes)
    _put_devices(work, rows, wanted)
    payload = {"nodes": _by_id(wanted_nodes), "devices": _by_id(wanted)}
    work.audit("system:controller", "inventory", "inventory", payload, None)
    return Recorded(id="inventory", version=work.stamp())


def _by_id(found: Mapping[str, Node | Device]) -> list[Node | Device]:
    """In one order, whatever order the rows came in: the audit is the same bytes on every database."""
    return [found[id] for id in sorted(found)]


def _contradiction(request: SetInventory) -> Refusal | None:
    counts = Counter(node.id for node in request.nodes), Counter(device.id for device in request.devices)
    twice = sorted(id for count in counts for id, times in count.items() if times > 1)
    if twice:
        return Refusal(code="invalid", message=f"The inventory names {twice[0]} more than once; nothing was stored.")
    nodes = {node.id for node in request.nodes}
    for device in request.devices:
        if device.node not in nodes:
            message = f"Device {device.id} is on node {device.node}, which the inventory does not name."
            return Refusal(code="invalid", message=message)
    return None


def _as_kept(node: Node, known: Node | None) -> Node:
    return node if known is None else replace(node, upkeep=known.upkeep, drain_by_at=known.drain_by_at)


GONE = "the readings of its machine no longer name it"


def _as_gone(device: Device) -> Device:
    quarantined = device.health is Health.QUARANTINED
    return device if quarantined else replace(device, health=Health.UNHEALTHY, trouble=GONE)


def _as_seen(device: Device, row: DeviceRow | None) -> Device:
    """As a reading tells it; a quarantine, and a fault that the driver may not speak of any more, are kept."""
    if row is None or row.device == device:
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


def _put_nodes(work: UnitOfWork, before: dict[str, Node], after: dict[str, Node]) -> None:
    for id, node in after.items():
        if before.get(id) != node:
            work.put(NODES, NodeRow(node=node, changed=work.stamp()))


def _put_devices(work: UnitOfWork, before: dict[str, DeviceRow], after: dict[str, Device]) -> None:
    for id, device in after.items():
        row = before.get(id)
        if row is None:
            work.put(DEVICES, DeviceRow(device=device, changed=work.stamp()))
        elif row.device != device:
            work.put(DEVICES, replace(row, device=device, changed=work.stamp()))


# --- what an admin says of a node -----------------------------------------------------------------------------------
UPKEEP = {"cordon": Upkeep.CORDONED, "uncordon": Upkeep.NONE, "drain": Upkeep.DRAINING}


def change_node(work: UnitOfWork, request: ChangeNode) -> Recorded | Refusal:
    """Cordon, uncordon or drain a node. Its devices count as changed, so that a plan made before places nothing there.

    A cordon of a node that is being drained ends the drain: what still runs there stays. Who uncordons a node says
    that its devices are well: faults that were kept of them are cleared, also where it was not cordoned.
    """
    row = work.get(NODES, (request.node,))
    if row is None:
        return Refusal(code="unknown", message=f"There is no node {request.node}; nothing was changed.")
    if request.change not in UPKEEP:
        raise ValueError(f"a node can be cordoned, uncordoned or drained, not {request.change!r}")
    node = replace(row.node, upkeep=UPKEEP[request.change], drain_by_at=request.drain_by_at)
    held = [held for held in work.every(DEVICES) if held.device.node == node.id]
    faulty = [each for each in held if each.fault is not None] if node.upkeep is Upkeep.NONE else []
    if node == row.node and not faulty:
        return Recorded(id=node.id, version=work.version(), existed=True)
    work.put(NODES, NodeRow(node=node, changed=work.stamp()))
    for each in held:
        work.put(DEVICES, replace(_cleared(each) if each in faulty else each, changed=work.stamp()))
    payload: dict[str, object] = {"was": row.node.upkeep, "is": node.upkeep, "drain_by_at": node.drain_by_at}
    if faulty:
        payload["cleared"] = {each.device.id: each.fault for each in faulty}
    work.audit(request.actor, f"node.{request.change}", node.id, payload, None)
    return Recorded(id=node.id, version=work.stamp())


# --- what is seen of a device ---------------------------------------------------------------------------------------
def observe_device(work: UnitOfWork, fact: DeviceFact) -> None:
    """Record a device's health, its trouble, foreign use, UUID or fault; a device that is not known is left alone."""
    row = work.get(DEVICES, (fact.device,))
    if row is None:
        return
    told = _with_fault(row, fact)
    device = _observed(told, fact)
    if told == row and device == row.device:
        return
    work.put(DEVICES, replace(told, device=device, changed=work.stamp()))
    if device.uuid != row.device.uuid:
        _name_uuid(work, device)
    if (device.uuid, device.health) != (row.device.uuid, row.device.health):  # foreign use comes and goes all day
        payload = {"was": row.device.health, "is": device.health, "uuid": device.uuid, "trouble": device.trouble}
        work.audit("system:controller", "device", device.id, payload, None)


def _observed(row: DeviceRow, fact: DeviceFact) -> Device:
    known = row.device
    health = known.health if fact.health is None else Health(fact.health)
    device = replace(
        known,
        health=health,
        trouble=_trouble(known, fact, health),
        foreign_milli=known.foreign_milli if fact.foreign_milli is None else fact.foreign_milli,
        uuid=known.uuid if fact.uuid is None else fact.uuid,
    )
    if row.fault is not None and health is Health.HEALTHY:
        return replace(device, health=Health.UNHEALTHY, trouble=row.fault)
    return device


def _with_fault(row: DeviceRow, fact: DeviceFact) -> DeviceRow:
    """The row with a fault that is told; without one that was seen under a driver that is not loaded any more."""
    if fact.loaded is None:
        return row
    if fact.fault is not None:
        return replace(row, fault=fact.fault, fault_loaded=fact.loaded)
    return row if row.fault_loaded in (None, fact.loaded) else _cleared(row)


def _cleared(row: DeviceRow) -> DeviceRow:
    """Without its fault; what else is wrong with it, the next reading says."""
    device = row.device
    if device.health is Health.UNHEALTHY:
        device = replace(device, health=Health.HEALTHY, trouble=None)
    return replace(row, device=device, fault=None, fault_loaded=None)


def _trouble(device: Device, fact: DeviceFact, health: Health) -> str | None:
    """What the fact says is wrong; what was known stays while the health does; a healthy device has no trouble."""
    if health is Health.HEALTHY:
        return None
    return device.trouble if fact.trouble is None and fact.health is None else fact.trouble


def _name_uuid(work: UnitOfWork, device: Device) -> None:
    for row in work.find(ALLOCATIONS, "device", [device.id]):
        work.put(ALLOCATIONS, replace(row, device_uuid=device.uuid, changed=work.stamp()))
