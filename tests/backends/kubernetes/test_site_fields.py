"""A site's fields beside ours: lists are joined, and a name that both have is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kubernetes_asyncio.client import V1Container, V1Pod, V1PodSpec, V1ResourceRequirements

from jupyter_gpu_quota.backends.protocol import DataSource
from jupyter_gpu_quota.backends.rendering.notebooks import NotebookPod
from jupyter_gpu_quota.backends.rendering.pods import rank_pod, site_clash
from jupyter_gpu_quota.backends.rendering.reservations import reservation_pod
from jupyter_gpu_quota.backends.rendering.shares import GATES, reserved_share
from jupyter_gpu_quota.backends.rendering.site_fields import SiteFieldClash
from jupyter_gpu_quota.hub.kube_spawner import _add_devices
from tests.backends.kubernetes.test_pods import OWNER, SETTINGS, one_rank

HOMES = {"name": "homes", "persistentVolumeClaim": {"claimName": "homes"}}
AT_HOME = {"name": "homes", "mountPath": "/home/jovyan"}


def container_of(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = rank_pod(one_rank(), replace(SETTINGS, container=fields), OWNER)["spec"]["containers"][0]
    return found


def test_the_volumes_of_a_site_are_mounted_beside_those_of_the_job() -> None:
    site = replace(SETTINGS, pod={"volumes": [HOMES]}, container={"volumeMounts": [AT_HOME]})
    spec = rank_pod(one_rank(), site, OWNER)["spec"]
    assert [each["name"] for each in spec["volumes"]] == ["jobs", "homes"]
    mounts = spec["containers"][0]["volumeMounts"]
    assert [each["mountPath"] for each in mounts] == [
        "/gpu-quota/work", "/gpu-quota/checkpoint", "/gpu-quota/outputs", "/gpu-quota/run", "/home/jovyan",
    ]  # fmt: skip
    assert site_clash(site) == ""


def test_a_site_s_variables_are_defaults_of_those_of_the_job() -> None:
    plain = container_of()["env"]
    extra = {"name": "HTTPS_PROXY", "value": "http://proxy"}
    path = {"name": "GPU_QUOTA_MILLI", "value": "site"}
    assert container_of(env=[extra, path])["env"] == [extra, path, *plain], "Kubernetes takes the last one of a name"


def test_a_site_s_variable_is_a_default_of_a_secret_of_the_job() -> None:
    """Kubernetes takes a variable of env rather than one of envFrom, where secrets are."""
    token, proxy = ({"name": name, "value": "site"} for name in ("HF_TOKEN", "HTTPS_PROXY"))
    site = replace(SETTINGS, container={"env": [token, proxy]})
    plain = container_of()["env"]
    (found,) = rank_pod(one_rank(secrets=("HF_TOKEN",)), site, OWNER)["spec"]["containers"]
    assert found["env"] == [proxy, *plain]


def test_a_sidecar_of_a_site_does_not_replace_the_job() -> None:
    spec = rank_pod(one_rank(), replace(SETTINGS, pod={"containers": [{"name": "proxy"}]}), OWNER)["spec"]
    assert [each["name"] for each in spec["containers"]] == ["job", "proxy"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"pod": {"volumes": [{"name": "jobs", "emptyDir": {}}]}},
            "c.GPUQuota.kubernetes_pod has an entry of volumes with the name jobs, which the pod has already",
            id="the volume of all jobs",
        ),
        pytest.param(
            {"container": {"volumeMounts": [{"name": "x", "mountPath": "/gpu-quota/outputs/"}]}},
            "c.GPUQuota.kubernetes_container has an entry of volumeMounts with the mountPath /gpu-quota/outputs, which "
            "the pod has already",
            id="the outputs of the job",
        ),
        pytest.param(
            {"pod": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}},
            "c.GPUQuota.kubernetes_pod has an entry of resourceClaims with the name gpu, which the pod has already",
            id="the claim of its devices",
        ),
        pytest.param(
            {"container": {"resources": {"claims": [{"name": "gpu"}]}}},
            "c.GPUQuota.kubernetes_container has an entry of claims with the name gpu, which the pod has already",
            id="the claim of its container",
        ),
        pytest.param(
            {"pod": {"containers": [{"name": "job"}]}},
            "c.GPUQuota.kubernetes_pod has an entry of containers with the name job, which the pod has already",
            id="the job's container",
        ),
    ],
)
def test_a_name_that_the_pod_has_already_is_refused(fields: dict[str, Any], message: str) -> None:
    assert site_clash(replace(SETTINGS, **fields)) == f"{message}: rename it."


@pytest.mark.parametrize("tolerations", ["gpu", {"operator": "Exists"}, ["gpu"], 5])
def test_tolerations_are_a_list_of_objects(tolerations: Any) -> None:
    found = site_clash(replace(SETTINGS, pod={"tolerations": tolerations}))
    assert found.startswith("c.GPUQuota.kubernetes_pod has tolerations that are not a list of objects")
    for given in (None, [], [{"operator": "Exists"}]):
        assert site_clash(replace(SETTINGS, pod={"tolerations": given})) == ""


def test_the_data_of_a_job_may_clash_with_a_mount_of_the_site() -> None:
    data = DataSource(variable="D", path=None, claim="d", sub_path=None, mount="/home/jovyan", read_only=True)
    site = replace(SETTINGS, pod={"volumes": [HOMES]}, container={"volumeMounts": [AT_HOME]})
    with pytest.raises(SiteFieldClash, match="the mountPath /home/jovyan, which the pod has already"):
        rank_pod(one_rank(data=(data,)), site, OWNER)


def test_a_reservation_has_tolerations_of_the_site_and_none_of_its_volumes() -> None:
    fields = {"tolerations": [{"operator": "Exists"}], "volumes": [HOMES], "schedulingGates": [{"name": "site"}]}
    spec = reservation_pod("gpu01/0", 7, replace(SETTINGS, pod=fields))["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert not {"volumes", "schedulingGates"} & spec.keys()


# --- notebooks --------------------------------------------------------------------------------------------------------
def pod(**spec: Any) -> V1Pod:
    """A pod of KubeSpawner."""
    container = V1Container(name="notebook", resources=V1ResourceRequirements(claims=spec.pop("claims", None)))
    made = V1Pod(spec=V1PodSpec(containers=[container], **spec))
    made.metadata = type("Metadata", (), {"annotations": None})()
    return made


CLAIM = NotebookPod(claim={"metadata": {"name": "gq-n"}})


def test_a_site_s_claims_and_gates_stay_in_the_pod_of_a_notebook() -> None:
    made = pod(resource_claims=[{"name": "nic", "resourceClaimName": "nic"}], claims=[{"name": "nic"}])
    _add_devices(made, CLAIM)
    assert made.spec.resource_claims == [
        {"name": "gpu", "resourceClaimName": "gq-n"}, {"name": "nic", "resourceClaimName": "nic"},
    ]  # fmt: skip
    assert made.spec.containers[0].resources.claims == [{"name": "gpu"}, {"name": "nic"}]
    gated = pod(scheduling_gates=[{"name": "site"}])
    _add_devices(gated, NotebookPod(share=reserved_share("hub", "n/0", 500)))
    assert gated.spec.scheduling_gates == [*GATES, {"name": "site"}]


def test_a_claim_of_the_site_with_our_name_is_refused() -> None:
    with pytest.raises(SiteFieldClash, match="extra_pod_config has an entry of resourceClaims with the name gpu"):
        _add_devices(pod(resource_claims=[{"name": "gpu", "resourceClaimName": "x"}]), CLAIM)
