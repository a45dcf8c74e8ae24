"""Devices that are gone, on the page, in REST and in the commands: folded, in no sum, removable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.core.model import Node
from jupyter_gpu_quota.store.records.commands import SetInventory
from tests.api.pages.browser import open_page, seen
from tests.api.world import PREFIX, ServiceWorld, build_devices, service_world, train_devices


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    """160 training devices were reported once, and 4 are now."""
    with service_world(tmp_path) as world:
        world.inventory((*train_devices(160), *build_devices()))
        world.inventory((*train_devices(4), *build_devices()))
        world.run(world.services.store_view.refresh())
        yield world


def test_156_gone_devices_are_in_no_sum(world: ServiceWorld) -> None:
    (train,) = [pool for pool in world.get("pools").json["items"] if pool["name"] == "train"]
    assert (train["devices"], train["capacity_milli"], train["free_milli"]) == (4, 4000, 4000)
    (node,) = world.get("nodes").json["items"]
    assert (node["devices"], node["gone_at"]) == (5, None)
    devices = world.get("devices?limit=1000").json["items"]
    assert sum(device["gone_at"] is not None for device in devices) == 156


def test_devices_of_a_node_that_takes_no_work_are_unavailable_and_not_free(world: ServiceWorld) -> None:
    why = "node node-1 is lost: its kubelet has not answered since 2026-11-24T10:00:00Z"
    node = Node(id="node-1", name="one", cpu_milli=8000, memory_mib=65_536, schedulable=False)
    for trouble in (why, None):
        devices = tuple(replace(each, pool="train", trouble=trouble) for each in train_devices(2))
        world.record(SetInventory(nodes=(node,), devices=devices))
        world.run(world.services.store_view.refresh())
        found = [each for each in world.get("devices").json["items"] if each["gone_at"] is None]
        assert {(each["health"], each["free_milli"], each["trouble"]) for each in found} == {
            ("unavailable", 0, trouble or "its node is gone, or cannot be read now")
        }
    (train,) = [pool for pool in world.get("pools").json["items"] if pool["name"] == "train"]
    assert (train["devices"], train["capacity_milli"], train["free_milli"]) == (2, 0, 0)


def test_the_page_folds_them(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "")
    seen(page, "156 devices are gone", ".gone summary")
    seen(page, "5 devices", "#devices-count")
    assert page.locator(".tile").count() == 5 and page.locator(".unhealthy").count() == 0
    page.context.close()


def test_one_is_removed_by_an_admin_only(world: ServiceWorld) -> None:
    assert world.post("devices/train-9/actions/remove", "bob").status == 403
    assert world.post("devices/train-1/actions/remove", "ann").status == 409
    assert world.post("devices/ghost/actions/remove", "ann").status == 404
    assert world.post("nodes/node-1/actions/remove", "ann").status == 409
    assert world.post("devices/train-9/actions/remove", "ann").json == {"id": "train-9"}
    world.run(world.services.store_view.refresh())
    names = {device["id"] for device in world.get("devices?limit=1000").json["items"]}
    assert len(names) == 160 and "train-9" not in names
    assert any("removed device train-9" in entry["what"] for entry in world.get("audit", "ann").json["items"])


def test_the_commands_list_and_remove_them(world: ServiceWorld) -> None:
    address = ("--url", f"http://127.0.0.1:{world.port}{PREFIX}", "--token", "token-ann")

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, [*words, *address])

    listed = run("devices", "--wide")
    assert listed.stderr == "not listed: 156 devices that are gone; --gone lists them\n"
    assert len(listed.stdout.splitlines()) == 1 + 5
    assert len(re.findall("gone since 20", run("devices", "--gone", "--wide").stdout)) == 156
    assert run("devices", "remove", "train-9").stderr == "device train-9 was removed\n"
    refused = run("devices", "remove", "train-1")
    assert refused.exit_code == 1 and "cordon its node to keep new work from it" in refused.stderr
