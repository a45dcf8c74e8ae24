"""The backend that the settings select, and what they lack."""

from __future__ import annotations

from pathlib import Path

import pytest
from traitlets import TraitError

from jupyter_gpu_quota.backends.clusters.backend import ClustersBackend
from jupyter_gpu_quota.backends.clusters.outputs import ClustersOutputs
from jupyter_gpu_quota.backends.kubernetes.outputs import ClusterOutputs
from jupyter_gpu_quota.backends.local.backend import LocalBackend
from jupyter_gpu_quota.deployment import selected_backend
from jupyter_gpu_quota.deployment.selected_backend import (
    BackendUnavailable,
    backend_of,
    credentials,
    pod_settings,
    readers_of,
)
from jupyter_gpu_quota.settings import GPUQuota, cluster_settings, service_settings

KUBECONFIG = """\
{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
 "users": [{"name": "u", "user": {"token": "t"}}],
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
"""


def kubernetes(**more: object) -> GPUQuota:
    needed = {"kubernetes_image": "i", "kubernetes_volume_claim": "jobs", "kubernetes_namespace": "n"}
    return GPUQuota(backend="kubernetes", **needed | more)


def test_the_default_is_this_machine(tmp_path: Path) -> None:
    devices = [{"model": "S", "memory_mib": 1, "count": 1}]
    backend = backend_of(GPUQuota(state_dir=str(tmp_path), simulated_devices=devices))
    assert isinstance(backend, LocalBackend)
    backend.close()


def test_kubernetes_is_opened_by_its_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    readers = readers_of(kubernetes(state_dir=str(tmp_path), kubernetes_config=str(tmp_path / "kubeconfig")))
    assert isinstance(readers.outputs, ClusterOutputs)


WEST = {"config": "west.kubeconfig", "namespace": "west-jobs"}


def test_a_further_cluster_has_the_settings_of_the_hubs_own_where_it_has_none(tmp_path: Path) -> None:
    own = {"kubernetes_context": "c", "kubernetes_path": "/bin", "state_dir": str(tmp_path)}
    given = {"west": {**WEST, "image": "w", "fractions": "none"}, "north": {**WEST, "state_dir": "/srv/north"}}
    found = cluster_settings(kubernetes(kubernetes_clusters=given, **own))
    west, north = pod_settings(found["west"]), pod_settings(found["north"])
    assert (west.namespace, west.image, west.fractions, west.path_first) == ("west-jobs", "w", "none", "/bin")
    assert (north.image, north.fractions, north.volume_claim) == ("i", "auto", "jobs")
    assert credentials(found["west"]) == ("west.kubeconfig", None), "not the context of the hub's own"
    assert {name: each.state_dir for name, each in found.items()} == {
        "west": str(tmp_path / "clusters" / "west"), "north": "/srv/north",
    }  # fmt: skip


def test_several_clusters_are_one_backend(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    config = str(tmp_path / "kubeconfig")
    given = {"west": {**WEST, "config": config}}
    settings = kubernetes(state_dir=str(tmp_path), kubernetes_config=config, kubernetes_clusters=given)
    readers = readers_of(settings)
    assert isinstance(readers.outputs, ClustersOutputs) and readers.in_pods
    backend = backend_of(settings)
    try:
        assert isinstance(backend, ClustersBackend)
        found = backend.jobs.inventory()
        assert found is not None and found.unread == {"local", "west"}
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param({"West": WEST}, "'West' is not the name of a cluster", id="a name with a capital"),
        pytest.param({"a:b": WEST}, "'a:b' is not the name of a cluster", id="a name with the separator of ids"),
        pytest.param({"west": {"config": "f"}}, "west: namespace is missing; it needs", id="no namespace"),
        pytest.param({"west": {"namespace": "n"}}, "west: config is missing; it needs", id="no kubeconfig"),
        pytest.param({"west": {**WEST, "contxt": "c"}}, "west: contxt is not known; it needs", id="an unknown key"),
    ],
)
def test_wrong_clusters_are_refused(given: dict[str, dict[str, str]], says: str) -> None:
    with pytest.raises(TraitError, match=says):
        kubernetes(kubernetes_clusters=given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param({"local": WEST}, "local is the hub's own cluster", id="the name of every own cluster"),
        pytest.param({"paris": WEST}, "paris is the hub's own cluster", id="the name of this one"),
        pytest.param({"west": {**WEST, "fractions": "mig"}}, "kubernetes_fractions", id="a value that is none"),
    ],
)
def test_clusters_that_contradict_other_settings_are_refused(given: dict[str, dict[str, str]], says: str) -> None:
    with pytest.raises(BackendUnavailable, match=says):
        pod_settings(kubernetes(kubernetes_clusters=given, cluster="paris"))


@pytest.mark.parametrize("hub", ["Data Science Hub", "-prod", "", "h" * 64])
def test_a_hub_whose_name_cannot_be_a_label_is_refused(hub: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"GPUQuota.hub is '{hub}', which cannot be the value of a label"):
        pod_settings(kubernetes(hub=hub))


@pytest.mark.parametrize(
    ("given", "account"),
    [
        pytest.param({}, "system:serviceaccount:west-jobs:gpu-quota-agent", id="of the chart in its namespace"),
        pytest.param({"agent_account": "system:serviceaccount:a:b"}, "system:serviceaccount:a:b", id="as configured"),
    ],
)
def test_the_agents_of_a_further_cluster_have_an_account_of_its_own(given: dict[str, str], account: str) -> None:
    own = "system:serviceaccount:jupyterhub:gpu-quota-agent"
    west = {"config": "f", "namespace": "west-jobs", **given}
    found = cluster_settings(kubernetes(kubernetes_agent_account=own, kubernetes_clusters={"west": west}))
    assert found["west"].kubernetes_agent_account == account


def test_paths_of_clusters_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    passed = service_settings(kubernetes(kubernetes_clusters={"west": {**WEST, "state_dir": "w"}}))
    west = passed["kubernetes_clusters"]["west"]  # type: ignore[index]
    assert (west["config"], west["state_dir"]) == (str(tmp_path / "west.kubeconfig"), str(tmp_path / "w"))


def test_the_pods_are_as_the_settings_say() -> None:
    found = pod_settings(kubernetes(hub="h", kubernetes_fractions="dra", kubernetes_pod={"tolerations": []}))
    assert (found.namespace, found.hub, found.image, found.volume_claim) == ("n", "h", "i", "jobs")
    assert (found.fractions, found.pod) == ("dra", {"tolerations": []})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param({"kubernetes_image": ""}, "c.GPUQuota.kubernetes_image is empty: set it to", id="no image"),
        pytest.param({"kubernetes_volume_claim": ""}, "kubernetes_volume_claim is empty", id="no volume"),
        pytest.param(
            {"kubernetes_config": "f", "kubernetes_namespace": ""}, "kubernetes_namespace is empty", id="no namespace"
        ),
        pytest.param({"kubernetes_namespace": ""}, "The service runs in no pod", id="not in a pod"),
    ],
)
def test_a_missing_setting_is_named(
    changed: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selected_backend, "ACCOUNT_NAMESPACE", tmp_path / "none")
    with pytest.raises(BackendUnavailable, match=says):
        pod_settings(kubernetes(**changed))


def test_in_a_pod_the_namespace_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "namespace").write_text("hub\n")
    monkeypatch.setattr(selected_backend, "ACCOUNT_NAMESPACE", tmp_path / "namespace")
    assert pod_settings(kubernetes(kubernetes_namespace="")).namespace == "hub"
