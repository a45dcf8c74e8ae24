"""Nodes in the API: an admin cordons, uncordons and drains one, with a preview of the moved work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.core.model import JobState, Node, Upkeep
from jupyter_gpu_quota.store.records.commands import SetInventory
from tests.api.pages.browser import open_page, seen
from tests.api.world import ServiceWorld, service_world, train_devices


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as world:
        yield world


def change(world: ServiceWorld, word: str, who: str = "ann", **edit: object):  # type: ignore[no-untyped-def]
    return world.post(f"nodes/node-1/actions/{word}", who, edit)


def nodes_command(world: ServiceWorld, *words: str) -> Result:
    address = ["--url", f"http://127.0.0.1:{world.port}/services/gpu-quota/", "--token", "token-ann"]
    return CliRunner().invoke(main, ["nodes", *words, *address])


def running(world: ServiceWorld, **more: object) -> str:
    job = str(world.submit(**more)["id"])
    world.step()
    world.see_running(job)
    world.run(world.services.store_view.refresh())
    return job


def test_a_node_of_a_lost_cluster_names_it_and_the_instant(world: ServiceWorld) -> None:
    own = Node(id="node-1", name="one", cpu_milli=8000, memory_mib=65_536)
    west = replace(own, id="west:node-1", cluster="west", schedulable=False, unread_since_at=1_790_000_000_000)
    device = replace(train_devices()[0], id="west:node-1/0", node="west:node-1", pool=None)
    world.record(SetInventory(nodes=(own, west), devices=(*train_devices(), device)))
    world.run(world.services.store_view.refresh())
    nodes = {each["id"]: each for each in world.get("nodes").json["items"]}
    assert {id: each["cluster"] for id, each in nodes.items()} == {"node-1": "local", "west:node-1": "west"}
    assert nodes["node-1"]["unread_since"] is None
    assert nodes["west:node-1"]["unread_since"] == "2026-09-21T14:13:20Z"
    devices = {each["id"]: each["cluster"] for each in world.get("devices").json["items"]}
    assert devices["west:node-1/0"] == "west" and set(devices.values()) == {"local", "west"}
    done = nodes_command(world)
    assert "unknown: cluster west not read since 2026-09-21 14:13:20Z" in " ".join(done.stdout.split())


def test_a_drain_lists_paused_and_staying_work_and_reduced_training_quotas(world: ServiceWorld) -> None:
    loose, firm = running(world), running(world, preemptible=False)
    with world.stepping():
        slice_ = world.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1/8"}).json["id"]
    found = change(world, "drain", dry_run=True).json
    assert [(each["job"], each["effect"]) for each in found["affected"]] == [
        (loose, "paused"), (firm, "stays"), (slice_, "stays")
    ]  # fmt: skip
    sentences = [each["message"] for each in found["affected"]]
    assert sentences[0] == (
        f"bob's job python train.py ({loose[-8:]}) in project vision saves and is queued again at its old position."
    )
    assert sentences[1:] == [
        f"bob's job python train.py ({firm[-8:]}) in project vision may not be preempted: it stays until it ends.",
        "bob's notebook of 0.125 GPU in project vision stays until it is stopped.",
    ]
    reduced = "project vision: of its training quota in pool train, 0 GPU is in force instead of 2"
    assert reduced in found["guarantees"]
    assert not found["changed"] and world.get("nodes").json["items"][0]["upkeep"] == "none"


def test_a_drained_node_requeues_its_job_and_an_uncordoned_one_runs_it(world: ServiceWorld) -> None:
    job = running(world)
    found = change(world, "drain").json
    assert found["changed"] and (found["node"]["upkeep"], found["node"]["schedulable"]) == ("draining", False)
    world.step()
    world.run(world.services.store_view.refresh())
    shown = world.get(f"jobs/{job}").json
    assert (shown["state"], shown["reason"]["code"]) == ("pausing", "node_drained")
    world.see_running(job, ended_at=world.clock(), exit_status=75, tree_gone=True, pause_requested=True)
    assert world.step() == 0
    world.run(world.services.store_view.refresh())
    assert world.get(f"explain/{job}").json["reason"]["code"] == "device_unavailable"
    change(world, "uncordon")
    world.step()
    assert world.store.job(job).job.state is JobState.STARTING  # type: ignore[union-attr]


def test_a_drain_deadline_stops_non_preemptible_work_and_a_repeated_drain_keeps_it(
    world: ServiceWorld,
) -> None:
    job, now = running(world, preemptible=False), world.clock()
    world.clock = lambda: now
    found = change(world, "drain", deadline="2h").json
    by = found["node"]["drain_by"].replace("T", " ")[:19]
    assert found["affected"][0]["message"].endswith(f"stays until it ends, or {by}Z.")
    assert not change(world, "drain").json["changed"]
    assert world.step() == 0
    world.clock = lambda: now + 7_200_000
    assert world.step() == 1
    assert world.store.job(job).job.state is JobState.PAUSING  # type: ignore[union-attr]


def test_work_that_stays_on_a_drained_node_has_that_reason(world: ServiceWorld) -> None:
    job = running(world, preemptible=False)
    change(world, "drain", deadline="2h")
    found = world.get(f"explain/{job}").json["reason"]
    assert found["code"] == "node_drained" and "The drain's deadline is in 2 hours" in found["message"]


def test_devices_of_a_cordoned_node_show_that_no_work_starts_there(world: ServiceWorld, chromium: Any) -> None:
    assert {one["upkeep"] for one in world.get("devices").json["items"]} == {"none"}
    change(world, "cordon")
    assert {one["upkeep"] for one in world.get("devices").json["items"]} == {"cordoned"}
    page = open_page(world, chromium, "")
    seen(page, "node cordoned: no work starts here", ".tile")
    page.context.close()


def test_the_devices_of_a_closed_node_are_in_no_capacity(world: ServiceWorld) -> None:
    def amounts() -> tuple[int, int, int]:
        world.run(world.services.store_view.refresh())
        train = next(row for row in world.get("pools").json["items"] if row["name"] == "train")
        return train["capacity_milli"], train["free_milli"], train["allocated_milli"]

    running(world)
    capacity, free, allocated = amounts()
    assert capacity == free + allocated and min(free, allocated) > 0
    change(world, "cordon")
    assert amounts() == (0, 0, allocated)
    change(world, "uncordon")
    assert amounts() == (capacity, free, allocated)


def test_a_change_is_audited_with_its_actor(world: ServiceWorld) -> None:
    change(world, "cordon")
    (row,) = [row for row in world.get("audit?limit=1000", "ann").json["items"] if row["kind"] == "node.cordon"]
    assert (row["actor"], row["subject"], row["payload"]["was"]) == ("ann", "node-1", "none")


@pytest.mark.parametrize(
    ("word", "edit", "status", "words"),
    [
        pytest.param("cordon", {"deadline": "2h"}, 400, "deadline belongs to a drain", id="a deadline of a cordon"),
        pytest.param("drain", {"deadline": "soon"}, 400, "not a duration", id="a deadline that is no duration"),
        pytest.param("melt", {}, 404, "is not a path of this API", id="a word that no node knows"),
    ],
)
def test_invalid_node_changes_are_refused(
    world: ServiceWorld, word: str, edit: dict[str, object], status: int, words: str
) -> None:
    refused = change(world, word, **edit)
    assert refused.status == status and words in refused.json["message"]


def test_an_unknown_node_is_not_found(world: ServiceWorld) -> None:
    assert world.post("nodes/node-9/actions/cordon", "ann", {}).json["reason"] == "not_found"
    assert world.post("nodes/one/actions/cordon", "ann", {}).json["node"]["id"] == "node-1", "a node has a name, too"


def test_an_admin_cordons_and_drains_from_the_command_line(world: ServiceWorld) -> None:
    def run(*words: str):  # type: ignore[no-untyped-def]
        return nodes_command(world, *words)

    job = running(world)
    dry = run("drain", "node-1", "--dry-run")
    assert f"bob's job python train.py ({job[-8:]}) in project vision saves and is queued again" in dry.stdout
    assert dry.stderr == "nothing was changed: node node-1 would be draining\n"
    assert run("cordon", "node-1").stderr == "node node-1 is cordoned\n"
    assert "cordoned" in run().stdout
    done = run("drain", "node-1", "--deadline", "90m")
    assert done.exit_code == 0 and done.stderr.startswith("node node-1 is draining by 2")
    assert run("uncordon", "node-1").stderr == "node node-1 is open\n"
    assert world.store.changes(0).nodes[0].upkeep is Upkeep.NONE
    assert (run("drain", "node-9").exit_code, run("drain").exit_code) == (1, 2)
