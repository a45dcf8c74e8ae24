"""Renders an attempt of a job as Kubernetes objects: its record, one pod for each rank, and a service for a gang. Pure.

A pod is pinned to the node that our scheduler chose, and kube-scheduler binds it. Its finalizer keeps it until its exit
status is stored. All its containers share one process namespace, so that SIGTERM ends a command without a handler: the
first process of a namespace would ignore it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...core.model import WHOLE_DEVICE, Device, Placement
from .cluster_names import FENCING, FINALIZER, RANK, USERNAME, attempt_labels, attempt_name, pod_name
from .plugin_resources import limits_of
from .shares import GATES, VISIBLE, ReservedShare, reserved_share
from .site_fields import SiteFieldClash, both, merged, without
from .variables import rank_environment

Json = dict[str, Any]

CONTAINER = "job"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MOUNT = "/gpu-quota"
SERVICE_PORT = 29_500
MIN_GRACE_S = 1
"""A grace of 0 would remove a pod whose processes may still run."""

CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CHOSEN_BY_RUNTIME = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Variables that the device plugin or the DRA driver sets; a value in the pod would replace theirs."""

SITE_POD, SITE_CONTAINER = "c.GPUQuota.kubernetes_pod", "c.GPUQuota.kubernetes_container"
"""The settings with a site's own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPaths:
    """The folders and files of a rank in its container."""

    work: str = f"{MOUNT}/work"
    checkpoint: str = f"{MOUNT}/checkpoint"
    outputs: str = f"{MOUNT}/outputs"
    run: str = f"{MOUNT}/run"
    pause: str = f"{MOUNT}/run/pause"
    progress: str = f"{MOUNT}/run/progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The settings of a site for all pods of jobs.

    ``volume_claim`` is the claim of the volume that the service mounts as its state folder; ``pod`` is merged into the
    pod's spec, ``container`` into the container's: such as tolerations, security contexts and pull secrets. ``driver``
    and ``device_class`` are those of the DRA driver whose devices are claimed; the class is empty where it has the name
    of the driver. ``fractions``: how pods get parts of a
    device: ``auto``, ``dra`` (no device of a plugin is used), ``reservation`` (no device of a DRA driver is used) or
    ``none``. ``topology_labels``: the labels of nodes with the names of their groups of close nodes, closest first.
    """

    namespace: str
    hub: str
    image: str
    volume_claim: str
    path_first: str = "/opt/conda/bin"
    driver: str = "gpu.nvidia.com"
    device_class: str = ""
    fractions: str = "auto"
    topology_labels: tuple[str, ...] = ()
    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)


class DataMount(Protocol):
    """A folder of data of a rank: ``sub_path`` of the volume of ``claim``, at ``mount``, which ``variable`` has."""

    @property
    def variable(self) -> str: ...
    @property
    def claim(self) -> str | None: ...
    @property
    def sub_path(self) -> str | None: ...
    @property
    def mount(self) -> str: ...
    @property
    def read_only(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOfJob:
    """One rank to start; ``devices`` are those of the whole attempt, ``claim`` is its resource claim, if it has one.

    ``secrets`` are the names of its secret variables. ``image`` and ``python`` are those of its environment, None where
    that names none. ``grace_s`` is the time to save if others than the service delete the pod; None: the default of
    Kubernetes.
    """

    job: str
    attempt: int
    rank: int
    ranks: int
    fencing: int
    command: Sequence[str]
    placements: Sequence[Placement]
    devices: Sequence[Device]
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Collection[str] = ()
    directory: str = "."
    has_code: bool = False
    user: str | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    claim: str | None = None
    image: str | None = None
    python: str | None = None
    data: Sequence[DataMount] = ()
    grace_s: int | None = None


def attempt_record(job: str, attempt: int, fencing: int, settings: PodSettings, data: Mapping[str, str]) -> Json:
    """The object that owns all others of an attempt; they are removed with it."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": _metadata(attempt_name(job, attempt), job, attempt, fencing, settings), "data": dict(data),
    }  # fmt: skip


def owner_of(record: Json) -> Json:
    """The owner reference of the objects of an attempt."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "name": record["metadata"]["name"], "uid": record["metadata"]["uid"],
    }  # fmt: skip


