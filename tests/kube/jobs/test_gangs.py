"""Gangs over two nodes: their ranks are pods that find each other, start together, and end together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fractions.devices import device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES
from tests.kube.jobs.test_service import pods, settings_of
from tests.kube.service import KubernetesService
from tests.kube.world import install
from tests.patience import until

QUOTA = """\
version: 1
pools: [{name: train, uses: [training]}]
projects: [{name: vision, members: {users: [bob]}, quota: {train: {training: 2}}}]
policy: {preemption: {min_runtime: 0s, grace: 1s}}
"""
"""An elastic job grows once it has run for ten graces, and may be stopped."""

NODES = ("left", "right")
MEET = (
    'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR"; touch "$GPU_QUOTA_OUTPUT_DIR/rank-$RANK-of-$WORLD_SIZE"; '
    'while [ "$(ls "$GPU_QUOTA_OUTPUT_DIR" | grep -c "of-$WORLD_SIZE")" -lt "$WORLD_SIZE" ]; do sleep 0.05; done; '
)
"""Each rank waits until all of them run."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest, dra_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The namespace of nodes with one device each, which share a volume: two, or those of a parameter, by rack."""
    namespace = install(dra_plane)
    kubelets = []
    racks: dict[str, str] = getattr(request, "param", {})
    for node in racks or NODES:
        dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice(node, device(f"gpu-{node}")))
        labels = {"topology.kubernetes.io/rack": racks[node]} if racks else {}
        kubelets.append(FakeKubelet(dra_plane, namespace, node, tmp_path / "state", labels=labels))
        kubelets[-1].start()
    yield namespace
    for kubelet in kubelets:
        kubelet.stop()
        dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/{kubelet.node}")


@pytest.fixture
def service(dra_plane: ControlPlane, cluster: str, tmp_path: Path) -> Iterator[KubernetesService]:
    made = KubernetesService(tmp_path, settings_of(dra_plane, cluster, tmp_path / "state"), quota=QUOTA)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.end()


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def waits_for(file: Path) -> str:
    return f"while [ ! -e {file} ]; do sleep 0.05; done"


def nodes_of(found: list[dict[str, Any]]) -> list[str]:
    return sorted(each["spec"].get("nodeName", "") for each in found)


def test_the_ranks_of_a_gang_run_on_two_nodes_and_find_the_first(
    dra_plane: ControlPlane, cluster: str, service: KubernetesService, tmp_path: Path
) -> None:
    bob, go_on = service.client(), tmp_path / "go-on"
    job = bob.submit(shell(MEET + waits_for(go_on)), gpu="1", nodes=2, dir=None)
    until(lambda: nodes_of(pods(dra_plane, cluster)) == list(NODES), what=service.log)
    headless = dra_plane.get(f"/api/v1/namespaces/{cluster}/services/gq-{job.id.lower()}-1")
    assert headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"]
    go_on.touch()
    until(lambda: bob.job(job.id).state == "succeeded", what=service.log)
    name = f"gq-{job.id.lower()}-1"
    assert [bob.logs(job.id, rank=rank) for rank in range(2)] == [
        f"{rank} of 2 at {name}-0.{name}\n" for rank in range(2)
    ]


@pytest.mark.parametrize("cluster", [{"alone": "r1", "left": "r2", "right": "r2"}], indirect=True)
def test_a_gang_starts_within_one_rack(dra_plane: ControlPlane, cluster: str, service: KubernetesService) -> None:
    bob = service.client()
    job = bob.submit(shell(MEET + "exec sleep 1000"), gpu="1", nodes=2, dir=None)
    until(lambda: bob.job(job.id).state == "running", what=service.log)
    assert nodes_of(pods(dra_plane, cluster)) == ["left", "right"], "the first by name would be alone and left"
    bob.cancel(job.id)
    until(lambda: bob.job(job.id).state == "cancelled", what=service.log)


def test_a_rank_that_fails_ends_the_rank_on_the_other_node(service: KubernetesService) -> None:
    bob = service.client()
    job = bob.submit(shell(MEET + '[ "$RANK" = 0 ] || exit 3; sleep 1000'), gpu="1", nodes=2, dir=None)
    until(lambda: bob.job(job.id).state == "failed", what=service.log)
    why = bob.job(job.id).reason
    assert why is not None
    assert why.message.startswith("Rank 1 on node right, the first of 2 ranks to fail, ended with exit status 3.")


def test_an_elastic_gang_grows_onto_the_other_node_when_it_is_free(
    dra_plane: ControlPlane, cluster: str, service: KubernetesService, tmp_path: Path
) -> None:
    bob, go_on = service.client(), tmp_path / "go-on"
    first = bob.submit(shell(waits_for(go_on)), gpu="1", dir=None)
    until(lambda: bob.job(first.id).state == "running", what=service.log)
    elastic = bob.submit(shell(MEET + "exec sleep 1000"), gpu="1", nodes=2, min_nodes=1, dir=None)
    until(lambda: bob.job(elastic.id).state == "running", what=service.log)
    assert bob.job(elastic.id).held_ranks == 1
    go_on.touch()
    until(lambda: bob.job(elastic.id).attempt == 2 and bob.job(elastic.id).state == "running", what=service.log)
    until(lambda: nodes_of(pods(dra_plane, cluster)) == list(NODES), what="the pods of the first attempt are removed")
    bob.cancel(elastic.id)
    until(lambda: bob.job(elastic.id).state == "cancelled", what=service.log)
