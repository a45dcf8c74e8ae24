"""The chart on a real node: service and agent are real pods, as helm installs them. The hub and the GPUs are fakes.

The names and addresses of Services are those of tests/node/cluster_network.py: there is no kube-proxy and no DNS here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tornado.httpserver import HTTPServer

from jupyter_gpu_quota.backends.kubernetes.agent.pod_reader import sees_host_processes
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.rendering.admission import FENCE
from jupyter_gpu_quota.backends.rendering.cluster_names import JOB, KILL
from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.wire.samples import SampleView
from tests.api.world import HUB_TOKEN, FakeAccount, FakeHub, serving
from tests.gpu import fake_library
from tests.gpu.fake_library import Script
from tests.kube.chart.release import CHART, RELEASE, helm
from tests.kube.chart.test_agent_chart import EXAMPLES
from tests.kube.chart.test_chart import TOKEN_KEY
from tests.kube.control_plane import ControlPlane
from tests.kube.jobs.test_service import pods
from tests.kube.world import make_volume
from tests.node import machine
from tests.node.cluster_network import ClusterNetwork, why_no_network
from tests.node.conftest import running
from tests.node.images import JOB_IMAGE, PREFIX, SERVICE_IMAGE, USER_ID, service_image
from tests.node.node import MEMORY_MIB, MODEL, READY_WITHIN_S, RealNode
from tests.patience import until

NAME = "127.0.0.5"
STARTS_WITHIN_S = 2 * READY_WITHIN_S
"""Its image has no compiled modules, and its file system is read-only: on a busy machine imports take minutes."""

PORT, COMPONENT = 10901, "app.kubernetes.io/component"
QUOTA = f"""\
version: 1
pools:
  - {{name: train, selector: {{node: [{NAME}]}}, uses: [training]}}
projects:
  - {{name: vision, members: {{users: [bob]}}, quota: {{train: {{training: 1}}}}}}
