"""A node with its agent as a program: the fake NVML library, real cgroups, a real API server and the real service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.node_tokens import audience_of
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
from tests.kube.service import QUOTA, KubernetesService
from tests.kube.world import install
from tests.patience import PATIENCE_S, until

QUOTA_THERE = """\
version: 1
pools:
  - {{name: train, selector: {{cluster: {}}}, uses: [training]}}
projects:
  - {{name: vision, members: {{users: [bob]}}, quota: {{train: {{training: 1}}}}}}
"""

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


def build_library(folder: Path) -> Path:
    """The fake libnvidia-ml.so.1; without a compiler the test is skipped."""
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libnvidia-ml.so.1 with")
    return fake_library.build(folder)


@contextmanager
def node_with_agent(
    plane: ControlPlane, library: Path, folder: Path, cluster: str = "", own: ControlPlane | None = None
) -> Iterator[Node]:
    """Node ``here`` of a control plane; of a further one, ``cluster``, where ``own`` is that of the service."""
    if why := why_no_pod_cgroups():
        pytest.skip(why)
    plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0")))
    namespace, volume = install(plane), folder / (cluster or "state")
    kubelet = FakeKubelet(plane, namespace, "here", volume)
    kubelet.ignored.add("agent")
    kubelet.start()
    agent_pod(plane, namespace, "agent", "here")
    script = Script(folder / "script")
    script.device(0, memory_mib=MEMORY_MIB, used_mib=700, percent=60)
    script.put("0 uuid GPU-gpu-0", "system driver 615.71.01")
    settings = settings_of(plane, namespace, volume) | {"kubernetes_agent_account": account_of(namespace)}
    if own is not None:
        further = {"config": settings["kubernetes_config"], "namespace": namespace, "state_dir": str(volume)}
        settings = settings_of(own, install(own), folder / "state") | {
            "kubernetes_clusters": {cluster: further | {"agent_account": account_of(namespace)}}
        }
    service = KubernetesService(folder, settings, quota=QUOTA if own is None else QUOTA_THERE.format(cluster))
    agent = None
    try:
        service.wait_until_ready()
        with pod_cgroups() as cgroups:
            agent = _start_agent(plane, namespace, service.port, folder, library, cluster)
            log = folder / "agent.log"
            yield Node(plane, namespace, kubelet, service, script, cgroups, log, settings)
            agent.terminate()
            assert agent.wait(PATIENCE_S) == 0, log.read_text()
            kubelet.stop()
    finally:
        if agent is not None and agent.poll() is None:
            agent.kill()
            agent.wait(PATIENCE_S)
        service.end()
        plane.request("DELETE", f"{RESOURCES}/resourceslices/here")


def _start_agent(
    plane: ControlPlane, namespace: str, port: int, folder: Path, library: Path, cluster: str
) -> subprocess.Popen[bytes]:
    """The agent with the rights of its service account, as its pod on the node has them."""
    (folder / "token").write_text(token_of(plane, namespace, "agent", audience=audience_of(cluster or None)))
    credentials = token_of(plane, namespace, "agent", audience="https://kubernetes.default.svc")
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library), "FAKE_NVML_SCRIPT": str(folder / "script"), "NODE_NAME": "here",
    }  # fmt: skip
    options = [
        f"--url=http://127.0.0.1:{port}/services/gpu-quota", f"--namespace={namespace}", "--hub=local",
        f"--token-file={folder / 'token'}", "--sample-every-s=0.2", f"--heartbeat={folder / 'agent.heartbeat'}",
        f"--kubeconfig={plane.kubeconfig_of_token(f'agent-{namespace}', credentials)}", f"--cluster={cluster}",
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
