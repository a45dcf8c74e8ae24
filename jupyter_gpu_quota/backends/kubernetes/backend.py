"""The backend of one namespace of a cluster: its jobs, samples, enforcement, logs and outputs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from ..protocol import DeviceUsers, Inventory
from ..rendering.pods import PodSettings
from .client.api_server import ApiServer, Json
from .client.fencing import ClusterFence
from .client.informer import Informer
from .client.kept_fields import kept_of_claim, kept_of_node, kept_of_pod
from .client.loop_thread import LoopThread
from .devices.foreign_use import claimed_by_others, counted_by_others, is_ours
from .devices.inventory import PublishedDevice, inventory, published_devices
from .devices.other_requests import OtherRequests
from .enforcement import ClusterEnforcement, ClusterSamples
from .jobs.attempts import ClusterAttempts
from .jobs.jobs import KubernetesJobs
from .jobs.output_limits import OutputLimits
from .jobs.reservations import Reservations
from .jobs.verdicts import CLUSTER_S
from .jobs.volume import JobVolume
from .outputs import ClusterOutputs

OPEN_TIMEOUT_S = 15.0

PRESENT = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The selector of pods that have a node and have not ended."""


class KubernetesBackend:
    """All parts of one cluster. ``state_dir`` is where this process has the volume of jobs.

    ``kubeconfig`` None: the credentials of this pod. ``on_change`` is called after each change that ``observe``
    reports, from another thread. ``bundles_dir`` has the code of jobs; None: it is on the volume.
    """

    def __init__(
        self, state_dir: str | os.PathLike[str], settings: PodSettings, *, kubeconfig: str | None = None,
        context: str | None = None, on_change: Callable[[], object] = lambda: None,
        patience_s: float = CLUSTER_S, log_limit_mib: int = 64, bundles_dir: str | None = None,
    ) -> None:  # fmt: skip
        self._server, self._thread, self._settings = ApiServer(kubeconfig, context), LoopThread(), settings
        volume = JobVolume(os.fspath(state_dir), log_limit_mib, bundles_dir=bundles_dir)
        volume.make_layout()
        of_node = partial(kept_of_node, topology_labels=settings.topology_labels)
        self._nodes = Informer(self._server, "/api/v1/nodes", kept=of_node)
        self._slices = Informer(self._server, "/apis/resource.k8s.io/v1/resourceslices")
        self._claims = Informer(self._server, "/apis/resource.k8s.io/v1/resourceclaims", kept=kept_of_claim)
        self._all_pods = Informer(self._server, "/api/v1/pods", kept=kept_of_pod, fieldSelector=PRESENT)
        self._other_requests = OtherRequests(settings.hub, settings.namespace)
        self._fence_server = ApiServer(kubeconfig, context)
        fence = ClusterFence(self._fence_server, settings.namespace)
        self.jobs = KubernetesJobs(
            self._server, self._thread, fence, volume, settings, self._inventory, self._published, self._node,
            on_change, patience_s,
        )  # fmt: skip
        self._reservations = Reservations(self._server, self._thread, settings, lambda: self.jobs.fencing)
        self.attempts = ClusterAttempts(self.jobs, self._thread, fence, volume)
        self.samples = ClusterSamples(self._use_by_others)
        self.enforcement = ClusterEnforcement(
            self._server, self._thread, settings, lambda: list(self._reservations.pods.objects.values())
        )
        self.outputs = ClusterOutputs(self._server, self._thread, settings.namespace, volume.state_dir)
        for server in (self._server, self._fence_server):
            self._thread.call(server.open(), OPEN_TIMEOUT_S)
        for informer in (
            self._nodes,
            self._slices,
            self._claims,
            self._all_pods,
            self.jobs.objects.records,
            self.jobs.objects.pods,
            self._reservations.pods,
        ):
            self._thread.run_forever(("watch", informer.path, id(informer)), informer.run)
        self._thread.run_forever(("reservations",), self._reservations.run)
        self._thread.run_forever(("progress",), self.jobs.publish_forever)
        limits = OutputLimits(self.jobs.objects, volume, lambda: self.jobs.fencing)
        self._thread.run_forever(("output limits",), limits.run)

    def close(self) -> None:
        """End the threads and the connections; jobs continue."""
        self._thread.close(self._close_servers())

    async def _close_servers(self) -> None:
        await self._server.close()
        await self._fence_server.close()

    def _inventory(self) -> Inventory | None:
        """The inventory by the newest lists and watches; None while there is none."""
        if not all(each.is_synced for each in (self._nodes, self._slices, self._all_pods)):
            return None
        nodes, slices = list(self._nodes.objects.values()), list(self._slices.objects.values())
        known, pods = self._settings, list(self._all_pods.objects.values())
        others = self._other_requests.read(nodes, pods, time.monotonic())
        return inventory(
            nodes, slices, known.driver, known.fractions, known.topology_labels, others,
            device_class=known.device_class, tolerations=known.pod.get("tolerations") or (),
        )  # fmt: skip

    def _published(self) -> dict[str, PublishedDevice] | None:
        """The devices of the driver by UUID; None while they are not known."""
        if not self._slices.is_synced:
            return None
        return {each.uuid: each for each in self._published_devices()}

    def _published_devices(self) -> list[PublishedDevice]:
        slices, known = list(self._slices.objects.values()), self._settings
        return published_devices(slices, known.driver, known.fractions, device_class=known.device_class)

    def _node(self, name: str) -> Json | None:
        """The newest state of a node; None: it is not known."""
        return self._nodes.objects.get(name) if self._nodes.is_synced else None

    def _use_by_others(self, users: DeviceUsers) -> dict[str, int] | None:
        """The use of devices by pods and claims that are not ours; None while it is not known."""
        if not all(each.is_synced for each in (self._nodes, self._slices, self._claims, self._all_pods)):
            return None
        pods, claims = (self._of_others(each) for each in (self._all_pods, self._claims))
        nodes = list(self._nodes.objects.values())
        return claimed_by_others(claims, self._published_devices()) | counted_by_others(pods, users, nodes)

    def _of_others(self, informer: Informer) -> list[Json]:
        hub, namespace = self._settings.hub, self._settings.namespace
        return [each for each in list(informer.objects.values()) if not is_ours(each, hub, namespace)]