"""


@dataclass
class Installed:
    """A release in a namespace, its service as bob sees it, and the driver that its agent reads."""

    plane: ControlPlane
    node: RealNode
    namespace: str
    agents: str
    bob: Client
    script: Script

    def pod(self, label: str, value: str, namespace: str | None = None) -> dict[str, Any] | None:
        """The pod with a label; None: there is none."""
        found = [pod for pod in pods(self.plane, namespace or self.namespace) if _labels(pod).get(label) == value]
        assert len(found) < 2, found
        return found[0] if found else None

    def service(self) -> dict[str, Any] | None:
        return self.pod(COMPONENT, "all")

    def agent(self) -> dict[str, Any] | None:
        return self.pod(COMPONENT, "agent", self.agents)

    def running_job(self) -> tuple[str, dict[str, Any]]:
        """A job of bob with half of the first device, and its pod."""
        job = self.bob.submit(["sleep", "1000"], gpu="0.5", dir=None).id
        until(lambda: self.bob.job(job).state == "running", READY_WITHIN_S, what=self.logs)
        pod = self.pod(JOB, job)
        assert pod is not None
        return job, pod

    def process(self, pod: dict[str, Any] | None, name: str) -> int:
        """A process of a pod by its name, by the process ids of the machine."""
        assert pod is not None
        uid = pod["metadata"]["uid"]
        return until(lambda: _process(machine.processes_of(self.node.cgroup), uid, name), what=self.logs)

    def sample(self) -> SampleView | None:
        """The newest sample of the first device, if it is one of the agent."""
        found = [each for each in self.bob._list(SampleView, "samples", {}) if each.device == f"{NAME}/gpu-0"]
        return found[0] if found and found[0].utilisation_percent is not None else None

    def logs(self) -> str:
        found = []
        for namespace in {self.namespace, self.agents}:
            for each in pods(self.plane, namespace):
                path = f"/api/v1/namespaces/{namespace}/pods/{each['metadata']['name']}/log?tailLines=30"
                found += [each["metadata"]["name"], str(each["status"]), str(self.plane.request("GET", path)[1])]
        return "\n".join(found)


def _labels(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("labels") or {}
    return found


def _process(pids: list[int], uid: str, name: str) -> int | None:
    for pid in pids:
        with contextlib.suppress(OSError):
            if uid in Path(f"/proc/{pid}/cgroup").read_text() and Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return pid
    return None


@pytest.fixture(scope="module")
def node(plane: ControlPlane, driver_class: None, images: list[Path], tmp_path_factory: Any) -> Iterator[RealNode]:
    """A node with the process ids of this machine, and two fake GPUs of a DRA driver."""
    if not sees_host_processes():
        pytest.skip("this machine is a container with process ids of its own: no agent sees those of the machine here")
    if why := why_no_network():
        pytest.skip(why)
    own = service_image(tmp_path_factory.mktemp("service-image"))
    with running(RealNode(plane, 5, has_driver=True, on_machine=True), [*images, own]) as made:
        yield made


@pytest.fixture
def network(plane: ControlPlane, node: RealNode) -> Iterator[ClusterNetwork]:
    before = machine.machine().addresses
    made = ClusterNetwork(plane)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        until(lambda: machine.machine().addresses <= before, what="the addresses of Services and pods are removed")


@pytest.fixture
def hub_port() -> Iterator[int]:
    """The port of a fake hub on this machine, which knows bob."""
    thread, hub = LoopThread(), FakeHub()
    hub.users["bob"] = FakeAccount()

    async def serve() -> tuple[HTTPServer, int]:
        return serving(hub.application())

    async def close() -> None:
        server.stop()
        await server.close_all_connections()

    server, port = thread.call(serve(), 10.0)
    yield port
    thread.call(close(), 10.0)
    thread.close()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """What the fake NVML library says, in a folder that the agent mounts."""
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libnvidia-ml.so.1 with")
    folder = tmp_path / "nvml"
    folder.mkdir()
    fake_library.build(folder)
    made = Script(folder / "script")
    for index in range(2):
        made.device(index, model=MODEL, memory_mib=MEMORY_MIB, used_mib=700 * (1 - index), percent=60 * (1 - index))
        made.put(f"{index} uuid GPU-fake-dra-{NAME.replace('.', '-')}-{index}")
    made.put("system driver 615.71.01")
    return made


def values(agents: str, own: dict[str, Any]) -> dict[str, Any]:
    """The values of the release, whose agents are in a namespace of their own; ``own`` are further ones of theirs."""
    here = {"kubernetes.io/hostname": NAME}
    image, _, tag = SERVICE_IMAGE.partition(":")
    driver = {"LD_LIBRARY_PATH": "/driver", "FAKE_NVML_SCRIPT": "/driver/script"}
    agent = {
        "enabled": True, "namespace": agents, "runtimeClassName": "", "nodeSelector": here,
        "env": [{"name": name, "value": value} for name, value in driver.items()],
        "volumes": [{"name": "driver", "persistentVolumeClaim": {"claimName": "driver"}}],
        "volumeMounts": [{"name": "driver", "mountPath": "/driver", "readOnly": True}],
    }  # fmt: skip
    return {
        "image": {"name": image, "tag": tag, "pullPolicy": "Never"},
        "jobs": {"image": JOB_IMAGE, "path": f"{PREFIX}/bin", "container": {"imagePullPolicy": "Never"}},
        "volume": {"existingClaim": "jobs"}, "quotaFile": QUOTA, "pod": {"nodeSelector": here},
        "agent": agent | own,
    }  # fmt: skip


@pytest.fixture
def installed(
    request: pytest.FixtureRequest, plane: ControlPlane, node: RealNode, network: ClusterNetwork, hub_port: int,
    script: Script, tmp_path: Path,
) -> Iterator[Installed]:  # fmt: skip
    """The parameter is the level of Pod Security in the namespace of the agents, and further values of theirs."""
    level, own = request.param
    namespace, agents, state = plane.new_namespace(), plane.new_namespace(), tmp_path / "state"
    labels = {"pod-security.kubernetes.io/enforce": level}
    plane.patch(f"/api/v1/namespaces/{agents}", {"metadata": {"labels": labels}})
    state.mkdir()
    os.chown(state, USER_ID, USER_ID)
    make_volume(plane, namespace, path=str(state))
    make_volume(plane, agents, "driver", path=str(script.path.parent))
    objects = f"/api/v1/namespaces/{namespace}"
    plane.make(f"{objects}/secrets", {"metadata": {"name": "hub"}, "stringData": {TOKEN_KEY: HUB_TOKEN}})
    plane.make(f"{objects}/services", {"metadata": {"name": "hub"}, "spec": {"ports": [{"port": 8081}]}})
    network.serve(namespace, "hub", 8081, lambda: ("127.0.0.1", hub_port))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values(agents, own)))
    words = ("install", RELEASE, str(CHART), "--namespace", namespace, "--values", str(tmp_path / "values.yaml"))
    done = helm(*words, kubeconfig=plane.kubeconfig("admin"))
    assert done.returncode == 0, done.stderr
    address = network.serve(namespace, RELEASE, PORT, network.pod_of(namespace, RELEASE))
    bob = Client(f"http://{address}:{PORT}", "token-bob", environment={})
    made = Installed(plane, node, namespace, agents, bob, script)
    try:
        until(lambda: is_ready(made.service()), STARTS_WITHIN_S, what=made.logs)
        until(lambda: service_is_ready(address), READY_WITHIN_S, what=made.logs)
        yield made
    finally:
        for each in (agents, namespace):
            remove(plane, each)


def is_ready(pod: dict[str, Any] | None) -> bool:
    conditions = pod["status"].get("conditions", ()) if pod else ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def service_is_ready(address: str) -> bool:
    """Whether the controllers have opened the database, which the probe of the pod does not wait for."""
    url = f"http://{address}:{PORT}/services/gpu-quota/api/v1/ready"
    request = urllib.request.Request(url, headers={"Authorization": f"token {HUB_TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def remove(plane: ControlPlane, namespace: str) -> None:
    """Remove what has pods; the policy stays, as those of the other tests do."""
    for kind in ("deployments", "daemonsets"):
        path = f"/apis/apps/v1/namespaces/{namespace}/{kind}"
        for each in plane.get(path)["items"]:
            plane.request("DELETE", f"{path}/{each['metadata']['name']}")
    for pod in pods(plane, namespace):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        plane.patch(path, {"metadata": {"finalizers": None}})
        plane.request("DELETE", path, {"gracePeriodSeconds": 1})
    until(lambda: not pods(plane, namespace), READY_WITHIN_S, what=lambda: pods(plane, namespace))


def with_level(level: str, own: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("installed", [pytest.param((level, own), id=level)], indirect=True)


@with_level("privileged", {})
def test_service_and_agent_run_as_pods_and_an_order_kills_a_job(installed: Installed) -> None:
    agent = until(installed.agent, what=installed.logs)
    assert agent["spec"]["nodeName"] == NAME and agent["spec"]["hostPID"]
    job, pod = installed.running_job()
    installed.script.add(f"0 process {installed.process(pod, 'sleep')} 500 60")
    until(lambda: installed.bob.job(job).utilised_milli == 600, READY_WITHIN_S, what=installed.logs)
    found = installed.sample()
    assert found is not None and (found.node, found.memory_used_mib) == (NAME, 700)

    (pulse,) = agent["spec"]["containers"][0]["livenessProbe"]["exec"]["command"][2:]
    inside = ["nsenter", f"--target={installed.process(agent, 'python')}", "--mount", "--", "sh", "-c", pulse]
    until(lambda: subprocess.run(inside, check=False, timeout=20).returncode == 0, what="its liveness probe succeeds")

    fence = installed.plane.get(f"/api/v1/namespaces/{installed.namespace}/configmaps/{FENCE}")
    path = f"/api/v1/namespaces/{installed.namespace}/pods/{pod['metadata']['name']}"
    installed.plane.patch(path, {"metadata": {"annotations": {KILL: fence["data"]["fencing"]}}})
    until(lambda: installed.bob.job(job).state == "failed", READY_WITHIN_S, what=installed.logs)
    assert installed.bob.job(job).exit_status == -9
    (state,) = (installed.agent() or {})["status"]["containerStatuses"]
    assert state["restartCount"] == 0


@with_level("restricted", yaml.safe_load(EXAMPLES[-1])["agent"])
def test_an_agent_under_restricted_reads_devices_and_no_processes(installed: Installed) -> None:
    job, pod = installed.running_job()
    installed.script.add(f"0 process {installed.process(pod, 'sleep')} 500 60")
    found = until(installed.sample, READY_WITHIN_S, what=installed.logs)
    assert (found.utilisation_percent, found.memory_used_mib) == (60, 700)
    seen = until(lambda: each if (each := installed.bob.job(job)).utilised_unknown else None)
    assert seen.utilised_milli is None
