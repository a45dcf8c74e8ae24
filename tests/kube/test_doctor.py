"""``doctor`` on a real API server: what it reports of a cluster that is well, and of one that is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.backends.kubernetes.permissions import PERMISSIONS
from jupyter_gpu_quota.cli import main
from tests.kube.chart.release import PATHS
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fractions.devices import device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES
from tests.kube.jobs.test_permissions import without
from tests.kube.jobs.test_service import settings_of
from tests.kube.world import install
from tests.patience import until

WHOLE_ONLY = {"allowMultipleAllocations": False, "capacity": {"memory": {"value": "81559Mi"}}}


@pytest.fixture
def namespace(dra_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """A node with a device that can be shared and one that cannot, and one whose two devices a plugin counts."""
    found = install(dra_plane)
    slices = f"{RESOURCES}/resourceslices"
    dra_plane.make(slices, resource_slice("here", device("gpu-0"), device("gpu-1", **WHOLE_ONLY)))
    rack = {"topology.kubernetes.io/rack": "r1"}
    counted = FakeKubelet(dra_plane, found, "there", tmp_path / "state", capacity={"nvidia.com/gpu": "2"}, labels=rack)
    nodes = [FakeKubelet(dra_plane, found, "here", tmp_path / "state", labels=rack), counted]
    for each in nodes:
        each.start()
    yield found
    for each in nodes:
        each.stop()
    dra_plane.request("DELETE", f"{slices}/here")


def doctor(settings: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The results by their names."""
    environment = {
        "JUPYTER_GPU_QUOTA_SETTINGS": json.dumps(settings),
        "JUPYTERHUB_USER": "",
        "JUPYTERHUB_API_TOKEN": "",
    }
    done = CliRunner().invoke(main, ["doctor", "--json", "--url", "http://127.0.0.1:1"], env=environment)
    assert done.exit_code in (0, 1), done.output
    return {each["what"]: each for each in json.loads(done.stdout)}


def test_a_cluster_that_is_well(dra_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    settings = settings_of(dra_plane, namespace, tmp_path / "state")
    until(lambda: doctor(settings)["fencing"]["verdict"] == "ok", what="the policy is in force")
    found = doctor(settings)
    assert {name: found[name]["verdict"] for name in ("cluster", "permissions", "fencing", "devices", "other use")} == {
        "cluster": "ok", "permissions": "ok", "fencing": "ok", "devices": "ok", "other use": "ok",
    }  # fmt: skip
    assert found["cluster"]["found"].startswith("Kubernetes v1.36")
    assert found["devices"]["found"] == "4 devices on 2 nodes: 2 of a DRA driver, 2 of a device plugin"
    assert found["topology"]["found"] == "1 group of 2 nodes by topology.kubernetes.io/rack"
    assert found["fractions"]["found"].startswith("dra: parts of 1 device are claimed by memory")
    assert "1: its driver gives a device to one claim only" in found["fractions"]["found"]
    assert "gpus" not in found, "the devices of this machine are not those of the jobs"


def test_missing_permissions_are_named_with_their_consequence(
    dra_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    for permission in PERMISSIONS:
        if (permission.resource, permission.verb) in (("secrets", "create"), ("nodes", "list")):
            without(dra_plane, namespace, permission)
    found = doctor(settings_of(dra_plane, namespace, tmp_path / "state"))
    assert found["permissions"]["verdict"] == "fail"
    assert found["permissions"]["found"] == (
        "this account may not create secrets (a job with secret variables does not start); "
        "list nodes in the cluster (there is no inventory)"
    )
    assert found["devices"]["verdict"] == "skip"


def test_without_the_policy_the_fence_is_not_in_force(dra_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    binding = f"{PATHS['ValidatingAdmissionPolicyBinding']}/{namespace}.gpu-quota-fencing"
    dra_plane.request("DELETE", binding)
    settings = settings_of(dra_plane, namespace, tmp_path / "state")
    until(lambda: doctor(settings)["fencing"]["verdict"] == "fail", what="the API server follows")
    assert "Install the admission policy" in doctor(settings)["fencing"]["found"]


def test_the_use_by_others_is_listed(dra_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    place = {"nodeName": "there", "containers": [{"name": "c", "image": "i", **limits}]}
    dra_plane.make("/api/v1/namespaces/default/pods", {"metadata": {"name": "foreign"}, "spec": place})
    try:
        found = doctor(settings_of(dra_plane, namespace, tmp_path / "state"))
        assert (found["other use"]["verdict"], found["other use"]["found"]) == (
            "warn",
            "in use by other workloads: there/1",
        )
    finally:
        dra_plane.request("DELETE", "/api/v1/namespaces/default/pods/foreign", {"gracePeriodSeconds": 0})


def test_a_taint_that_jobs_do_not_tolerate_is_named(dra_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    taints = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    dra_plane.patch("/api/v1/nodes/there", {"spec": {"taints": taints}})
    settings = settings_of(dra_plane, namespace, tmp_path / "state")
    found = doctor(settings)["taints"]
    assert found["verdict"] == "warn" and found["found"].endswith(": there: team=vision:NoSchedule")
    tolerations = [{"key": "team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}]
    assert doctor(settings | {"kubernetes_pod": {"tolerations": tolerations}})["taints"]["verdict"] == "ok"
    dra_plane.patch("/api/v1/nodes/there", {"spec": {"unschedulable": True}})
    assert doctor(settings)["taints"]["verdict"] == "ok", "the node is cordoned"


def test_an_api_server_that_is_away(tmp_path: Path, dra_plane: ControlPlane) -> None:
    config = json.loads(Path(dra_plane.kubeconfig("admin")).read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "away").write_text(json.dumps(config))
    settings = settings_of(dra_plane, "admin", tmp_path / "state") | {"kubernetes_config": str(tmp_path / "away")}
    found = doctor(settings)["cluster"]
    assert found["verdict"] == "fail" and "the API server cannot be read" in found["found"]
