"""Remove nodes and devices that no reading reports any longer: by an admin, or after the time of retention."""

from __future__ import annotations

from dataclasses import replace

from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import Health, Upkeep
from ..database.tables import (
    ALLOCATIONS,
    DEVICES,
    LATEST,
    NODES,
    NOTEBOOKS,
    RESERVATIONS,
    DeviceRow,
    NodeRow,
    Where,
)
from ..database.unit_of_work import UnitOfWork
from ..records.calls import Page
from ..records.commands import ForgetGone, Recorded, Refused, RemoveGone

CONTROLLER = "system:controller"
DEVICES_AT_A_TIME = 200
"""Removed devices that one request may delete: each is looked up among past allocations."""


def remove_gone(work: UnitOfWork, request: RemoveGone) -> Recorded:
    """Remove a gone device, or a gone node with its devices. Refused while it is reported, or held by work."""
    if request.device is not None:
        device = _listed_device(work, request.device)
        _check_removable(work, [device], f"Device {request.device}", reported=device.gone_at is None)
        _remove_device(work, device, request.actor)
        return work.recorded(request.device)
    assert request.node is not None, "a request names a node or a device"
    node = work.get(NODES, (request.node,))
    if node is None or node.removed_at is not None:
        raise Refused("unknown", f"There is no node {request.node}; nothing was removed.")
    devices = [each for each in _listed_devices(work) if each.device.node == request.node]
    reported = node.gone_at is None or any(each.gone_at is None for each in devices)
    _check_removable(work, devices, f"Node {request.node}", reported=reported)
    for each in devices:
        _remove_device(work, each, request.actor)
    _remove_node(work, node, request.actor)
    return work.recorded(request.node)


def forget_gone(work: UnitOfWork, request: ForgetGone) -> Recorded:
    """Remove nodes and devices that have been gone for long, and delete the rows of those removed long ago.

    A node is kept while one of its devices is listed.
    """
    _delete_removed(work, request.gone_before)
    due = [each for each in _listed_devices(work) if each.gone_at is not None and each.gone_at < request.gone_before]
    if due:
        held = _holders(work)
        for each in due:
            if each.device.id not in held:
                _remove_device(work, each, CONTROLLER)
    with_devices = {each.device.node for each in _listed_devices(work)}
    for node in work.every(NODES):
        is_due = node.gone_at is not None and node.gone_at < request.gone_before
        if is_due and node.removed_at is None and node.node.id not in with_devices:
            _remove_node(work, node, CONTROLLER)
    return work.recorded("gone")


def _delete_removed(work: UnitOfWork, removed_before: int) -> None:
    """Delete the rows of what was removed long ago, unless they have something that must return with it.

    That is an admin's order to a node, the quarantine or fault of a device, and past allocations, which retention
    removes.
    """
    removed = [row for row in work.every(DEVICES) if row.removed_at is not None and row.removed_at < removed_before]
    plain = [row for row in removed if row.fault is None and row.device.health is not Health.QUARANTINED]
    for device in sorted(plain, key=lambda row: (row.removed_at, row.device.id))[:DEVICES_AT_A_TIME]:
        if not _was_held(work, device.device.id):
            work.delete(DEVICES, (device.device.id,))
    with_devices = {each.device.node for each in work.every(DEVICES)}
    for node in work.every(NODES):
        is_old = node.removed_at is not None and node.removed_at < removed_before
        if is_old and node.node.upkeep is Upkeep.NONE and node.node.id not in with_devices:
            work.delete(NODES, (node.node.id,))


def _was_held(work: UnitOfWork, device: str) -> bool:
    return bool(work.scope.listing(ALLOCATIONS, Where(among={"device": [device]}), Page(limit=0))[1])


def _listed_devices(work: UnitOfWork) -> list[DeviceRow]:
    return [each for each in work.every(DEVICES) if each.removed_at is None]


def _listed_device(work: UnitOfWork, name: str) -> DeviceRow:
    row = work.get(DEVICES, (name,))
    if row is None or row.removed_at is not None:
        raise Refused("unknown", f"There is no device {name}; nothing was removed.")
    return row


def _check_removable(work: UnitOfWork, devices: list[DeviceRow], what: str, *, reported: bool) -> None:
    if reported:
        advice = "only what is gone can be removed; cordon its node to keep new work from it"
        raise Refused("in_use", f"{what} is not gone, so it was not removed: {advice}.")
    held = _holders(work)
    for device in [each.device.id for each in devices if each.device.id in held]:
        advice = "stop that work, or wait until it has ended"
        raise Refused("in_use", f"{what} was not removed: {held[device]} holds device {device}; {advice}.")


def _holders(work: UnitOfWork) -> dict[str, str]:
    """{device: a workload that has a live allocation, a reservation or a booked slice on it}."""
    found = [(one.allocation.device, one.allocation.workload) for one in work.live(ALLOCATIONS)]
    for one in work.live(RESERVATIONS):
        found += [(place.device, one.reservation.workload) for place in one.reservation.placements]
    booked = [row.notebook for row in work.live(NOTEBOOKS) if row.notebook.device is not None]
    return dict(found) | {one.device or "": one.id for one in booked if one.state not in NOTEBOOK_FINAL}


def _remove_device(work: UnitOfWork, row: DeviceRow, actor: str) -> None:
    work.put(DEVICES, replace(row, gone_at=None, removed_at=work.now, changed=work.stamp()))
    work.delete(LATEST, (row.device.id,))
    work.audit(actor, "device.remove", row.device.id, {"gone_at": row.gone_at, "uuid": row.device.uuid}, None)


def _remove_node(work: UnitOfWork, row: NodeRow, actor: str) -> None:
    work.put(NODES, replace(row, gone_at=None, removed_at=work.now, changed=work.stamp()))
    work.audit(actor, "node.remove", row.node.id, {"gone_at": row.gone_at, "name": row.node.name}, None)
