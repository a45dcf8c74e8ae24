"""Nodes and devices: what the inventory sets, and what facts about a device change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ..core.facts import DeviceFact
from ..core.model import Device, Health, Node
from .protocol import Recorded, Refusal, SetInventory
from .rows import ALLOCATIONS, DEVICES, NODES, DeviceRow, NodeRow
from .work import Work


def set_inventory(work: Work, request: SetInventory) -> Recorded | Refusal:
    """Make the nodes and devices those of the request.

    What is not named any more stays, unschedulable or unhealthy. Of a device that is known already, quarantine,
    foreign use and a UUID that was read back are kept: only a DeviceFact changes those.
    """
    if refusal := _contradiction(request):
        return refusal
    nodes = {row.node.id: row.node for row in work.every(NODES)}
    devices = {row.device.id: row.device for row in work.every(DEVICES)}
    wanted_nodes = {id: replace(node, schedulable=False) for id, node in nodes.items()}
    wanted_nodes |= {node.id: node for node in request.nodes}
    wanted = {id: _as_gone(device) for id, device in devices.items()}
    wanted |= {device.id: _as_seen(device, devices.get(device.id)) for device in request.devices}
    if nodes == wanted_nodes and devices == wanted:
        return Recorded(id="inventory", version=work.version(), existed=True)
    _put_nodes(work, nodes, wanted_nodes)
    _put_devices(work, devices, wanted)
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


def _as_gone(device: Device) -> Device:
    return device if device.health is Health.QUARANTINED else replace(device, health=Health.UNHEALTHY)


def _as_seen(device: Device, known: Device | None) -> Device:
    if known is None:
        return device
    health = Health.QUARANTINED if known.health is Health.QUARANTINED else device.health
    return replace(device, health=health, foreign_milli=known.foreign_milli, uuid=device.uuid or known.uuid)


def _put_nodes(work: Work, before: dict[str, Node], after: dict[str, Node]) -> None:
    for id, node in after.items():
        if before.get(id) != node:
            work.put(NODES, NodeRow(node=node, changed=work.stamp()))


def _put_devices(work: Work, before: dict[str, Device], after: dict[str, Device]) -> None:
    for id, device in after.items():
        if before.get(id) != device:
            work.put(DEVICES, DeviceRow(device=device, changed=work.stamp()))


def observe_device(work: Work, fact: DeviceFact) -> None:
    """Record a device's health, foreign use or UUID; a device that is not known is left alone."""
    row = work.get(DEVICES, (fact.device,))
    if row is None:
        return
    device = replace(
        row.device,
        health=row.device.health if fact.health is None else Health(fact.health),
        foreign_milli=row.device.foreign_milli if fact.foreign_milli is None else fact.foreign_milli,
        uuid=row.device.uuid if fact.uuid is None else fact.uuid,
    )
    if device == row.device:
        return
    work.put(DEVICES, DeviceRow(device=device, changed=work.stamp()))
    if device.uuid != row.device.uuid:
        _name_uuid(work, device)
    if (device.uuid, device.health) != (row.device.uuid, row.device.health):  # foreign use comes and goes all day
        payload = {"was": row.device.health, "is": device.health, "uuid": device.uuid}
        work.audit("system:controller", "device", device.id, payload, None)


def _name_uuid(work: Work, device: Device) -> None:
    for row in work.find(ALLOCATIONS, "device", [device.id]):
        work.put(ALLOCATIONS, replace(row, device_uuid=device.uuid, changed=work.stamp()))
