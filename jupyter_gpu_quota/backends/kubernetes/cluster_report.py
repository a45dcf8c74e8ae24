"""One reading of a cluster for ``doctor``: version, permissions, fence, devices, and their use by others."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.model import Device, Node
from ..rendering.plugin_resources import is_gpu_resource
from ..rendering.pods import PodSettings
from .client.api_server import ApiServer, Json, RequestFailed
from .client.fencing import ClusterFence, FenceMissing
from .client.kept_fields import kept_of_pod
from .devices.foreign_use import claimed_by_others, counted_by_others, is_ours
from .devices.inventory import (
    PublishedDevice,
    inventory,
    not_allocatable,
    of_other_classes,
    published_devices,
    slices_of,
)
from .devices.taints import untolerated
from .permissions import PERMISSIONS, Permission

PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """``fence`` is the newest fencing number, or why there is none in force. ``unread`` is why there are no devices.

    ``published`` are by UUID; ``used_by_others`` are milli-GPU by device; ``taints`` are those
    that jobs do not tolerate, of schedulable nodes with devices. ``sliced`` has in how many time slices the plugin of a
    node divides each device, ``unhealthy`` how many of its devices the plugin does not give, ``of_other_classes`` how
    many of its devices claims of the device class cannot get.
    """

    version: str
    missing: tuple[Permission, ...]
    fence: int | str
    nodes: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    published: Mapping[str, PublishedDevice]
    used_by_others: Mapping[str, int]
    taints: Mapping[str, Sequence[str]]
    sliced: Mapping[str, int] = field(default_factory=dict)
    unhealthy: Mapping[str, int] = field(default_factory=dict)
    of_other_classes: Mapping[str, int] = field(default_factory=dict)
    unread: str = ""


async def read_cluster(server: ApiServer, settings: PodSettings) -> ClusterReport:
    """Read an opened API server, and change nothing. Raises RequestFailed where it does not answer."""
    version = str((await server.get("/version"))["gitVersion"])
    missing = tuple([each for each in PERMISSIONS if not await _has(server, each, settings.namespace)])
    fence = await _fence(ClusterFence(server, settings.namespace))
    about: dict[str, Any] = {"version": version, "missing": missing, "fence": fence}
    try:
        nodes, slices, claims, pods = [await _all(server, path) for path in _LISTED]
    except RequestFailed as error:
        return ClusterReport(**about, published={}, used_by_others={}, taints={}, unread=str(error))
    driver, fractions, of_class = settings.driver, settings.fractions, settings.device_class
    found, devices, _ = inventory(
        nodes, slices, driver, fractions, settings.topology_labels, device_class=of_class,
        tolerations=settings.pod.get("tolerations") or (),
    )  # fmt: skip
    published = published_devices(slices, driver, fractions, device_class=of_class)
    used = _used_by_others(claims, pods, devices, published, settings)
    return ClusterReport(
        **about, nodes=found, devices=devices, published={each.uuid: each for each in published}, used_by_others=used,
        taints=_taints(nodes, {each.id for each in found}, settings), **_of_plugins(nodes),
        of_other_classes=of_other_classes(slices, driver, of_class),
    )  # fmt: skip


async def _has(server: ApiServer, permission: Permission, namespace: str) -> bool:
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool((await server.create(reviews, permission.review(namespace)))["status"]["allowed"])


def _taints(nodes: Sequence[Json], with_devices: Container[str], settings: PodSettings) -> dict[str, list[str]]:
    tolerations = settings.pod.get("tolerations") or ()
    schedulable = [node for node in nodes if not node["spec"].get("unschedulable")]
    found = {node["metadata"]["name"]: untolerated(node, tolerations) for node in schedulable}
    return {name: taints for name, taints in found.items() if taints and name in with_devices}


def _of_plugins(nodes: Sequence[Json]) -> dict[str, Any]:
    """The devices of each node that jobs do not get: time slices, and those that its device plugin finds unhealthy."""
    sliced, unhealthy = dict[str, int](), dict[str, int]()
    for node in nodes:
        name, resources = node["metadata"]["name"], filter(is_gpu_resource, node.get("status", {}).get("capacity", {}))
        if slices := max((slices_of(node, each) for each in resources), default=0):
            sliced[name] = slices
        elif lacking := sum(not_allocatable(node).values()):
            unhealthy[name] = lacking
    return {"sliced": sliced, "unhealthy": unhealthy}


def _used_by_others(
    claims: Sequence[Json], pods: Sequence[Json], devices: Sequence[Device], published: Sequence[PublishedDevice],
    settings: PodSettings,
) -> dict[str, int]:  # fmt: skip
    others = [each for each in claims if not is_ours(each, settings.hub, settings.namespace)]
    running = [
        kept_of_pod(pod)
        for pod in pods
        if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        if not is_ours(pod, settings.hub, settings.namespace)
    ]
    return claimed_by_others(others, published) | counted_by_others(running, dict.fromkeys(devices, ()))


_LISTED = (
    "/api/v1/nodes",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/api/v1/pods",
)


async def _fence(fence: ClusterFence) -> int | str:
    try:
        newest = await fence.newest()
        await fence.check_in_force(newest)
    except (FenceMissing, RequestFailed) as error:
        return str(error)
    return newest


async def _all(server: ApiServer, path: str) -> Sequence[Json]:
    found: list[Json] = []
    more = ""
    while True:
        page = await server.get(path, limit=PAGE, **({"continue": more} if more else {}))
        found += page["items"]
        if not (more := page["metadata"].get("continue", "")):
            return found
