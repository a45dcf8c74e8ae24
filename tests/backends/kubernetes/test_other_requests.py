"""The CPU and memory of a node that jobs do not get."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.kept_fields import kept_of_pod
from jupyter_gpu_quota.backends.kubernetes.devices.inventory import inventory
from jupyter_gpu_quota.backends.kubernetes.devices.other_requests import HELD_S, OtherRequests
from jupyter_gpu_quota.backends.rendering.cluster_names import HUB, JOB, NOTEBOOK
from jupyter_gpu_quota.core.model import Node
from jupyter_gpu_quota.core.placement.node_resources import CpuMemory, default_share

NODE = {
    "metadata": {"name": "n"}, "spec": {},
    "status": {
        "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"cpu": "64", "memory": "512Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}  # fmt: skip


def pod(cpu: str, memory: str = "0", *, namespace: str = "hub", **labels: str) -> dict[str, Any]:
    metadata = {"name": "x", "namespace": namespace, "labels": labels}
    containers = [{"resources": {"requests": {"cpu": cpu, "memory": memory}}}]
    return kept_of_pod({"metadata": metadata, "spec": {"nodeName": "n", "containers": containers}})


class Cluster:
    """A node of 64 CPUs and 512 GiB; each reading has the pods that are there then."""

    def __init__(self) -> None:
        self.others = OtherRequests("local", "hub")

    def read(self, *pods: dict[str, Any], at_s: float = 0.0) -> Node:
        found = inventory([NODE], [], "driver", others=self.others.read([NODE], pods, at_s))
        return found.nodes[0]


@pytest.mark.parametrize(
    ("other", "cpus"),
    [
        pytest.param(pod("200m", namespace="kube-system"), 62, id="a DaemonSet takes a step of a 32nd of the node"),
        pytest.param(pod("2001m", namespace="kube-system"), 60, id="amounts are rounded up"),
        pytest.param(pod("4", **{HUB: "local", NOTEBOOK: "N"}), 60, id="a notebook of this hub"),
        pytest.param(pod("4", **{HUB: "other", JOB: "J"}), 60, id="a job of another hub"),
        pytest.param(pod("4", namespace="x", **{HUB: "local", JOB: "J"}), 60, id="a pod that has our labels elsewhere"),
        pytest.param(pod("4", **{HUB: "local", JOB: "J"}), 64, id="a job of ours, which the queue counts"),
    ],
)
def test_other_pods_take_their_requests_from_the_node(other: dict[str, Any], cpus: int) -> None:
    assert Cluster().read(other).cpu_milli == cpus * 1000


def test_a_job_with_all_devices_of_a_node_fits_beside_the_pods_of_daemon_sets() -> None:
    node = Cluster().read(pod("500m", "20Gi", namespace="kube-system"))
    rank = default_share(8000, [(CpuMemory(node.cpu_milli, node.memory_mib), 8)])
    assert (rank.cpu_milli + 500 <= 64_000, rank.memory_mib + (20 << 10) <= 512 << 10) == (True, True)


def test_a_node_without_room_states_the_least_amount_as_none_would_be_unlimited() -> None:
    node = Cluster().read(pod("100", "600Gi"))
    assert (node.cpu_milli, node.memory_mib) == (1, 1)


def test_an_amount_grows_at_once_and_shrinks_when_it_was_not_needed_for_a_while() -> None:
    cluster, notebook = Cluster(), pod("4")
    assert cluster.read(at_s=0).cpu_milli == 64_000
    assert cluster.read(notebook, at_s=60).cpu_milli == 60_000
    assert cluster.read(at_s=60 + HELD_S - 1).cpu_milli == 60_000
    assert cluster.read(notebook, at_s=60 + HELD_S).cpu_milli == 60_000, "it is needed again"
    assert cluster.read(at_s=61 + HELD_S).cpu_milli == 60_000
    assert cluster.read(at_s=60 + 2 * HELD_S).cpu_milli == 64_000


def test_notebooks_that_come_and_go_do_not_change_the_node() -> None:
    cluster = Cluster()
    found = {cluster.read(*[pod("100m", "1Gi")] * number, at_s=60 * at) for at, number in enumerate((9, 3, 8, 1, 9))}
    assert len(found) == 1