def secret(job: str, attempt: int, fencing: int, settings: PodSettings, owner: Json, values: Mapping[str, str]) -> Json:
    """The secret variables of an attempt; they are removed with it."""
    metadata = _metadata(attempt_name(job, attempt), job, attempt, fencing, settings) | {"ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "stringData": dict(values)}


def rendezvous_service(job: str, attempt: int, fencing: int, settings: PodSettings, owner: Json) -> Json:
    """A headless service, by which the ranks of a gang find each other by name before they are ready."""
    metadata = _metadata(attempt_name(job, attempt), job, attempt, fencing, settings) | {"ownerReferences": [owner]}
    spec = {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": attempt_labels(settings.hub, job, attempt),
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def rank_pod(one: RankOfJob, settings: PodSettings, owner: Json) -> Json:
    """The pod of one rank. Raises SiteFieldClash."""
    name = pod_name(one.job, one.attempt, one.rank)
    metadata = _metadata(name, one.job, one.attempt, one.fencing, settings)
    metadata["labels"][RANK] = str(one.rank)
    if (share := _reserved(one, settings)) is not None:
        metadata["labels"] |= share.labels
        metadata["annotations"] |= share.annotations
    metadata |= {"ownerReferences": [owner], "finalizers": [FINALIZER]}
    if one.user is not None:
        metadata["annotations"][USERNAME] = one.user
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "containers": [_container(one, settings)],
        "volumes": [_volume("jobs", settings.volume_claim), *(_volume(n, d.claim) for n, d in _data(one).items())],
        **({"hostname": name, "subdomain": attempt_name(one.job, one.attempt)} if one.ranks > 1 else {}),
        **({"resourceClaims": [{"name": "gpu", "resourceClaimName": one.claim}]} if one.claim else {}),
        **({} if one.grace_s is None else {"terminationGracePeriodSeconds": max(MIN_GRACE_S, one.grace_s)}),
    }
    spec = merged(spec, settings.pod, SITE_POD)
    spec["affinity"] = pinned(spec.get("affinity") or {}, _node_of(one))
    if share is not None:
        spec["schedulingGates"] = both(GATES, spec.get("schedulingGates") or (), "schedulingGates", SITE_POD)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def site_clash(settings: PodSettings) -> str:
    """Why no pod of a job can have the site's fields; empty where all can."""
    tolerations = settings.pod.get("tolerations") or []
    if not isinstance(tolerations, list) or not all(isinstance(each, dict) for each in tolerations):
        return f"{SITE_POD} has tolerations that are not a list of objects: write [{{'operator': 'Exists'}}]."
    device = Device(id="node/0", node="node", index=0, model="", memory_mib=0, pool=None)
    part = Placement(rank=0, device=device.id, gpu_milli=WHOLE_DEVICE, memory_mib=0)
    one = RankOfJob(
        job="0", attempt=1, rank=0, ranks=1, fencing=0, command=(), placements=(part,), devices=(device,), claim="gpu"
    )
    try:
        rank_pod(one, settings, {})
    except SiteFieldClash as error:
        return f"{error}: rename it."
    return ""


def _metadata(name: str, job: str, attempt: int, fencing: int, settings: PodSettings) -> Json:
    return {
        "name": name, "namespace": settings.namespace, "labels": attempt_labels(settings.hub, job, attempt),
        "annotations": {FENCING: str(fencing)},
    }  # fmt: skip


def _own(one: RankOfJob) -> list[Placement]:
    return [part for part in one.placements if part.rank == one.rank]


def _node_of(one: RankOfJob) -> str:
    """The node of a rank's devices; a rank is on one node."""
    used = {part.device for part in _own(one)}
    (node,) = {device.node for device in one.devices if device.id in used}
    return node


def pinned(affinity: Mapping[str, Any], node: str) -> Json:
    """An affinity of the site for a pod that runs on this node and no other.

    Terms are alternatives, so each of them gets the node. One of the site's terms must match on that node.
    """
    chosen = {"key": "metadata.name", "operator": "In", "values": [node]}
    nodes = affinity.get("nodeAffinity") or {}
    terms = (nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    fields = [{**term, "matchFields": [*(term.get("matchFields") or ()), chosen]} for term in terms]
    return {**affinity, "nodeAffinity": {**nodes, REQUIRED: {"nodeSelectorTerms": fields}}}


def _container(one: RankOfJob, settings: PodSettings) -> Json:
    paths = ClusterPaths()
    top = f"{paths.work}/code" if one.has_code else paths.work
    own: Json = {
        "name": CONTAINER,
        "image": one.image or settings.image,
        "command": [escaped(word) for word in one.command],
        "workingDir": posixpath.normpath(posixpath.join(top, one.directory)),
        "env": [{"name": name, "value": escaped(value)} for name, value in sorted(_environment(one, settings).items())],
        "resources": _resources(one),
        "volumeMounts": _mounts(one),
        "securityContext": CONTAINER_SECURITY,
    }
    if _reserved(one, settings) is not None:
        own["env"].append(VISIBLE)
    site = settings.container
    if one.secrets:  # a default of the site in env would replace one of envFrom
        own["envFrom"] = [{"secretRef": {"name": attempt_name(one.job, one.attempt)}}]
        site = {**site, "env": without(site.get("env") or (), one.secrets)}
    return merged(own, site, SITE_CONTAINER)


def _environment(one: RankOfJob, settings: PodSettings) -> dict[str, str]:
    gang = one.ranks > 1
    found = rank_environment(
        job=one.job, attempt=one.attempt, rank=one.rank, ranks=one.ranks, placements=one.placements,
        devices=one.devices, paths=ClusterPaths(), variables=one.variables, path_first=_path_first(one, settings),
        data={each.variable: each.mount for each in one.data},
        port=SERVICE_PORT if gang else None,
        address=f"{pod_name(one.job, one.attempt, 0)}.{attempt_name(one.job, one.attempt)}" if gang else None,
    )  # fmt: skip
    return found if _is_simulated(one) else {k: v for k, v in found.items() if k not in CHOSEN_BY_RUNTIME}


def _path_first(one: RankOfJob, settings: PodSettings) -> str | None:
    """The first folder of PATH: an image that an environment names keeps its own PATH."""
    if one.python is not None:
        return posixpath.dirname(one.python)
    return settings.path_first if one.image is None else None


def _data(one: RankOfJob) -> dict[str, DataMount]:
    """The data of a rank by the name of its volume."""
    return {f"data-{at}": each for at, each in enumerate(one.data)}


def _volume(name: str, claim: str | None) -> Json:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def _is_simulated(one: RankOfJob) -> bool:
    used = {part.device for part in _own(one)}
    return all(device.simulated for device in one.devices if device.id in used)


def _resources(one: RankOfJob) -> Json:
    """Requests equal limits for memory; a simulated device asks the cluster for nothing."""
    cpu = {"cpu": f"{one.cpu_milli}m"} if one.cpu_milli else {}
    memory = {"memory": f"{one.memory_mib}Mi"} if one.memory_mib else {}
    if _is_simulated(one):
        return {"requests": cpu | memory, "limits": memory}
    if one.claim is not None:
        return {"requests": cpu | memory, "limits": memory, "claims": [{"name": "gpu"}]}
    whole = [part.device for part in _own(one) if part.gpu_milli == WHOLE_DEVICE]
    return {"requests": cpu | memory, "limits": memory | limits_of(whole)}


def _reserved(one: RankOfJob, settings: PodSettings) -> ReservedShare | None:
    """The share of a device that a plugin counts; None for whole devices, claims and simulated devices."""
    parts = [part for part in _own(one) if part.gpu_milli < WHOLE_DEVICE]
    if one.claim is not None or not parts or _is_simulated(one):
        return None
    return reserved_share(settings.hub, parts[0].device, parts[0].gpu_milli)


def _mounts(one: RankOfJob) -> list[Json]:
    """The job's own folders of the volume, and no other's, and its data."""
    paths, home = ClusterPaths(), f"jobs/{one.job}"
    run = f"{home}/run/{one.attempt}/rank-{one.rank}"
    parts = [(paths.work, "work"), (paths.checkpoint, "checkpoint"), (paths.outputs, "outputs")]
    found = [{"name": "jobs", "mountPath": path, "subPath": f"{home}/{name}"} for path, name in parts]
    data = [
        {"name": name, "mountPath": each.mount, "readOnly": each.read_only}
        | ({"subPath": each.sub_path} if each.sub_path else {})
        for name, each in _data(one).items()
    ]
    return [*found, {"name": "jobs", "mountPath": paths.run, "subPath": run}, *data]


def escaped(text: str) -> str:
    """A text that Kubernetes does not expand: it replaces $(NAME), and $$ by $."""
    return text.replace("$", "$$")


RESERVES = ("auto", "reservation")


def can_reserve(settings: PodSettings) -> bool:
    """Whether devices that a plugin counts may be reserved for shares."""
    return settings.fractions in RESERVES
