"""Samples that the agents of nodes send: who may send which, and what of them is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.access.permissions import Person, Scope, may_enter
from jupyter_gpu_quota.api.routes import ROUTES
from jupyter_gpu_quota.backends.protocol import NodeUnverified, TokenRefused
from jupyter_gpu_quota.core.facts import NotebookFact
from jupyter_gpu_quota.core.samples import AGENT, SILENT_MS, WORKLOADS, DeviceSample, ProcessUse
from tests.api.handlers.notebooks.test_notebooks import lending
from tests.api.world import Reply, ServiceWorld, build_devices, service_world, train_devices

NODE_A, NODE_B = "Bearer node.a.token", "Bearer node.b.token"


class FakeNodes:
    """Knows two nodes by their tokens, and refuses others as the API server of a cluster does."""

    def is_token(self, text: str) -> bool:
        return text.count(".") == 2

    def node_of(self, token: str) -> str:
        match token:
            case "node.a.token":
                return "node-1"
            case "node.b.token":
                return "node-2"
            case "other.account.token":
                raise TokenRefused("this token is that of another account")
            case "away.for.now":
                raise NodeUnverified("the API server does not verify tokens now: time-out")
        raise TokenRefused("the API server of the cluster does not accept this token", is_valid=False)


@dataclass
class Nodes:
    """Bob's job on one real device of node-1; ``post`` sends a batch with samples of it."""

    world: ServiceWorld
    job: str
    device: str
    sequence: int = 0

    def post(self, *samples: dict[str, Any], token: str = NODE_A, node: str = "node-1") -> Reply:
        self.sequence += 1
        batch = {"node": node, "sequence": self.sequence, "samples": list(samples)}
        return self.world.post("samples", None, batch, headers={"Authorization": token})

    def sample(self, **more: Any) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.world.clock() / 1000, UTC).isoformat()
        return {"device": self.device, "at": at, "utilisation_percent": 60, "memory_used_mib": 700} | more

    def newest(self) -> DeviceSample | None:
        return self.world.store.latest_samples().get(self.device)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with service_world(tmp_path) as world:
        world.services.people.nodes = FakeNodes()
        world.apply(devices=tuple(replace(each, simulated=False) for each in (*train_devices(), *build_devices())))
        job = world.submit()["id"]
        world.step()
        world.run(world.services.store_view.refresh())
        (part,) = world.get(f"jobs/{job}").json["allocations"]
        yield Nodes(world, job, part["device"])


def test_a_node_sends_the_use_of_each_workload_of_its_devices(nodes: Nodes) -> None:
    process = {"handle": "77", "memory_mib": 700, "percent": 60, "places": [["pid:[1]", 5, 99]]}
    mine = {nodes.job: 60, "of-nobody": 40}
    figures = {"foreign_mib": 0, "temperature_c": 40, "power_w": 120, "coverage_permille": 1000}
    whys = {"of-nobody": "x", nodes.job: "y", "foreign": "z", WORKLOADS: "v", AGENT: "w"}
    sample = nodes.sample(
        **figures, workloads=mine, workload_memory_mib={nodes.job: 700, "of-nobody": 1}, why=whys,
        processes={nodes.job: [process], "of-nobody": [process]},
    )  # fmt: skip
    assert nodes.post(sample).json["accepted"] is True
    found = nodes.newest()
    assert found == DeviceSample(
        node="node-1", device=nodes.device, at=found.at if found else 0, utilisation_percent=60, memory_used_mib=700,
        simulated=False, **figures, workloads={nodes.job: 60}, workload_memory_mib={nodes.job: 700},
        processes={nodes.job: (ProcessUse(handle="77", memory_mib=700, percent=60, places=(("pid:[1]", 5, 99),)),)},
        why={nodes.job: "y", "foreign": "z", WORKLOADS: "v"},
    ), "the use of a workload that has no part of the device is not kept"  # fmt: skip


def test_the_answer_names_the_devices_of_the_node_and_their_workloads(nodes: Nodes) -> None:
    found = {each["id"]: each for each in nodes.post().json["devices"]}
    assert len(found) == 5
    assert found[nodes.device] == {
        "id": nodes.device, "uuid": f"SIM-{nodes.device}", "workloads": [nodes.job], "lent": [],
    }  # fmt: skip
    assert nodes.post(token=NODE_B, node="node-2").json["devices"] == []


