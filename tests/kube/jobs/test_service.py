"""The whole path on a real cluster: a job that is submitted by REST becomes a pod with a claim, runs and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import IMAGE_ID, FakeKubelet
from tests.kube.fractions.devices import DRIVER, MEMORY_MIB, device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES
from tests.kube.service import KubernetesService
from tests.kube.world import install, make_volume
from tests.patience import until

OUTSIDE = {
    "backend": "kubernetes", "kubernetes_config": "/nowhere", "kubernetes_namespace": "jobs",
    "kubernetes_image": "none", "kubernetes_volume_claim": "jobs", "kubernetes_path": "/usr/local/bin",
}  # fmt: skip
"""The settings of a service outside of the cluster."""


@pytest.fixture
def cluster(dra_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The namespace of a node with one device, whose volume is the state folder of the service."""
    dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0")))
    namespace = install(dra_plane)
    make_volume(dra_plane, namespace, "datasets")
    kubelet = FakeKubelet(dra_plane, namespace, "here", tmp_path / "state")
    kubelet.start()
    yield namespace
    kubelet.stop()
    dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/here")


def settings_of(plane: ControlPlane, namespace: str, state: Path) -> dict[str, Any]:
    own = {"kubernetes_config": plane.kubeconfig(namespace), "kubernetes_namespace": namespace}
    return {"state_dir": str(state), **OUTSIDE, **own}


@pytest.fixture
def service(dra_plane: ControlPlane, cluster: str, tmp_path: Path) -> Iterator[KubernetesService]:
    made = KubernetesService(tmp_path, settings_of(dra_plane, cluster, tmp_path / "state"))
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.end()


def pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def test_a_job_submitted_by_rest_runs_as_a_pod_and_ends(
    dra_plane: ControlPlane, cluster: str, service: KubernetesService, tmp_path: Path
) -> None:
    bob, go_on = service.client(), tmp_path / "go-on"
    script = (
        f'echo "attempt $GPU_QUOTA_ATTEMPT has $GPU_QUOTA_MILLI"; while [ ! -e {go_on} ]; do sleep 0.05; done; exit 3'
    )
    job = bob.submit(["sh", "-c", script], gpu="0.5", dir=None)
    until(lambda: bob.job(job.id).state == "running", what=service.log)
    (pod,) = pods(dra_plane, cluster)
    assert pod["spec"]["nodeName"] == "here", "bound by kube-scheduler"
    assert pod["metadata"]["annotations"]["hub.jupyter.org/username"] == "bob"
    claims = dra_plane.get(f"{RESOURCES}/namespaces/{cluster}/resourceclaims")["items"]
    (given,) = claims[0]["status"]["allocation"]["devices"]["results"]
    assert (given["driver"], given["device"]) == (DRIVER, "gpu-0")
    assert given["consumedCapacity"] == {"memory": f"{MEMORY_MIB // 2}Mi"}
    go_on.touch()
    until(lambda: bob.job(job.id).state == "failed", what=service.log)
    assert bob.job(job.id).exit_status == 3
    assert job.logs() == "attempt 1 has 500\n"
    until(lambda: not pods(dra_plane, cluster), what="the pod is removed after its end is stored")


def test_code_and_outputs_travel_by_the_volume(service: KubernetesService, tmp_path: Path) -> None:
    bob, code = service.client(), tmp_path / "code"
    code.mkdir()
    (code / "train.sh").write_text('echo trained > "$GPU_QUOTA_OUTPUT_DIR/model"\n')
    job = bob.submit("sh train.sh", gpu="1", dir=code)
    until(lambda: bob.job(job.id).state == "succeeded", what=service.log)
    assert [each.path for each in job.outputs()] == ["model"]


def test_a_job_has_the_image_of_its_environment_and_the_claims_of_its_data(
    dra_plane: ControlPlane, cluster: str, service: KubernetesService, tmp_path: Path
) -> None:
    bob = service.client()
    (tmp_path / "state/images").mkdir()  # the fake kubelet has one volume for all claims
    (tmp_path / "state/images/VERSION").write_text("2026-11\n")
    assert [each.name for each in bob.environments()] == ["torch"], "an interpreter of one machine is not in pods"
    assert [(each.name, each.path) for each in bob.data()] == [("images", "/data/images")]
    job = bob.submit(
        ["sh", "-c", "cat $GPU_QUOTA_DATA_IMAGES/VERSION; sleep 1"], gpu="1", dir=None, environment="torch"
    )
    (pod,) = until(lambda: pods(dra_plane, cluster), what=service.log)
    assert pod["spec"]["containers"][0]["image"] == "site/torch:2"
    assert pod["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"] == "datasets"
    until(lambda: bob.job(job.id).state == "succeeded", what=service.log)
    assert job.logs() == "2026-11\n"
    assert bob.provenance(job.id).image == IMAGE_ID


def test_work_continues_while_the_service_is_restarted(
    dra_plane: ControlPlane, cluster: str, service: KubernetesService, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    job = service.client().submit(["sh", "-c", f"while [ ! -e {go_on} ]; do sleep 0.05; done"], gpu="1", dir=None)
    until(lambda: service.client().job(job.id).state == "running", what=service.log)
    service.stop()
    go_on.touch()
    until(lambda: pods(dra_plane, cluster)[0]["status"]["phase"] == "Succeeded")
    second = KubernetesService(tmp_path, settings_of(dra_plane, cluster, tmp_path / "state"))
    try:
        second.wait_until_ready()
        until(lambda: second.client().job(job.id).state == "succeeded", what=second.log)
        assert second.client().job(job.id).attempt == 1
    finally:
        second.end()


def test_a_service_without_credentials_says_where_it_looked(tmp_path: Path) -> None:
    service = KubernetesService(tmp_path, {"state_dir": str(tmp_path / "state"), **OUTSIDE})
    try:
        until(lambda: service.log().count("No credentials for a cluster in /nowhere") >= 2, what=service.log)
        assert "Traceback" not in service.log()
    finally:
        service.end()
