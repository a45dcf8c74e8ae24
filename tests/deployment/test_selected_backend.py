"""The backend that the settings select, and what they lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.kubernetes.outputs import ClusterOutputs
from jupyter_gpu_quota.backends.local.backend import LocalBackend
from jupyter_gpu_quota.deployment import selected_backend
from jupyter_gpu_quota.deployment.selected_backend import BackendUnavailable, backend_of, pod_settings, readers_of
from jupyter_gpu_quota.settings import GPUQuota

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
