"""Notebooks as real pods: a real hub with KubeSpawner, a server in a container, and a kernel that sees its share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.amounts import memory_share_mib
from tests.hub.real_hub import RealHub, real_hub
from tests.kube.control_plane import ControlPlane, free_port
from tests.kube.test_service import OUTSIDE, pods
from tests.kube.test_spawner import hub_account
from tests.kube.world import install
from tests.node.images import JOB_IMAGE, PREFIX
from tests.node.node import MEMORY_MIB, MODEL, RealNode
from tests.node.world import NEVER_PULLED
from tests.patience import until

QUOTA = f"""\
version: 1
pools:
  - {{name: build, selector: {{gpu_model: [{MODEL}]}}, uses: [notebook]}}
projects:
  - name: build
    members: {{groups: [builders]}}
    quota: {{build: {{notebook: 1}}}}
"""

CONFIG = """
from kubernetes_asyncio.config import kube_config
kube_config.KUBE_CONFIG_DEFAULT_LOCATION = {kubeconfig!r}  # imported before this file
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.GPUQuota.simulated_devices = []
for name, value in {settings!r}.items():
    setattr(c.GPUQuota, name, value)
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.image, c.KubeSpawner.image_pull_policy = {image!r}, "Never"
c.KubeSpawner.ip, c.KubeSpawner.port = {address!r}, {port}
c.KubeSpawner.extra_pod_config = {{"hostNetwork": True}}  # the hub listens on the loopback alone
c.KubeSpawner.storage_pvc_ensure = False
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.mem_limit = "1G"
"""

SEEN = """
import json, os
names = ("NVIDIA_VISIBLE_DEVICES", "GPU_QUOTA_MILLI", "GPU_QUOTA_MEMORY_MIB")
print(json.dumps({"uid": os.getuid(), **{name: os.environ.get(name) for name in names}}))
"""


@pytest.fixture
def namespace(plane: ControlPlane, tmp_path: Path) -> str:
    return install(plane, str(tmp_path))


@pytest.fixture
def hub(plane: ControlPlane, node: RealNode, namespace: str, tmp_path: Path) -> Iterator[RealHub]:
    (tmp_path / "quota.yaml").write_text(QUOTA)
    settings = {
        **OUTSIDE, "kubernetes_config": plane.kubeconfig(namespace), "kubernetes_namespace": namespace,
        "kubernetes_image": JOB_IMAGE, "kubernetes_path": f"{PREFIX}/bin", "kubernetes_container": NEVER_PULLED,
        "quota_file": str(tmp_path / "quota.yaml"),
    }  # fmt: skip
    before = CONFIG.format(
        kubeconfig=hub_account(plane, namespace), settings=settings, namespace=namespace, image=JOB_IMAGE,
        address=node.name, port=free_port(),
    )  # fmt: skip
    with real_hub(tmp_path / "hub", before=before) as found:
        yield found


@pytest.mark.hub
def test_a_notebook_with_an_eighth_rides_on_a_reservation(plane: ControlPlane, namespace: str, hub: RealHub) -> None:
    hub.start("ann", {"gpu_size": "1/8"})
    by_name = {pod["metadata"]["name"]: pod for pod in pods(plane, namespace)}
    (reservation,) = [pod for name, pod in by_name.items() if name.startswith("gq-device-")]
    limits = [pod["spec"]["containers"][0]["resources"].get("limits", {}) for pod in by_name.values()]
    assert [each for each in limits if "nvidia.com/gpu" in each] == [{"nvidia.com/gpu": "1"}], "the reservation's alone"
    seen = json.loads(hub.run_in_kernel(hub.person("ann"), SEEN))
    uuid = reservation["metadata"]["annotations"]["gpu-quota.jupyter.org/device-uuid"]
    assert uuid.startswith("GPU-fake-")
    assert seen == {
        "uid": 1000, "NVIDIA_VISIBLE_DEVICES": uuid, "GPU_QUOTA_MILLI": "125",
        "GPU_QUOTA_MEMORY_MIB": str(memory_share_mib(MEMORY_MIB, 125)),
    }  # fmt: skip
    hub.stop("ann")
    until(lambda: not pods(plane, namespace), what="the reservation goes after its last share")
