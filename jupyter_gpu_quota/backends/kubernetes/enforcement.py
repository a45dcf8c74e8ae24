"""The enforcement of shares in a cluster, and samples: both unknown until a node agent reads the devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from ...core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementLevel, EnforcementOffer
from ...core.facts import DeviceFact
from ...core.model import Allocation, Device
from ...core.samples import AGENT, UNKNOWN, DeviceSample
from ..protocol import SIMULATED, Capabilities, DeviceUsers, StopNotebookOrder
from ..rendering.cluster_names import ATTEMPT, DEVICE_UUID, FENCING, HUB, JOB, KILL, NOTEBOOK, RANK
from ..rendering.pods import PodSettings
from ..rendering.shares import is_visible
from ..rendering.variables import XLA_FRACTION
from ..simulated_samples import simulated_sample
from .client.api_server import ApiServer, Conflict, Json, NotFound
from .client.loop_thread import LoopThread
from .devices.foreign_use import changed_use

NO_AGENT = "no agent of its node sends samples"
NO_UUID = "the device plugin does not say which device this slot is, so no sample is its own"
FRESH_MS = 45_000
"""An older sample does not show the present state."""

NOT_LIMITED = "no agent reads how this cluster limits the memory of a share"


class ClusterSamples:
    """One sample per device, in which every figure is unknown: it stands for that of a node whose agent is silent.

    ``use_by_others`` returns milli-GPU by device; None: it is not known.
    """

    def __init__(self, use_by_others: Callable[[DeviceUsers], Mapping[str, int] | None]) -> None:
        self._use_by_others = use_by_others
        self._changed: Mapping[str, int] = {}

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample]:
        use = self._use_by_others(users)
        self._changed = {} if use is None else changed_use(users, use)
        return [
            simulated_sample(device, held, {}, NO_AGENT, now) if device.simulated else _unknown(device, held, now)
            for device, held in users.items()
        ]

    def device_facts(self) -> Sequence[DeviceFact]:
        return [DeviceFact(device=device, foreign_milli=milli) for device, milli in self._changed.items()]


def _unknown(device: Device, users: Sequence[Allocation], now: int) -> DeviceSample:
    names, why = [held.workload for held in users if held.gpu_milli], NO_AGENT if device.uuid else NO_UUID
    return DeviceSample(
        node=device.node, device=device.id, at=now, utilisation_percent=None, memory_used_mib=None,
        coverage_permille=UNKNOWN, simulated=False, workloads=dict.fromkeys(names),
        why=dict.fromkeys([AGENT, *names, "utilisation_percent", "memory_used_mib"], why),
    )  # fmt: skip


def _label(
    share: DeviceShare, sample: DeviceSample | None, pod: Json | None, *, policed: bool, now: int
) -> EnforcementLabel:  # fmt: skip
    """It is unsure for a real device: limits of a driver are not read. ``pod`` is that of a reserved share."""
    if share.simulated:
        return EnforcementLabel(why=SIMULATED)
    is_read = sample is not None and sample.shows_workloads and abs(now - sample.at) <= FRESH_MS
    is_known = is_read and sample is not None and sample.workload_memory_mib.get(share.workload) is not None
    if policed and share.is_fraction and is_known:
        return EnforcementLabel(memory=EnforcementLevel.POLICED, why=NOT_LIMITED, unsure=True)
    if share.is_fraction and pod is not None and has_caps(pod):
        return EnforcementLabel(memory=EnforcementLevel.COOPERATIVE, why=NOT_LIMITED, unsure=True)
    return EnforcementLabel(why=NOT_LIMITED, unsure=True)


def has_caps(pod: Json) -> bool:
    """Whether a pod runs on the device that is reserved for it, with the variables by which frameworks cap memory."""
    annotations: Json = pod["metadata"].get("annotations") or {}
    if pod.get("status", {}).get("phase") != "Running" or DEVICE_UUID not in annotations:
        return False
    env: list[list[Json]] = [each.get("env") or [] for each in pod["spec"]["containers"]]
    return any(any(map(is_visible, each)) and XLA_FRACTION in {one["name"] for one in each} for each in env)


def share_of_pod(pod: Json) -> tuple[str, int, int] | None:
    """Workload, attempt and rank of a pod with a share; None for a reservation."""
    labels: Json = pod["metadata"].get("labels") or {}
    if JOB in labels:
        return labels[JOB], int(labels[ATTEMPT]), int(labels[RANK])
    return (labels[NOTEBOOK], 0, 0) if NOTEBOOK in labels else None


class ClusterEnforcement:
    """Labels of shares, and the stop of notebooks by deleting their pods.

    ``reserved`` returns the pods with shares of reserved devices, as the newest watch has them.
    """

    lends_slices = False
    """The pod of a notebook has its claim, or its share of a reservation, until it ends: its spec cannot change."""

    def __init__(
        self, server: ApiServer, thread: LoopThread, settings: PodSettings,
        reserved: Callable[[], Iterable[Json]] = lambda: (),
    ) -> None:  # fmt: skip
        self._server, self._thread, self._settings, self._reserved = server, thread, settings, reserved

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """No enforcement on a simulated device; any other is unknown."""
        offers = tuple(
            EnforcementOffer(
                device=each.id, why=SIMULATED if each.simulated else NOT_LIMITED, unsure=not each.simulated
            )
            for each in devices
        )
        return Capabilities(offers=offers, read_at=time.time_ns() // 1_000_000)

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """A share whose memory the agent of its node reads is policed, if the policy acts on it.

        A share of a reserved device has no such agent; its running pod shows whether it has the frameworks' caps.
        """
        pods = {share_of_pod(pod): pod for pod in self._reserved()}
        return {
            name: _label(
                share,
                samples.get(name),
                pods.get((share.workload, share.attempt, share.rank)),
                policed=policed,
                now=now,
            )
            for name, share in shares.items()
        }

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        """Delete the notebook's pods at once, unless the order is of an older leader."""
        self._thread.run(("notebook", order.notebook), partial(self._stop, order))

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Nothing: a pod that is gone leaves no limit behind."""

    async def _stop(self, order: StopNotebookOrder) -> None:
        pods = f"/api/v1/namespaces/{self._settings.namespace}/pods"
        selector = f"{HUB}={self._settings.hub},{NOTEBOOK}={order.notebook}"
        for pod in (await self._server.get(pods, labelSelector=selector))["items"]:
            path, number = f"{pods}/{pod['metadata']['name']}", str(order.fencing)
            mark = {FENCING: number, KILL: number}  # the agent of the node kills what a kubelet does not
            try:
                marked = await self._server.patch(path, {"metadata": {"annotations": mark}})
                seen = {name: marked["metadata"][name] for name in ("uid", "resourceVersion")}
                await self._server.delete(path, {"gracePeriodSeconds": 1, "preconditions": seen})
            except (NotFound, Conflict):
                continue  # it changed; the order is repeated
