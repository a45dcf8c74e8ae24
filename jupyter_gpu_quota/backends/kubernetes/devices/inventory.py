"""Nodes and devices of a cluster, from its nodes and its ResourceSlices. Pure.

A device plugin counts devices and names none, so a device of such a node is a slot without a UUID. A DRA driver
publishes each device; one that may be given to several claims can be shared, if its memory is counted and a claim
without a request takes all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....core.model import Device, Health, Node
from ...protocol import Inventory
from ...rendering.cluster_names import SIMULATED_GPUS
from ...rendering.plugin_resources import MODEL_LABEL, device_id, is_gpu_resource, model_of
from .quantities import milli, whole
from .taints import of_state, repelling

Json = dict[str, Any]

MIB = 1 << 20
SIMULATED_MODEL, SIMULATED_MEMORY_MIB = "Simulated 80G", 81_920
NAME_OF_MODEL = ("productName", "model")
TYPE_OF_CLASS = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
"""The attribute ``type`` that a DeviceClass of NVIDIA's driver demands; of another class it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """One device of a ResourceSlice. ``is_shareable``: several claims may each take a part of its memory.

    ``taints``: those that keep jobs away, or end them. ``partitions``: the names of devices that are parts of it, such
    as MIG instances.
    """

    driver: str
    pool: str
    name: str
    node: str
    uuid: str
    model: str
    memory_mib: int
    is_shareable: bool
    why_not_shareable: str = ""
    taints: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()


def inventory(
    nodes: Iterable[Json], slices: Iterable[Json], driver: str, fractions: str = "auto",
    topology_labels: Sequence[str] = (), others: Mapping[tuple[str, str], int] | None = None, *,
    device_class: str = "", tolerations: Sequence[Json] = (),
) -> Inventory:  # fmt: skip
    """Every node with devices, and its devices: published ones, or else those that a device plugin counts.

    With ``fractions`` ``dra`` the devices of a plugin are not used, with ``reservation`` those of a driver.
    ``topology_labels`` have the names of a node's groups of close nodes, the closest group first. ``others``: milli-CPU
    and MiB that jobs do not get, by node and resource. ``tolerations`` are those of the pods of jobs.
    """
    published: dict[str, list[PublishedDevice]] = {}
    for each in published_devices(slices, driver, device_class=device_class):
        published.setdefault(each.node, []).append(each)
    found_nodes, found_devices = [], list[Device]()
    for node in sorted(nodes, key=lambda each: str(each["metadata"]["name"])):
        drivers = published.get(node["metadata"]["name"], ()) if fractions != "reservation" else ()
        devices = _published(drivers) or _simulated_devices(node)
        if fractions != "dra":
            devices = devices or _counted(node)
        if devices:
            why = why_not_ready(node) or _why_kept_away(node, tolerations)
            is_open = not why and not node["spec"].get("unschedulable", False)
            found_nodes.append(_node(node, is_open, topology_labels, others or {}))
            found_devices += [replace(each, trouble=each.trouble or why) for each in devices] if why else devices
    return Inventory(tuple(found_nodes), tuple(found_devices))


def published_devices(
    slices: Iterable[Json], driver: str, fractions: str = "auto", *, device_class: str = ""
) -> list[PublishedDevice]:
    """The devices of a driver that claims of a class may get, with a UUID and memory.

    ``device_class`` is empty where it has the name of the driver.
    """
    listed = list(_listed(slices, driver))
    partitions: dict[str, list[str]] = {}
    for _, device, texts in listed:
        if "parentUUID" in texts:
            partitions.setdefault(texts["parentUUID"], []).append(device["name"])
    return [
        found
        for spec, device, texts in listed
        if _is_of_class(texts, device_class or driver)
        if (found := _published_device(spec, device, texts, fractions, partitions)) is not None
    ]


def of_other_classes(slices: Iterable[Json], driver: str, device_class: str = "") -> Counter[str]:
    """How many devices with a UUID each node has that claims of the class cannot get."""
    return Counter(
        spec["nodeName"]
        for spec, _, texts in _listed(slices, driver)
        if "uuid" in texts and not _is_of_class(texts, device_class or driver)
    )


def _is_of_class(texts: Mapping[str, str], device_class: str) -> bool:
    wanted = TYPE_OF_CLASS.get(device_class)
    return wanted is None or texts.get("type", wanted) == wanted


def _listed(slices: Iterable[Json], driver: str) -> Iterator[tuple[Json, Json, dict[str, str]]]:
    """The devices of a driver in the newest generation of each pool.

    Each has the spec of its slice before it, and its attributes that are texts, without the domains of their names.
    """
    of_driver = [each for each in slices if each["spec"]["driver"] == driver and each["spec"].get("nodeName")]
    newest: dict[str, int] = {}
    for each in of_driver:
        pool = each["spec"]["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool["generation"])
    for each in of_driver:
        if each["spec"]["pool"]["generation"] == newest[each["spec"]["pool"]["name"]]:
            for device in each["spec"].get("devices", ()):
                attributes = device.get("attributes", {}).items()
                texts = {name.rpartition("/")[2]: it["string"] for name, it in attributes if "string" in it}
                yield each["spec"], device, texts


def _published_device(
    spec: Json, device: Json, texts: Mapping[str, str], fractions: str, partitions: Mapping[str, Sequence[str]]
) -> PublishedDevice | None:
    uuid = texts.get("uuid")
    memory = device.get("capacity", {}).get("memory", {})
    if uuid is None or "value" not in memory:
        return None
    why = "c.GPUQuota.kubernetes_fractions is none" if fractions == "none" else why_not_shareable(device)
    model = next((texts[name] for name in NAME_OF_MODEL if name in texts), "GPU")
    return PublishedDevice(
        driver=spec["driver"], pool=spec["pool"]["name"], name=device["name"], node=spec["nodeName"], uuid=uuid,
        model=model, memory_mib=whole(memory["value"]) // MIB, is_shareable=not why, why_not_shareable=why,
        taints=tuple(repelling(device)), partitions=tuple(partitions.get(uuid, ())),
    )  # fmt: skip


def why_not_shareable(device: Json) -> str:
    """Why parts of a device cannot be claimed so that nobody else gets them; empty where they can."""
    capacity = device.get("capacity", {})
    policy = capacity.get("memory", {}).get("requestPolicy")
    if not device.get("allowMultipleAllocations"):
        return "its driver gives a device to one claim only (ConsumableShares is off)"
    if "shares" in capacity:
        return "its driver counts shares of equal size; set consumableShares to memory"
    if policy is None or whole(policy.get("default", "0")) != whole(capacity["memory"]["value"]):
        return "a claim without a request for memory does not take the whole device; set consumableShares to memory"
    return ""


def _published(devices: Iterable[PublishedDevice]) -> list[Device]:
    return [
        Device(
            id=f"{each.node}/{each.name}", node=each.node, index=index, model=each.model, memory_mib=each.memory_mib,
            pool=None, uuid=each.uuid, **_health(each),
        )
        for index, each in enumerate(sorted(devices, key=lambda each: each.name))
    ]  # fmt: skip


def _health(device: PublishedDevice) -> Json:
    """kube-scheduler gives no claim of a job a tainted device."""
    if not device.taints:
        return {}
    return {"health": Health.UNHEALTHY, "trouble": f"it is tainted: {', '.join(device.taints)}"}


def _simulated_devices(node: Json) -> list[Device]:
    """The simulated devices of a node, by its annotation."""
    metadata = node["metadata"]
    count = _count(metadata.get("annotations", {}).get(SIMULATED_GPUS))
    return [_simulated(metadata["name"], index) for index in range(count)]


def _counted(node: Json) -> list[Device]:
    """The slots that a device plugin counts: GPUs, and MIG instances by their profile."""
    metadata, capacity = node["metadata"], node.get("status", {}).get("capacity", {})
    labels, name = metadata.get("labels", {}), metadata["name"]
    model = labels.get(MODEL_LABEL, "GPU")
    slots = [
        (resource, number)
        for resource in sorted(filter(is_gpu_resource, capacity))
        if not slices_of(node, resource)
        for number in range(whole(capacity[resource]))
    ]
    return [
        Device(
            id=device_id(name, resource, model, number), node=name, index=index, model=model_of(resource, model),
            memory_mib=_count(labels.get(f"{resource}.memory")), pool=None,
        )
        for index, (resource, number) in enumerate(slots)
    ]  # fmt: skip


def slices_of(node: Json, resource: str) -> int:
    """In how many time slices, or clients of MPS, a plugin divides each device of a resource; 0: it gives whole ones.

    It counts slices under the name of the devices, and does not say which of them are on one device, so none is given.
    Source: the labels of NVIDIA's gpu-feature-discovery.
    """
    labels, amounts = node["metadata"].get("labels") or {}, node.get("status", {}).get("capacity", {})
    if labels.get(f"{resource}.sharing-strategy", "none") == "none" or not whole(amounts.get(resource, "0")):
        return 0
    return replicas if (replicas := _count(labels.get(f"{resource}.replicas"))) > 1 else 0


def not_allocatable(node: Json) -> dict[str, int]:
    """How many devices a node has, by resource, that its plugin does not give: it found them unhealthy."""
    status = node.get("status", {})
    capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
    lacking = {
        resource: whole(capacity[resource]) - whole(allocatable.get(resource, "0"))
        for resource in filter(is_gpu_resource, capacity)
    }
    return {resource: number for resource, number in lacking.items() if number > 0}


def _count(text: str | None) -> int:
    """The number of a label or an annotation; 0 where it is none. One such text must not hide all nodes."""
    return int(text) if text and text.isdecimal() else 0


def _simulated(node: str, index: int) -> Device:
    return Device(
        id=f"{node}/{index}", node=node, index=index, model=SIMULATED_MODEL, memory_mib=SIMULATED_MEMORY_MIB,
        pool=None, uuid=f"SIM-{node}-{index}", simulated=True,
    )  # fmt: skip


def _node(node: Json, is_open: bool, topology_labels: Sequence[str], others: Mapping[tuple[str, str], int]) -> Node:
    """A node; one that is not ready, cordoned, or tainted by its state is not open for new work."""
    name = node["metadata"]["name"]
    left = {resource: _left(size, others.get((name, resource), 0)) for resource, size in size_of(node).items()}
    return Node(
        id=name, name=name, cpu_milli=left["cpu"], memory_mib=left["memory"],
        schedulable=is_open, topology=_topology(node["metadata"].get("labels") or {}, topology_labels),
    )  # fmt: skip


def size_of(node: Json) -> dict[str, int]:
    """The milli-CPU and MiB that pods may request on a node; 0 where it does not state them."""
    allocatable = node.get("status", {}).get("allocatable", {})
    return {"cpu": milli(allocatable.get("cpu", "0")), "memory": whole(allocatable.get("memory", "0")) // MIB}


def _left(size: int, others: int) -> int:
    """The amount that others leave; at least 1, since 0 is an amount that is not stated."""
    return max(1, size - others) if size else 0


def _topology(labels: Mapping[str, str], topology_labels: Sequence[str]) -> tuple[str, ...]:
    """The names of a node's groups; none of them where the node has none of the labels."""
    names = tuple(labels.get(label, "") for label in topology_labels)
    return names if any(names) else ()


def why_not_ready(node: Json) -> str:
    """Since when a node is not ready, and why; empty for one that is."""
    name, ready = node["metadata"]["name"], ready_condition(node)
    if ready.get("status") == "True":
        return ""
    since = ready.get("lastTransitionTime") or node["metadata"].get("creationTimestamp", "an unknown time")
    if is_lost(node):
        return f"node {name} is lost: its kubelet has not answered since {since}"
    message = f": {text}" if (text := ready.get("message")) else ""
    return f"node {name} has not been ready since {since}{message}"


def _why_kept_away(node: Json, tolerations: Sequence[Json]) -> str:
    """By which taints of its state a node takes no pods with these tolerations; empty for one without."""
    taints = of_state(node, tolerations)
    return f"node {node['metadata']['name']} has taints that keep pods away: {', '.join(taints)}" if taints else ""


def is_lost(node: Json) -> bool:
    """Whether Kubernetes no longer hears from the kubelet of a node: its containers may run on."""
    return ready_condition(node).get("status") == "Unknown"


def ready_condition(node: Json) -> Json:
    """The condition Ready of a node; empty where its kubelet never reported."""
    conditions: list[Json] = node.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Ready"), {})
