"""The claim of a notebook's pod on a real API server: errors, claims of other pods, missing permissions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, ResourceV1Api
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.kube_config import load_kube_config

from jupyter_gpu_quota.backends.rendering.pods import REQUIRED, pinned
from jupyter_gpu_quota.hub.pod_claim import ClaimFailed, PodClaim
from tests.kube.control_plane import ControlPlane
from tests.kube.faults.proxy import FaultyProxy
from tests.kube.fractions.devices import device_class
from tests.kube.fractions.test_dra import RESOURCES
from tests.kube.notebooks.test_spawner import hub_account

Json = dict[str, Any]

LABELS = {"gpu-quota.jupyter.org/notebook": "N1"}
POD = {"metadata": {"name": "jupyter-ben", "uid": "uid-now"}}


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.new_namespace()


@pytest.fixture
async def clients() -> AsyncIterator[list[ApiClient]]:
    made: list[ApiClient] = []
    yield made
    for each in made:
        await each.close()


async def pod_claim(clients: list[ApiClient], kubeconfig: str, namespace: str, timeout_s: float = 5) -> PodClaim:
    configuration = Configuration()
    await load_kube_config(kubeconfig, client_configuration=configuration)
    clients.append(ApiClient(configuration))
    request = {"name": "gpu-0", "exactly": {"deviceClassName": device_class()["metadata"]["name"]}}
    metadata = {"name": "gq-n1", "namespace": namespace, "labels": LABELS}
    claim = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
        "spec": {"devices": {"requests": [request]}},
    }  # fmt: skip
    return PodClaim(ResourceV1Api(clients[-1]), claim, POD, timeout_s)


def owners(plane: ControlPlane, namespace: str) -> list[str]:
    found = plane.get(f"{RESOURCES}/namespaces/{namespace}/resourceclaims/gq-n1")
    return [each["uid"] for each in found["metadata"]["ownerReferences"]]


def make_claim_of_another(plane: ControlPlane, namespace: str, labels: dict[str, str]) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "jupyter-ben", "uid": "uid-before"}
    request = {"name": "gpu-0", "exactly": {"deviceClassName": "any"}}
    body = {
        "metadata": {"name": "gq-n1", "labels": labels, "ownerReferences": [owner]},
        "spec": {"devices": {"requests": [request]}},
    }
    plane.make(f"{RESOURCES}/namespaces/{namespace}/resourceclaims", body)


def test_the_node_is_added_to_the_affinity_of_the_site() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [zone]}, {"matchFields": [{"key": "metadata.name", "operator": "NotIn"}]}]
    others = {"podAntiAffinity": {"preferred": []}}
    found = pinned({"nodeAffinity": {"more": 1, REQUIRED: {"nodeSelectorTerms": terms}}, **others}, "n1")
    here = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    assert found == {
        "nodeAffinity": {"more": 1, REQUIRED: {"nodeSelectorTerms": [
            {"matchExpressions": [zone], "matchFields": here},
            {"matchFields": [*terms[1]["matchFields"], *here]},
        ]}},
        **others,
    }  # fmt: skip
    assert pinned({}, "n1") == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": here}]}}}


@pytest.mark.parametrize("seed", range(4))
async def test_errors_of_the_api_server_are_tried_again(
    control_plane: ControlPlane, namespace: str, clients: list[ApiClient], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kube.faults.proxy.STATUSES", (409, 429, 500, 503))
    proxy = FaultyProxy(control_plane, seed, chance=0.6)
    try:
        claim = await pod_claim(clients, proxy.kubeconfig("admin"), namespace)
        await claim.create(60)
    finally:
        proxy.stop()
    assert owners(control_plane, namespace) == ["uid-now"]


async def test_a_claim_of_the_pod_before_is_replaced(
    control_plane: ControlPlane, namespace: str, clients: list[ApiClient]
) -> None:
    make_claim_of_another(control_plane, namespace, LABELS)
    await (await pod_claim(clients, control_plane.kubeconfig("admin"), namespace)).create(20)
    assert owners(control_plane, namespace) == ["uid-now"]


async def test_a_claim_of_somebody_else_is_not_touched(
    control_plane: ControlPlane, namespace: str, clients: list[ApiClient]
) -> None:
    make_claim_of_another(control_plane, namespace, {})
    claim = await pod_claim(clients, control_plane.kubeconfig("admin"), namespace)
    with pytest.raises(ClaimFailed, match="the claim gq-n1 is of another pod"):
        await claim.create(1)
    assert owners(control_plane, namespace) == ["uid-before"]


async def test_a_missing_permission_is_named(
    control_plane: ControlPlane, namespace: str, clients: list[ApiClient]
) -> None:
    claim = await pod_claim(clients, hub_account(control_plane, namespace), namespace)
    with pytest.raises(ClaimFailed, match=r"403 .*needs permission to create, get and delete resourceclaims"):
        await claim.create(5)


async def test_another_refusal_has_its_status_and_message(
    control_plane: ControlPlane, namespace: str, clients: list[ApiClient]
) -> None:
    claim = await pod_claim(clients, control_plane.kubeconfig("admin"), namespace)
    claim._claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "Not A Name"
    with pytest.raises(ClaimFailed, match=r"422 .*deviceClassName") as refused:
        await claim.create(5)
    assert "permission" not in str(refused.value)


async def test_an_api_server_that_is_away_is_named(
    control_plane: ControlPlane, namespace: str, clients: list[ApiClient], tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.write_text(
        Path(control_plane.kubeconfig("admin")).read_text().replace(control_plane.url, "http://127.0.0.1:1")
    )
    claim = await pod_claim(clients, str(away), namespace)
    with pytest.raises(ClaimFailed, match="after 1 s: the API server does not answer"):
        await claim.create(1)
