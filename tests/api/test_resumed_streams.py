"""Event streams that begin with the id of an earlier event: no change is missed, and nothing stays that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.core.model import Node
from jupyter_gpu_quota.settings import database_url
from jupyter_gpu_quota.store.backup import backup, restore
from jupyter_gpu_quota.store.records.commands import SetInventory
from tests.api.world import QUOTA, ServiceWorld, service_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def first_event(world: ServiceWorld, who: str = "bob", since: str = "") -> tuple[str, Any]:
    headers = {"Last-Event-ID": since} if since else None
    with world.stream("events", who, headers) as events:
        return next(events)


def test_a_reader_that_was_away_during_a_restore_is_reset(world: ServiceWorld, tmp_path: Path) -> None:
    url, file = database_url(world.settings), tmp_path / "backup.sqlite"
    backup(url, file)
    world.submit(name="gone")
    first_event(world)
    restore(url, file, now=world.clock())
    for _ in range(3):  # the restored database passes the version of the reader
        world.submit()
    assert first_event(world, since=world.last_event_id)[0] == "reset"


def test_a_reader_that_was_away_during_a_take_over_gets_what_changed(world: ServiceWorld) -> None:
    world.step()
    first_event(world)
    job, now = world.submit()["id"], world.clock() + 60_000
    assert world.store.acquire_lease("other", clock=lambda: now, ttl_ms=3000) is not None
    name, data = first_event(world, since=world.last_event_id)
    assert (name, [one["id"] for one in data["jobs"]]) == ("changed", [job])


@pytest.mark.parametrize("who", ["olga", "bob"])
def test_a_reader_whose_roles_changed_meanwhile_is_reset(world: ServiceWorld, who: str) -> None:
    first_event(world, who)
    world.apply(QUOTA.replace("bob, olga", "bob"))
    assert first_event(world, who, world.last_event_id)[0] == ("reset" if who == "olga" else "changed")


def test_waiting_jobs_that_a_reader_missed_have_their_reason(world: ServiceWorld) -> None:
    world.step()
    first_event(world)
    world.submit(gpu="4")
    (job,) = first_event(world, since=world.last_event_id)[1]["jobs"]
    assert job["reason"] is not None


def test_a_version_alone_resumes(world: ServiceWorld) -> None:
    version = first_event(world)[1]["version"]
    job = world.submit()["id"]
    name, data = first_event(world, since=str(version))
    assert (name, [one["id"] for one in data["jobs"]]) == ("changed", [job])


def test_a_reader_is_reset_when_a_device_is_removed(world: ServiceWorld) -> None:
    first_event(world)
    kept = tuple(device for name, device in world.services.store_view.mirror.devices.items() if name != "train-0")
    with world.stream("events", "ann") as events:
        next(events)
        world.inventory(kept)
        assert world.post("devices/train-0/actions/remove", "ann").status == 200
        assert any(name == "reset" for name, _ in events)
    assert first_event(world, "ann", world.last_event_id)[0] == "changed"


# --- devices whose node alone changes -------------------------------------------------------------------------------
def test_the_devices_of_a_node_that_takes_no_new_work_are_sent(world: ServiceWorld) -> None:
    with world.stream("events") as events:
        next(events)
        devices = tuple(world.services.store_view.mirror.devices.values())
        node = Node(id="node-1", name="one", cpu_milli=8000, memory_mib=65_536, schedulable=False)
        world.record(SetInventory(nodes=(node,), devices=devices))
        data = next(events)[1]
    assert {one["id"]: one["free_milli"] for one in data["devices"]} == dict.fromkeys((one.id for one in devices), 0)


def test_a_node_that_opens_during_a_take_over_is_sent(world: ServiceWorld) -> None:
    world.step()
    assert world.post("nodes/node-1/actions/cordon", "ann").status == 200
    with world.stream("events") as events:
        next(events)
        now = world.clock() + 60_000
        assert world.store.acquire_lease("other", clock=lambda: now, ttl_ms=3000) is not None
        assert world.post("nodes/node-1/actions/uncordon", "ann").status == 200
        data = next(events)[1]
    assert {one["upkeep"] for one in data["devices"]} == {"none"}
