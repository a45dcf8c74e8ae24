"""The doctor's report of node agents: which nodes send samples, and how old the last one of each is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jupyter_gpu_quota.cli.doctor.agents import agents
from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.core.model import Node
from jupyter_gpu_quota.core.samples import AGENT, DeviceSample
from jupyter_gpu_quota.store.records.commands import SetInventory
from tests.api.world import HUB_TOKEN, ServiceWorld, service_world, train_devices
from tests.cli.commands import run

ACCOUNT = "system:serviceaccount:jupyterhub:gpu-quota-agent"
NOW = 1_800_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.clock = lambda: NOW
        nodes = ("a", "b", "c")
        devices = [
            replace(device, id=f"{node}/0", node=node, simulated=False)
            for device, node in zip(train_devices(3), nodes, strict=True)
        ]
        known = [Node(id=node, name=node, cpu_milli=8_000, memory_mib=65_536) for node in nodes]
        made.record(SetInventory(nodes=tuple(known), devices=tuple(devices)))
        yield made


def sent(world: ServiceWorld, node: str, *, age_s: int, why: str = "") -> None:
    figure = None if why else 7
    row = DeviceSample(
        node=node, device=f"{node}/0", at=NOW - age_s * 1000, utilisation_percent=figure, memory_used_mib=figure,
        coverage_permille=None, simulated=False, why={AGENT: why} if why else {},
    )  # fmt: skip
    assert world.store.add_samples(f"{node} {why}", NOW - age_s * 1000, [row], now=NOW)


def report(world: ServiceWorld, account: str = ACCOUNT) -> list[tuple[str, str]]:
    world.run(world.services.store_view._read_samples())
    client = Client(f"http://127.0.0.1:{world.port}", HUB_TOKEN, environment={})
    return [(each.verdict, each.found) for each in agents(client, account, datetime.fromtimestamp(NOW / 1000, UTC))]


def test_all_nodes_report(world: ServiceWorld) -> None:
    for node, age_s in (("a", 2), ("b", 11), ("c", 60)):
        sent(world, node, age_s=age_s)
    assert report(world) == [("ok", "3 nodes report: a 2 s ago, b 11 s ago, c 60 s ago")]


def test_a_silent_node_is_named_with_its_last_sample_and_the_reason(world: ServiceWorld) -> None:
    sent(world, "a", age_s=2)
    sent(world, "b", age_s=720)
    sent(world, "b", age_s=3, why="no agent of its node sends samples")
    sent(world, "c", age_s=3, why="no agent of its node sends samples")
    last = datetime.fromtimestamp(NOW / 1000, UTC) - timedelta(seconds=720)
    assert report(world) == [
        ("warn", "1 of 3 nodes report: a 2 s ago"),
        ("warn", f"b: no agent of its node sends samples; its last sample is of {last:%Y-%m-%dT%H:%M:%SZ}"),
        ("warn", "c: no agent of its node sends samples; it sent none in the hours that are kept"),
    ]


def test_the_sample_of_an_agent_that_stopped_meanwhile_is_old(world: ServiceWorld) -> None:
    sent(world, "a", age_s=61)
    (summary, silent) = report(world)
    assert summary == ("warn", "0 of 1 node reports: none")
    assert silent[1].startswith("a: its last sample is old; its last sample is of")


def test_before_the_first_sample_nothing_is_known(world: ServiceWorld) -> None:
    assert report(world) == [("skip", "there is no sample of a device yet")]


def test_without_an_account_there_are_no_agents(world: ServiceWorld) -> None:
    ((verdict, found),) = report(world, account="")
    assert verdict == "warn" and "no notebook becomes idle" in found


def test_a_service_that_does_not_answer(world: ServiceWorld) -> None:
    client = Client("http://127.0.0.1:1", "token", environment={}, timeout_s=1)
    ((verdict, found),) = [(each.verdict, each.found) for each in agents(client, ACCOUNT)]
    assert verdict == "skip" and "cannot be reached" in found


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param({"JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:{0}"}, "3 nodes report", id="with its own service"),
        pytest.param({}, "the service's address is unknown", id="without an address"),
    ],
)
def test_in_the_pod_of_the_chart_the_service_is_asked_at_its_own_address(
    world: ServiceWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for node in "abc":
        sent(world, node, age_s=2)
    world.run(world.services.store_view._read_samples())
    settings = {"state_dir": str(tmp_path), "backend": "kubernetes", "kubernetes_image": "none",
                "kubernetes_volume_claim": "gpu-quota", "kubernetes_agent_account": ACCOUNT}  # fmt: skip
    chart = {
        "JUPYTER_GPU_QUOTA_SETTINGS": json.dumps(settings),
        "JUPYTERHUB_SERVICE_PREFIX": "/services/gpu-quota/",
        "JUPYTERHUB_API_TOKEN": HUB_TOKEN,
        **{name: text.format(world.port) for name, text in variables.items()},
    }
    for name in ("JUPYTER_GPU_QUOTA_URL", "JUPYTERHUB_PUBLIC_HUB_URL", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    for name, text in chart.items():
        monkeypatch.setenv(name, text)
    found = [each["found"] for each in json.loads(run("doctor", "--json").stdout) if each["what"] == "agents"]
    assert said in found[0], found
