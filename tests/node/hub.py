"""A real hub with KubeSpawner, whose service runs jobs, and whose notebooks run, as pods of real nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hub.real_hub import RealHub, real_hub
from tests.kube.control_plane import ControlPlane, free_port
from tests.kube.jobs.test_service import OUTSIDE
from tests.kube.notebooks.test_spawner import hub_account
from tests.node.images import JOB_IMAGE, PREFIX
from tests.node.node import RealNode
from tests.node.world import NEVER_PULLED

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


def state_dir(folder: Path) -> Path:
    """The state folder of the hub's service, which is the volume of its jobs."""
    return folder / "hub" / "state"


@contextmanager
def node_hub(plane: ControlPlane, namespace: str, folder: Path, quota: str, node: RealNode) -> Iterator[RealHub]:
    """A hub that is up. Its notebooks use the network of this machine, with the address of ``node``."""
    (folder / "quota.yaml").write_text(quota)
    settings = {
        **OUTSIDE, "kubernetes_config": plane.kubeconfig(namespace), "kubernetes_namespace": namespace,
        "kubernetes_image": JOB_IMAGE, "kubernetes_path": f"{PREFIX}/bin", "kubernetes_container": NEVER_PULLED,
        "quota_file": str(folder / "quota.yaml"),
    }  # fmt: skip
    before = CONFIG.format(
        kubeconfig=hub_account(plane, namespace), settings=settings, namespace=namespace, image=JOB_IMAGE,
        address=node.name, port=free_port(),
    )  # fmt: skip
    with real_hub(folder / "hub", before=before) as found:
        yield found


def seen_by_kernel(hub: RealHub, user: str) -> dict[str, Any]:
    """The account and the variables of a new kernel of a user's server."""
    found: dict[str, Any] = json.loads(hub.run_in_kernel(hub.person(user), SEEN))
    return found
