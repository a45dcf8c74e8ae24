"""The agent of a node as a program: the fake NVML library, real cgroups, a real API server and the real service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.agent.node import FOREIGN_POD, Node, build_library, kill, node_with_agent
from tests.kube.control_plane import ControlPlane
from tests.kube.fractions.devices import DRIVER, device_class
from tests.kube.service import KubernetesService
from tests.patience import until


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(dra_plane: ControlPlane, library: Path, tmp_path: Path) -> Iterator[Node]:
    with node_with_agent(dra_plane, library, tmp_path) as made:
        yield made


@pytest.fixture
def west_node(control_plane: ControlPlane, west_plane: ControlPlane, library: Path, tmp_path: Path) -> Iterator[Node]:
    """A node of a further cluster, whose agent sends to the service of the hub's own cluster."""
    west_plane.make("/apis/resource.k8s.io/v1/deviceclasses", device_class())
    west_plane.start_program("kube-controller-manager")
    with node_with_agent(west_plane, library, tmp_path, "west", control_plane) as made:
        yield made
    west_plane.end("kube-controller-manager")
    west_plane.request("DELETE", f"/apis/resource.k8s.io/v1/deviceclasses/{DRIVER}")


def test_the_use_of_a_job_is_that_of_the_processes_of_its_pod_and_an_order_kills_them(node: Node) -> None:
    job, pod, pid = node.running_job()
    node.use(pid, pod, mib=500, percent=60)
    with subprocess.Popen(["sleep", "600"], env={"GPU_QUOTA_JOB_ID": job}) as foreign:
        node.use(foreign.pid, FOREIGN_POD, mib=200, percent=0)
        until(lambda: node.bob.job(job).utilised_milli == 600, what=node.log)
        until(lambda: node.newest().foreign_mib == 200, what=node.log)
        foreign.kill()
    kill(node, pod)
    until(lambda: node.bob.job(job).state == "failed", what=node.log)
    assert node.bob.job(job).exit_status == -9
    assert node.log_file.with_suffix(".heartbeat").exists(), "samples, pods and orders have turned"
    found = node.newest()
    assert (found.node, found.device, found.utilisation_percent) == ("here", "here/gpu-0", 60)
    assert found.memory_used_mib == 700 and not found.simulated


def test_while_the_service_is_away_samples_are_dropped_and_then_sent_again(node: Node, tmp_path: Path) -> None:
    until(node.sampled, what=node.log)
    node.service.stop()
    until(lambda: "samples are dropped" in node.log(), what=node.log)
    node.script.put("0 percent 33")
    again = KubernetesService(tmp_path, node.settings, port=node.service.port)
    try:
        again.wait_until_ready()
        read = again.client().device_history
        until(lambda: read("here/gpu-0")[0].utilisation_percent == 33, what=node.log)
        until(lambda: "the service takes samples again" in node.log(), what=node.log)
    finally:
        again.end()


def test_a_driver_that_cannot_be_read_is_unknown_with_its_reason(node: Node) -> None:
    until(node.sampled, what=node.log)
    node.script.put("0 error nvmlDeviceGetUtilizationRates 999")
    until(lambda: node.newest().utilisation_percent is None, what=node.log)
    assert "NVML" in node.newest().why["utilisation_percent"]
    assert "agent" not in node.newest().why


def test_the_agent_of_a_further_cluster_sends_samples_and_obeys_the_orders_of_its_cluster(west_node: Node) -> None:
    job, pod, pid = west_node.running_job()
    west_node.use(pid, pod, mib=500, percent=60)
    until(lambda: west_node.bob.job(job).utilised_milli == 600, what=west_node.log)
    found = west_node.newest()
    assert (found.node, found.device, found.utilisation_percent) == ("west:here", "west:here/gpu-0", 60)
    kill(west_node, pod)
    until(lambda: west_node.bob.job(job).state == "failed", what=west_node.log)
    assert west_node.bob.job(job).exit_status == -9
