"""A namespace of the tests' cluster: what the chart installs there, its volume, its node, and backends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jupyter_gpu_quota.backends.kubernetes.backend import KubernetesBackend
from jupyter_gpu_quota.backends.protocol import Backend
from jupyter_gpu_quota.backends.rendering.cluster_names import SIMULATED_GPUS
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from tests.kube.chart.release import grant
from tests.kube.control_plane import NAMESPACE_ACCOUNT, ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.patience import until

T = TypeVar("T")


def install(plane: ControlPlane, volume: str = "/nowhere") -> str:
    """A new namespace with the permissions, the policy and the fence of the chart, and a folder as its volume."""
    namespace = plane.new_namespace()
    grant(plane, namespace)
    until(lambda: is_granted(plane, namespace), what="the API server knows the permissions")
    make_volume(plane, namespace, path=volume)
    return namespace


CONTROLLERS, AGENTS = "{0}", "system:serviceaccount:{0}:gpu-quota-agent"
GRANTED = (
    (CONTROLLERS, {"verb": "delete", "resource": "configmaps", "namespace": "{0}"}),
    (CONTROLLERS, {"verb": "watch", "resource": "nodes"}),
    (CONTROLLERS, {"verb": "create", "resource": "tokenreviews", "group": "authentication.k8s.io"}),
    (AGENTS, {"verb": "watch", "resource": "pods", "namespace": "{0}"}),
)
"""A permission by each binding of the chart: the API server follows each kind of their objects with a delay."""


def is_granted(plane: ControlPlane, namespace: str) -> bool:
    """Whether the API server knows all permissions that the chart grants in a namespace."""
    return all(
        may(plane, who.format(namespace), **{name: value.format(namespace) for name, value in what.items()})
        for who, what in GRANTED
    )


def may(plane: ControlPlane, user: str, **what: str) -> bool:
    """Whether a user, or the account of a namespace's controllers, has a permission."""
    name = NAMESPACE_ACCOUNT.format(user) if ":" not in user else user
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = {"spec": {"user": name, "resourceAttributes": what}}
    return bool(plane.make(path, review)["status"]["allowed"])


def make_volume(plane: ControlPlane, namespace: str, claim: str = "jobs", path: str = "/nowhere") -> None:
    """The claim of a volume; without a controller-manager it is bound as that would bind it."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volumes, claims = "/api/v1/persistentvolumes", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    name = f"{namespace}-{claim}"
    reference = {"claimRef": {"namespace": namespace, "name": claim}, "persistentVolumeReclaimPolicy": "Retain"}
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": path}, **reference}
    plane.make(volumes, {"metadata": {"name": name}, "spec": {**volume, "storageClassName": "none"}})
    wanted = {"accessModes": modes, "resources": {"requests": size}, "volumeName": name}
    done = {} if plane.has_controller_manager else {"pv.kubernetes.io/bind-completed": "yes"}
    made = {"metadata": {"name": claim, "annotations": done}, "spec": {**wanted, "storageClassName": "none"}}
    plane.make(claims, made)
    if not plane.has_controller_manager:
        for bound in (f"{claims}/{claim}", f"{volumes}/{name}"):
            plane.patch(f"{bound}/status", {"status": {"phase": "Bound"}})
    until(lambda: plane.get(f"{claims}/{claim}")["status"]["phase"] == "Bound", what="the volume is bound")


def sees_volume(plane: ControlPlane, namespace: str, claim: str = "jobs") -> bool:
    """Whether kube-scheduler has the claim of a volume in its cache, by its verdict on a pod that no node takes.

    A pod that it judges before may wait for five minutes: it does not look at the pod again for a claim that it knows.
    """
    if not plane.has_scheduler:
        return True
    path = f"/api/v1/namespaces/{namespace}/pods"
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume], "nodeSelector": {"no": "node"}}
    plane.make(path, {"metadata": {"name": "probe"}, "spec": spec})
    conditions = until(lambda: plane.get(f"{path}/probe")["status"].get("conditions"))
    plane.request("DELETE", f"{path}/probe", {"gracePeriodSeconds": 0})
    until(lambda: plane.request("GET", f"{path}/probe")[0] == 404)
    return "not found" not in str(conditions)


class KubernetesWorld:
    """A backend in a namespace of its own. ``node`` has simulated devices, unless a test gives other resources."""

    wait_ms = 1_500

    def __init__(
        self, plane: ControlPlane, folder: Path, node: str = "here", *, kubelet: Mapping[str, Any] | None = None,
        kubeconfig: Callable[[str], str] | None = None, **backend: Any,
    ) -> None:  # fmt: skip
        self.plane, self.folder, self.namespace = plane, folder, install(plane)
        settings = kubelet if kubelet is not None else {"annotations": {SIMULATED_GPUS: "2"}}
        self.kubelet = FakeKubelet(plane, self.namespace, node, folder, **settings)
        self.kubelet.start()
        until(lambda: sees_volume(plane, self.namespace), what="kube-scheduler knows the claim of the volume")
        self.settings = PodSettings(
            namespace=self.namespace, hub="test", image="none", volume_claim="jobs", path_first="/usr/local/bin"
        )
        self._kubeconfig = (kubeconfig or plane.kubeconfig)(self.namespace)
        self._more, self._opened = backend, list[KubernetesBackend]()
        try:
            self.backend: Backend = self.leader()
        except BaseException:
            self.close()
            raise

    def another(self) -> KubernetesBackend:
        """Another process with a backend of the same namespace, which leads no term."""
        made = KubernetesBackend(self.folder, self.settings, kubeconfig=self._kubeconfig, **self._more)
        self._opened.append(made)
        self.until(made.jobs.inventory)
        return made

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def pass_ms(self, duration_ms: int) -> None:
        until_at = self.now() + duration_ms
        until(lambda: self.now() >= until_at)

    def leave(self) -> None:
        """End the present controller's backend."""
        self.backend.close()
        self._opened.remove(self.backend)  # type: ignore[arg-type]

    def restart(self, **backend: Any) -> None:
        """Another controller; ``backend`` are further options of its backend."""
        self.leave()
        self._more |= backend
        self.backend = self.leader()

    def leader(self) -> KubernetesBackend:
        """A process in a term that takes no time to begin: a leader waits until the API server refuses others."""
        made = self.another()
        made.jobs._fencing = 1
        return made

    def until(self, seen: Callable[[], T]) -> T:
        return until(seen, what=self.waiting)

    def waiting(self) -> dict[str, object]:
        """Why each pod waits, by the API server's record."""
        return {pod["metadata"]["name"]: pod["status"].get("conditions") for pod in self.pods()}

    def stopped(self) -> Sequence[str] | None:
        return None

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the namespace, as the API server has them."""
        found: list[dict[str, Any]] = self.plane.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return found

    def close(self) -> None:
        """End all processes and remove the objects; the namespace stays empty."""
        for each in self._opened:
            each.close()
        self.kubelet.stop()
        for pod in self.pods():
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
            self.plane.patch(path, {"metadata": {"finalizers": None}})
            self.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
