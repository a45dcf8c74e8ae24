"""Nodes and devices that no reading reports: gone, removed, forgotten, and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Device, Health, Node, Snapshot
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.database.tables import DEVICES as DEVICE_ROWS
from jupyter_gpu_quota.store.database.tables import NODES, Table
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.commands import ChangeNode, ForgetGone, Refusal, RemoveGone, SetInventory
from tests.store.worlds import DEVICES, KINDS, NODE, World, opened

OTHER = Node(id="n2", name="other", cpu_milli=1000, memory_mib=1000)
D9 = replace(DEVICES[0], id="d9", node="n2")


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


def report(world: World, devices: Sequence[Device] = DEVICES, nodes: Sequence[Node] = (NODE,)) -> None:
    world.now += 1000
    world.record(SetInventory(nodes=tuple(nodes), devices=tuple(devices)))


def refused(world: World, **names: str) -> Refusal:
    (answer,) = world.store.record([RemoveGone(actor="admin", **names)], now=world.now)
    assert isinstance(answer, Refusal), answer
    return answer


class Follower:
    """A mirror that follows every change, and one that reads the store anew: both must be equal."""

    def __init__(self, world: World) -> None:
        self.world, self.mirror = world, Mirror()

    def snapshot(self) -> Snapshot:
        fresh = Mirror()
        for mirror in (self.mirror, fresh):
            mirror.update(self.world.store)
        assert fresh.gone_devices == self.mirror.gone_devices and fresh.gone_nodes == self.mirror.gone_nodes
        found, anew = self.mirror.snapshot(self.world.now), fresh.snapshot(self.world.now)
        assert (found, self.mirror.digest(found)) == (anew, fresh.digest(anew))
        return found


def test_a_device_is_gone_since_the_first_reading_that_lacks_it(world: World) -> None:
    follower = Follower(world)
    follower.snapshot()
    report(world, DEVICES[:3])
    since = world.now
    report(world, DEVICES[:3])
    assert [(d.id, d.health) for d in follower.snapshot().devices][3] == ("d3", Health.UNHEALTHY)
    assert follower.mirror.gone_devices == {"d3": since}
    assert {device.id for device in follower.mirror.reported_devices()} == {"d0", "d1", "d2"}
    report(world)
    assert follower.snapshot().devices == DEVICES
    assert follower.mirror.gone_devices == {}


def test_a_removed_device_is_in_no_listing_and_is_the_same_when_it_comes_back(world: World) -> None:
    follower = Follower(world)
    world.see(DeviceFact(device="d3", uuid="GPU-3"))
    report(world, DEVICES[:3])
    follower.snapshot()
    world.record(RemoveGone(actor="admin", device="d3"))
    assert [device.id for device in follower.snapshot().devices] == ["d0", "d1", "d2"]
    assert refused(world, device="d3").code == "unknown"
    report(world, DEVICES[:3])
    assert len(follower.snapshot().devices) == 3
    report(world)
    assert follower.snapshot().devices[3] == replace(DEVICES[3], uuid="GPU-3")
    actions = [(row.kind, row.subject, row.actor) for row in world.store.audit()[0]]
    assert actions.count(("device.remove", "d3", "admin")) == 1


def test_a_device_that_is_reported_or_held_is_not_removed(world: World) -> None:
    assert "is not gone" in refused(world, device="d3").message
    world.submit("j")
    world.run("j", "d3")
    report(world, DEVICES[:3])
    assert "j holds device d3" in refused(world, device="d3").message
    assert refused(world, device="d7").code == refused(world, node="n7").code == "unknown"
    world.see(world.gone("j", 0))
    world.record(RemoveGone(actor="admin", device="d3"))


def test_a_quarantined_device_keeps_its_quarantine_while_it_is_gone_and_removed(world: World) -> None:
    world.see(DeviceFact(device="d3", health="quarantined"))
    report(world, DEVICES[:3])
    world.record(RemoveGone(actor="admin", device="d3"))
    report(world)
    assert Follower(world).snapshot().devices[3].health is Health.QUARANTINED


def test_a_node_is_removed_with_its_devices_and_keeps_its_cordon(world: World) -> None:
    follower = Follower(world)
    report(world, (*DEVICES, D9), (NODE, OTHER))
    world.record(ChangeNode(node="n2", actor="admin", change="cordon"))
    assert "is not gone" in refused(world, node="n2").message
    report(world)
    assert follower.snapshot().nodes[1].schedulable is False
    assert set(follower.mirror.gone_nodes) == {"n2"}
    world.record(RemoveGone(actor="admin", node="n2"))
    found = follower.snapshot()
    assert [node.id for node in found.nodes] == ["n1"] and found.devices == DEVICES
    (answer,) = world.store.record([ChangeNode(node="n2", actor="admin", change="uncordon")], now=world.now)
    assert isinstance(answer, Refusal) and answer.code == "unknown"
    report(world, (*DEVICES, D9), (NODE, OTHER))
    assert follower.snapshot().nodes[1].upkeep == "cordoned"


def test_nodes_and_devices_gone_for_long_are_removed_unless_work_holds_them(world: World) -> None:
    follower = Follower(world)
    report(world, (*DEVICES, D9), (NODE, OTHER))
    world.submit("j")
    world.run("j", "d3")
    report(world, DEVICES[:3])
    since = world.now
    world.record(ForgetGone(gone_before=since))
    assert len(follower.snapshot().devices) == 5, "not yet"
    world.record(ForgetGone(gone_before=since + 1))
    found = follower.snapshot()
    assert [device.id for device in found.devices] == ["d0", "d1", "d2", "d3"]
    assert [node.id for node in found.nodes] == ["n1"]
    world.see(world.gone("j", 0))
    world.record(ForgetGone(gone_before=since + 1))
    assert [device.id for device in follower.snapshot().devices] == ["d0", "d1", "d2"]
    version = world.store.version()
    world.record(ForgetGone(gone_before=since + 1))
    assert world.store.version() == version


def test_a_reported_node_without_devices_stays(world: World) -> None:
    report(world, DEVICES, (NODE, OTHER))
    world.record(ForgetGone(gone_before=world.now + 1))
    assert "is not gone" in refused(world, node="n2").message
    assert "n2" in rows_of(world)


def test_a_gone_node_is_listed_as_long_as_a_device_of_it(world: World) -> None:
    follower = Follower(world)
    report(world, (*DEVICES, D9), (NODE, OTHER))
    world.submit("j")
    world.run("j", "d9")
    report(world)
    world.record(ForgetGone(gone_before=world.now + 1))
    follower.snapshot()
    assert (set(follower.mirror.gone_nodes), set(follower.mirror.gone_devices)) == ({"n2"}, {"d9"})
    world.see(world.gone("j", 0))
    world.record(ForgetGone(gone_before=world.now + 1))
    follower.snapshot()
    assert (set(follower.mirror.gone_nodes), set(follower.mirror.gone_devices)) == (set(), set())


def test_work_is_read_once_for_all_devices_that_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large node with many ended notebooks is removed within the time of one transaction."""
    report(world, (*DEVICES, D9), (NODE, OTHER))
    report(world, ())
    read, every, live = list[str](), UnitOfWork.every, UnitOfWork.live

    def noted(reads: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def note(work: UnitOfWork, table: Table[Any]) -> list[Any]:
            read.append(table.name)
            return reads(work, table)

        return note

    monkeypatch.setattr(UnitOfWork, "every", noted(every))
    monkeypatch.setattr(UnitOfWork, "live", noted(live))
    world.record(ForgetGone(gone_before=world.now + 1))
    assert [name for name in read if name not in ("nodes", "devices")] == ["allocations", "reservations", "notebooks"]


def test_the_rows_of_hardware_that_was_removed_long_ago_are_deleted(world: World) -> None:
    follower, kept, was_held = Follower(world), replace(D9, id="d8"), replace(D9, id="d7")
    cordoned = replace(OTHER, id="n3", name="third")
    report(world, (*DEVICES, D9, kept, was_held), (NODE, OTHER, cordoned))
    world.record(ChangeNode(node="n3", actor="admin", change="cordon"))
    world.see(DeviceFact(device="d8", health="quarantined"))
    world.submit("j")
    world.run("j", "d7")
    world.see(world.gone("j", 0))
    sample = DeviceSample(
        node="n2", device="d9", at=world.now, utilisation_percent=None, memory_used_mib=None, coverage_permille=None,
        simulated=False, workloads={},
    )  # fmt: skip
    world.store.add_samples("n2", 1, [sample], now=world.now)
    report(world)
    world.record(ForgetGone(gone_before=world.now + 1))
    assert world.store.latest_samples() == {}, "a removed device has no use"
    follower.snapshot()
    world.record(ForgetGone(gone_before=world.now))
    assert rows_of(world) == {"n1", "n2", "n3", "d0", "d1", "d2", "d3", "d7", "d8", "d9"}, "not yet"
    world.record(ForgetGone(gone_before=world.now + 1))
    assert rows_of(world) == {"n1", "n2", "n3", "d0", "d1", "d2", "d3", "d7", "d8"}
    world.store.forget(now=world.now, jobs_ended_before=world.now + 1, samples_before=0)
    world.record(ForgetGone(gone_before=world.now + 1))
    assert rows_of(world) == {"n1", "n2", "n3", "d0", "d1", "d2", "d3", "d8"}, "the quarantine returns with its device"
    follower.snapshot()
    report(world, (*DEVICES, D9, kept), (NODE, OTHER, cordoned))
    found = follower.snapshot()
    assert [device.health for device in found.devices][-2:] == [Health.QUARANTINED, Health.HEALTHY]
    assert [node.upkeep for node in found.nodes] == ["none", "none", "cordoned"]


def rows_of(world: World) -> set[str]:
    with world.store._rows.reading() as scope:
        return {str(id) for table in (NODES, DEVICE_ROWS) for id in scope.distinct(table, "id")}
