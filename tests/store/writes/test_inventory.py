"""The inventory in the store: what is reported, what is gone, and what facts and admins change about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Health, Upkeep
from jupyter_gpu_quota.store.records.commands import ChangeNode, Refusal, SetInventory
from jupyter_gpu_quota.store.writes.inventory import GONE, KEEPS_WORK_MS
from tests.store.worlds import DEVICES, KINDS, NODE, T0, World, opened


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


def test_the_same_inventory_again_changes_nothing(world: World) -> None:
    before = (world.store.version(), world.audited())
    [answer] = world.record(SetInventory(nodes=(NODE,), devices=DEVICES))
    assert answer.existed and (world.store.version(), world.audited()) == before


def test_the_audit_has_only_what_changed_in_the_inventory(world: World) -> None:
    moved = replace(DEVICES[1], pool="other")
    world.record(SetInventory(nodes=(NODE,), devices=(DEVICES[0], moved, *DEVICES[2:])))
    payload = json.loads(world.store.audit()[0][0].payload)
    assert ([one["id"] for one in payload["devices"]], payload["nodes"]) == (["d1"], [])
    assert payload["listed"] == {"nodes": 1, "devices": 4}


def test_a_device_missing_in_the_inventory_is_unhealthy_until_it_returns(world: World) -> None:
    before = world.store.version()
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES[:3]))
    [gone] = world.store.changes(before).devices
    assert (gone.id, gone.health) == ("d3", Health.UNHEALTHY)
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES))
    assert world.store.changes(before + 1).devices == (DEVICES[3],)


def test_the_devices_of_a_node_that_is_not_reported_keep_their_work_for_a_time(world: World) -> None:
    def seen(after_ms: int) -> set[tuple[Health, str | None]]:
        world.now = T0 + after_ms
        world.record(SetInventory(nodes=(), devices=()))
        return {(device.health, device.trouble) for device in world.store.changes(0).devices}

    assert seen(0) == seen(KEEPS_WORK_MS - 1) == {(Health.HEALTHY, GONE)}
    assert seen(KEEPS_WORK_MS) == {(Health.UNHEALTHY, GONE)}
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES))
    assert sorted(world.store.changes(0).devices, key=lambda one: one.id) == list(DEVICES)


def test_a_node_that_is_not_named_any_more_takes_no_work(world: World) -> None:
    before = world.store.version()
    world.record(SetInventory(nodes=(replace(NODE, id="n2"),), devices=()))
    assert [(node.id, node.schedulable) for node in sorted(world.store.changes(before).nodes, key=lambda n: n.id)] == [
        ("n1", False),
        ("n2", True),
    ]


def test_orders_of_an_admin_on_a_node_are_audited_and_survive_a_new_inventory(world: World) -> None:
    [done] = world.record(ChangeNode(node="n1", actor="ann", change="drain", drain_by_at=T0 + 5))
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES[:3]))
    [node] = world.store.changes(0).nodes
    assert (done.existed, node.upkeep, node.drain_by_at, node.is_open) == (False, Upkeep.DRAINING, T0 + 5, False)
    row = next(row for row in world.store.audit()[0] if row.kind == "node.drain")
    assert (row.actor, row.subject) == ("ann", "n1") and '"was":"none"' in row.payload


def test_a_node_that_is_cordoned_already_is_not_changed_and_an_unknown_one_is_refused(world: World) -> None:
    world.record(ChangeNode(node="n1", actor="ann", change="cordon"))
    before = (world.store.version(), world.audited())
    [again] = world.record(ChangeNode(node="n1", actor="ann", change="cordon"))
    assert again.existed and (world.store.version(), world.audited()) == before
    [refused] = world.store.record([ChangeNode(node="n9", actor="ann", change="cordon")], now=T0)
    assert isinstance(refused, Refusal) and refused.code == "unknown"
    [odd] = world.store.record([ChangeNode(node="n1", actor="ann", change="melt")], now=T0)
    assert isinstance(odd, Refusal) and "not 'melt'" in odd.message


def test_a_device_has_its_trouble_until_it_is_healthy(world: World) -> None:
    def trouble() -> str | None:
        return next(device.trouble for device in world.store.changes(0).devices if device.id == "d0")

    world.see(DeviceFact(device="d0", health="unhealthy", trouble="XID 79"))
    world.see(DeviceFact(device="d0", foreign_milli=10))
    assert trouble() == "XID 79"
    world.see(DeviceFact(device="d0", health="healthy"))
    assert trouble() is None


def test_a_new_inventory_keeps_quarantine_foreign_use_and_uuid(world: World) -> None:
    world.see(DeviceFact(device="d0", health="quarantined", foreign_milli=300, uuid="GPU-1"))
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES))
    [d0] = [device for device in world.store.changes(0).devices if device.id == "d0"]
    assert (d0.health, d0.foreign_milli, d0.uuid) == (Health.QUARANTINED, 300, "GPU-1")


@pytest.mark.parametrize(
    "inventory",
    [
        pytest.param(SetInventory(nodes=(), devices=DEVICES), id="devices of a node that is not there"),
        pytest.param(SetInventory(nodes=(NODE, NODE), devices=()), id="a node named twice"),
        pytest.param(SetInventory(nodes=(NODE,), devices=(DEVICES[0], DEVICES[0])), id="a device named twice"),
    ],
)
def test_an_inventory_that_contradicts_itself_is_refused(world: World, inventory: SetInventory) -> None:
    [answer] = world.store.record([inventory], now=T0)
    assert isinstance(answer, Refusal)
