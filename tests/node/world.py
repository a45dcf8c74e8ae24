"""A backend in a namespace of its own, whose jobs are real pods of real nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jupyter_gpu_quota.backends.kubernetes.backend import KubernetesBackend
from jupyter_gpu_quota.backends.protocol import Backend, StartOrder
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from jupyter_gpu_quota.client import Client, Job
from jupyter_gpu_quota.core.model import WHOLE_DEVICE, Device, Placement
from tests.kube.control_plane import ControlPlane
from tests.kube.world import install
from tests.node.images import JOB_IMAGE, PREFIX
from tests.node.node import RealNode
from tests.patience import until

T = TypeVar("T")
NEVER_PULLED = {"imagePullPolicy": "Never"}


def device_of(client: Client, job: Job, attempt: int = 1) -> str:
    """The UUID that the container of an attempt sees: the last word that it printed."""

    def printed() -> str:
        seen = client.job(job.id)
        has_begun = seen.attempt > attempt or (seen.attempt == attempt and seen.state not in ("queued", "starting"))
        return client.logs(job.id, attempt=attempt) if has_begun else ""

    return until(printed, what=lambda: client.job(job.id)).split()[-1]


class NodeWorld:
    """One namespace; ``folder`` is its volume, as the pods and the backend see it."""

    wait_ms = 1_500

    def __init__(self, plane: ControlPlane, folder: Path, node: RealNode, *, patience_s: float = 60) -> None:
        self.plane, self.folder, self.namespace = plane, folder, install(plane, str(folder))
        self.node, self._patience_s = node, patience_s
        self.settings = PodSettings(
            namespace=self.namespace, hub="test", image=JOB_IMAGE, volume_claim="jobs", path_first=f"{PREFIX}/bin",
            container=NEVER_PULLED,
        )  # fmt: skip
        self.backend: Backend = self.another()
        self.backend.jobs.fence(1)

    def another(self) -> KubernetesBackend:
        kubeconfig = self.plane.kubeconfig(self.namespace)
        made = KubernetesBackend(self.folder, self.settings, kubeconfig=kubeconfig, patience_s=self._patience_s)
        until(made.jobs.inventory)
        return made

    def order(self, job: str, *command: str, gpu_milli: int = 1000, at: int = 0, **more: Any) -> StartOrder:
        """A job of one rank on a device of the node, by its position; ``attempt`` is 1 unless it is given."""
        devices = self.until(lambda: [each for each in self._devices() if each.node == self.node.name])
        memory_mib = devices[at].memory_mib * gpu_milli // WHOLE_DEVICE
        part = Placement(rank=0, device=devices[at].id, gpu_milli=gpu_milli, memory_mib=memory_mib)
        given = {"attempt": 1, "fencing": 1, **more}
        return StartOrder(job=job, command=command, placements=(part,), devices=tuple(devices), **given)

    def _devices(self) -> Sequence[Device]:
        return (self.backend.jobs.inventory() or ((), ()))[1]

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def pass_ms(self, duration_ms: int) -> None:
        until_at = self.now() + duration_ms
        until(lambda: self.now() >= until_at)

    def restart(self) -> None:
        self.backend.close()
        self.backend = self.another()

    def until(self, seen: Callable[[], T]) -> T:
        return until(seen, what=lambda: (self.backend.jobs.observe(), self.pods()))

    def log(self, job: str, attempt: int = 1) -> str:
        return self.backend.outputs.log(job, attempt, 0).data.decode()

    def stopped(self) -> Sequence[str] | None:
        return None

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the namespace, as the API server has them."""
        found: list[dict[str, Any]] = self.plane.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return found

    def close(self) -> None:
        """End the backend, and remove all pods from the nodes."""
        self.backend.close()
        for pod in self.pods():
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
            self.plane.patch(path, {"metadata": {"finalizers": None}})
            self.plane.request("DELETE", path, {"gracePeriodSeconds": 1})
        until(lambda: not self.pods(), what=self.pods)