def test_a_lent_slice_is_named_on_the_device_that_it_returns_to(nodes: Nodes) -> None:
    world = nodes.world
    lending(world)
    with world.stepping():
        slice_ = world.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1/8"}).json["id"]
    world.see(NotebookFact(notebook=slice_, activity="idle", seen_empty=True))
    assert world.step() == 1
    world.run(world.services.store_view.refresh())
    lent = [each for each in nodes.post().json["devices"] if each["lent"]]
    assert [(each["lent"], each["workloads"]) for each in lent] == [([slice_], [slice_])]


def test_a_node_may_report_only_its_own_devices(nodes: Nodes) -> None:
    wrong = nodes.post(nodes.sample(), token=NODE_B, node="node-1")
    assert (wrong.status, wrong.json["reason"]) == (403, "other_node")
    assert "the agent of node node-2 sent a batch of node node-1" in wrong.json["message"]
    wrong = nodes.post(nodes.sample(), token=NODE_B, node="node-2")
    assert (wrong.status, wrong.json["reason"]) == (409, "unknown_device")
    assert nodes.newest() is None


def test_a_node_may_do_nothing_else() -> None:
    agent = Person(name="node-1", id="system:node:node-1", node="node-1")
    assert {scope for scope in Scope if may_enter(agent, scope)} == {Scope.OPEN, Scope.APPLY_HUB_OR_NODE}
    assert [f"{each.method} {each.path}" for each in ROUTES if each.scope is Scope.APPLY_HUB_OR_NODE] == [
        "POST samples"
    ]


def test_a_node_may_not_read_samples(nodes: Nodes) -> None:
    answer = nodes.world.get("samples", None, headers={"Authorization": NODE_A})
    assert answer.status == 403
    assert answer.json["message"] == "the agent of node node-1 may not do this: it may only send samples."


@pytest.mark.parametrize(
    ("token", "status", "reason"),
    [
        pytest.param("other.account.token", 403, "not_allowed", id="a token of another account"),
        pytest.param("un.known.token", 401, "not_authenticated", id="a token that the cluster does not accept"),
        pytest.param("away.for.now", 503, "cluster_away", id="a cluster that does not answer"),
    ],
)
def test_a_token_that_names_no_node_is_refused_with_the_reason(
    nodes: Nodes, token: str, status: int, reason: str
) -> None:
    answer = nodes.post(nodes.sample(), token=f"Bearer {token}")
    assert (answer.status, answer.json["reason"]) == (status, reason)
    assert ("retry-after" in answer.headers) is (status == 503)
    assert nodes.newest() is None


def test_where_there_are_no_agents_such_a_token_is_unknown_to_the_hub(nodes: Nodes) -> None:
    nodes.world.services.people.nodes = None
    assert nodes.post(nodes.sample()).status == 401


# --- nodes whose agent is silent --------------------------------------------------------------------------------------
def stand_in(nodes: Nodes) -> DeviceSample:
    return DeviceSample(
        node="node-1", device=nodes.device, at=nodes.world.clock(), utilisation_percent=None, memory_used_mib=None,
        coverage_permille=0, simulated=False, workloads={nodes.job: None}, why={AGENT: "it sends nothing"},
    )  # fmt: skip


def test_a_stand_in_is_kept_only_where_the_agent_is_silent(nodes: Nodes) -> None:
    now = nodes.world.hold_clock()

    def write(sequence: int) -> None:
        row = stand_in(nodes)
        assert nodes.world.store.add_samples("controllers", sequence, [row], now=nodes.world.clock())

    write(1)
    assert (found := nodes.newest()) and found.is_stand_in
    assert nodes.post(nodes.sample(workloads={nodes.job: 60})).status == 200
    nodes.world.clock = lambda: now + SILENT_MS - 1
    write(2)
    assert (found := nodes.newest()) and found.workloads == {nodes.job: 60}
    nodes.world.clock = lambda: now + SILENT_MS
    write(3)
    assert (found := nodes.newest()) and found.workloads == {nodes.job: None}, "unknown, not the last known figure"
    history = nodes.world.get(f"samples?device={nodes.device}").json["items"]
    assert [each["utilisation_percent"] for each in history] == [None, 60]
