"""Notebooks as pods: a real hub with KubeSpawner on a real API server, and a fake kubelet that runs the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub.real_hub import RealHub, real_hub
from tests.kube.chart.release import PATHS
from tests.kube.control_plane import ControlPlane, free_port
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fractions.devices import MEMORY_MIB, device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES, consumed_in
from tests.kube.jobs.test_service import OUTSIDE, pods
from tests.kube.world import install
from tests.patience import until

QUOTA = """\
version: 1
pools:
  - {name: build, selector: {gpu_model: [NVIDIA H100]}, uses: [notebook]}
projects:
  - name: build
    members: {groups: [builders]}
    quota: {build: {notebook: 1}}
"""

CONFIG = """
from kubernetes_asyncio.config import kube_config
kube_config.KUBE_CONFIG_DEFAULT_LOCATION = {kubeconfig!r}  # imported before this file
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.GPUQuota.simulated_devices = []
for name, value in {settings!r}.items():
    setattr(c.GPUQuota, name, value)
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.image = "none"
c.KubeSpawner.port = {port}
c.KubeSpawner.storage_pvc_ensure = False
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.extra_labels = {{"site": "ours"}}
def note(spawner, pod):
    pod.metadata.annotations["example.org/seen-by-hook"] = pod.spec.resource_claims[0]["name"] if (
        pod.spec.resource_claims) else "none"
    return pod
c.KubeSpawner.modify_pod_hook = note
"""

HUB_RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "persistentvolumeclaims"],
        "verbs": ["get", "watch", "list", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
]
"""The permissions of the hub in Zero to JupyterHub; the chart adds that for claims."""


def hub_account(plane: ControlPlane, namespace: str) -> str:
    """Credentials of the hub's service account, as Zero to JupyterHub makes it."""
    accounts = PATHS["ServiceAccount"].format(namespace)
    plane.make(accounts, {"metadata": {"name": "hub"}})
    plane.make(PATHS["Role"].format(namespace), {"metadata": {"name": "hub"}, "rules": HUB_RULES})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hub"}
    subject = {"kind": "ServiceAccount", "name": "hub", "namespace": namespace}
    binding = {"metadata": {"name": "hub"}, "roleRef": reference, "subjects": [subject]}
    plane.make(PATHS["RoleBinding"].format(namespace), binding)
    token = plane.make(f"{accounts}/hub/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    return plane.kubeconfig_of_token(f"{namespace}-hub", token)


@pytest.fixture
def namespace(dra_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0")))
    found = install(dra_plane)
    kubelet = FakeKubelet(dra_plane, found, "here", tmp_path / "hub" / "state")
    kubelet.start()
    yield found
    kubelet.stop()
    dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/here")


@pytest.fixture
def hub(dra_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[RealHub]:
    settings = {
        **OUTSIDE, "kubernetes_config": dra_plane.kubeconfig(namespace), "kubernetes_namespace": namespace,
        "quota_file": str(tmp_path / "quota.yaml"), "spawn_timeout_s": 20,
    }  # fmt: skip
    (tmp_path / "quota.yaml").write_text(QUOTA)
    before = CONFIG.format(
        kubeconfig=hub_account(dra_plane, namespace), settings=settings, namespace=namespace, port=free_port()
    )
    with real_hub(tmp_path / "hub", before=before) as found:
        yield found


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


@pytest.mark.hub
def test_a_notebook_is_a_pod_with_a_claim_of_its_slice(dra_plane: ControlPlane, namespace: str, hub: RealHub) -> None:
    hub.start("ben", {"gpu_size": "1/4"})
    (pod,) = pods(dra_plane, namespace)
    assert pod["spec"]["nodeName"] == "here"
    assert (pod["metadata"]["labels"]["site"], pod["metadata"]["labels"]["gpu-quota.jupyter.org/hub"]) == (
        "ours",
        "local",
    )
    assert pod["metadata"]["annotations"]["example.org/seen-by-hook"] == "gpu", "the hub's own hook comes afterwards"
    assert consumed_in(dra_plane, namespace) == {"gpu-0": [f"{MEMORY_MIB // 4}Mi"]}
    found = variables(pod)
    assert "250" in found["JUPYTER_GPU_QUOTA_SHARE"]
    assert not {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "PYTHONSTARTUP"} & found.keys()
    hub.call("DELETE", "/users/ben/server")
    until(lambda: not pods(dra_plane, namespace))
    until(lambda: consumed_in(dra_plane, namespace) == {}, what="the claim goes with its pod")
    until(lambda: "booked" not in str(hub.service("GET", "/notebooks?user=ben").body), what="the slice is returned")
    hub.start("cat", {})
    (pod,) = pods(dra_plane, namespace)
    assert variables(pod)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "resourceClaims" not in pod["spec"] and "gpu-quota.jupyter.org/hub" not in pod["metadata"]["labels"]
