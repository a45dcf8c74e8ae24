"""The agent of a node as a program: the fake NVML library, real cgroups, a real API server and the real service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.rendering.admission import FENCE
from jupyter_gpu_quota.backends.rendering.cluster_names import KILL
from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.wire.samples import SampleView
from tests.gpu import fake_library
from tests.gpu.fake_library import Script
from tests.kube.agent.cgroups import PodCgroups, pod_cgroups, why_no_pod_cgroups
from tests.kube.agent.pods import account_of, agent_pod, token_of
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fractions.devices import MEMORY_MIB, device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES
from tests.kube.jobs.test_service import settings_of
from tests.kube.service import KubernetesService
from tests.kube.world import install
from tests.patience import PATIENCE_S, until

FOREIGN_POD = "74c13223-5a00-11e9-b385-42010a80018d"


@dataclass
class Node:
    """Node ``here`` with one device and its agent; ``start`` makes a process of this machine use the device."""

    plane: ControlPlane
    namespace: str
    kubelet: FakeKubelet
    service: KubernetesService
    script: Script
    cgroups: PodCgroups
    log_file: Path
    settings: dict[str, Any]

    @property
    def bob(self) -> Client:
        return self.service.client()

    def running_job(self) -> tuple[str, str, int]:
        """A job of bob with half of the device: its id, the uid of its pod, and its process."""
        job = self.bob.submit(["sh", "-c", "exec sleep 1000"], gpu="0.5", dir=None, data=[]).id
        until(lambda: self.bob.job(job).state == "running", what=self.service.log)
        pods = self.plane.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        (uid,) = [pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] != "agent"]
        return job, uid, self.kubelet._processes[uid].pid

    def use(self, pid: int, pod: str, mib: int, percent: int) -> None:
        self.cgroups.put(pid, pod)
        self.script.add(f"0 process {pid} {mib} {percent}")

    def newest(self) -> SampleView:
        (found,) = self.bob._list(SampleView, "samples", {})
        return found

    def sampled(self) -> SampleView | None:
        """The newest sample, if it is one of the agent."""
        found = self.bob._list(SampleView, "samples", {})
        return found[0] if found and found[0].utilisation_percent is not None else None

    def log(self) -> str:
        return self.log_file.read_text()[-4000:]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libnvidia-ml.so.1 with")
    return fake_library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(dra_plane: ControlPlane, library: Path, tmp_path: Path) -> Iterator[Node]:
    if why := why_no_pod_cgroups():
        pytest.skip(why)
    dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0")))
    namespace = install(dra_plane)
    kubelet = FakeKubelet(dra_plane, namespace, "here", tmp_path / "state")
    kubelet.ignored.add("agent")
    kubelet.start()
    agent_pod(dra_plane, namespace, "agent", "here")
    script = Script(tmp_path / "script")
    script.device(0, memory_mib=MEMORY_MIB, used_mib=700, percent=60)
    script.put("0 uuid GPU-gpu-0", "system driver 615.71.01")
    own = settings_of(dra_plane, namespace, tmp_path / "state") | {"kubernetes_agent_account": account_of(namespace)}
    service = KubernetesService(tmp_path, own)
    agent = None
    try:
        service.wait_until_ready()
        with pod_cgroups() as cgroups:
            agent = start_agent(dra_plane, namespace, service.port, tmp_path, library)
            log = tmp_path / "agent.log"
            yield Node(dra_plane, namespace, kubelet, service, script, cgroups, log, own)
            agent.terminate()
            assert agent.wait(PATIENCE_S) == 0, log.read_text()
            kubelet.stop()
    finally:
        if agent is not None and agent.poll() is None:
            agent.kill()
            agent.wait(PATIENCE_S)
        service.end()
        dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/here")


def start_agent(plane: ControlPlane, namespace: str, port: int, folder: Path, library: Path) -> subprocess.Popen[bytes]:
    """The agent with the rights of its service account, as its pod on the node has them."""
    (folder / "token").write_text(token_of(plane, namespace, "agent"))
    credentials = token_of(plane, namespace, "agent", audience="https://kubernetes.default.svc")
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library), "FAKE_NVML_SCRIPT": str(folder / "script"), "NODE_NAME": "here",
    }  # fmt: skip
    options = [
        f"--url=http://127.0.0.1:{port}/services/gpu-quota", f"--namespace={namespace}", "--hub=local",
        f"--token-file={folder / 'token'}", "--sample-every-s=0.2", f"--heartbeat={folder / 'agent.heartbeat'}",
        f"--kubeconfig={plane.kubeconfig_of_token(f'agent-{namespace}', credentials)}",
    ]  # fmt: skip
    with (folder / "agent.log").open("wb") as log:
        command = [sys.executable, "-m", "jupyter_gpu_quota", "node-agent", *options]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def kill(node: Node, uid: str) -> None:
    """The order of the present leader to kill the processes of a pod."""
    objects = f"/api/v1/namespaces/{node.namespace}"
    number = node.plane.get(f"{objects}/configmaps/{FENCE}")["data"]["fencing"]
    (name,) = [
        pod["metadata"]["name"] for pod in node.plane.get(f"{objects}/pods")["items"] if pod["metadata"]["uid"] == uid
    ]
    node.plane.patch(f"{objects}/pods/{name}", {"metadata": {"annotations": {KILL: number}}})


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
