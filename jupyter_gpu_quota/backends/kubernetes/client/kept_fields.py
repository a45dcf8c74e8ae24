"""The fields that are kept in memory of each object of the API server. Pure.

The rest is several times as much: of a real node its images and the features of its CPU, of a pod its containers. The
names of fields are those of this file, and not a copy for each of thousands of objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from sys import intern
from typing import Any

from ...rendering.cluster_names import ATTEMPT, GIVEN_UP, HUB, JOB, OVER_LIMIT, RANK, SIMULATED_GPUS, STOP_REASON
from ...rendering.plugin_resources import MODEL_LABEL, is_gpu_resource, resource_of_label
from ..devices.pod_requests import requests_of

Json = dict[str, Any]

OF_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "finalizers",
)  # fmt: skip
OF_VERSION = ("name", "namespace", "resourceVersion")
OF_STATUS = ("phase", "reason", "message")
OF_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
OF_TAINT = ("key", "value", "effect")
OF_CONTAINER = ("name", "state", "imageID", "restartCount", "started", "ready")
STOPPED_BY = (STOP_REASON, OVER_LIMIT, GIVEN_UP)
OF_RANK = (JOB, ATTEMPT, RANK)


def kept_of_rank(pod: Json) -> Json:
    """Of a rank's pod: its state, and why it was stopped."""
    status = pod.get("status", {})
    return {
        "metadata": _metadata(pod, OF_RANK, STOPPED_BY),
        "spec": {"nodeName": _node_of(pod)},
        "status": {
            **_picked(status, OF_STATUS),
            "conditions": [_picked(each, OF_CONDITION) for each in status.get("conditions") or ()],
            **{
                name: [_picked(each, OF_CONTAINER) for each in status[name]]
                for name in ("containerStatuses", "initContainerStatuses")
                if status.get(name)
            },
        },
    }


def kept_of_record(record: Json) -> Json:
    """Of the record of an attempt."""
    return {"metadata": _metadata(record, OF_RANK), "data": record.get("data") or {}}


def kept_of_pod(pod: Json) -> Json:
    """Of a pod of the cluster: whose it is, and what it requests of its node."""
    return {
        "metadata": _version_of(pod, (HUB, JOB)),
        "spec": {"nodeName": _node_of(pod), "requests": requests_of(pod["spec"])},
    }


def kept_of_claim(claim: Json) -> Json:
    """Of a claim of the cluster: whose it is, and its devices."""
    kept = {"metadata": _version_of(claim)}
    allocation = claim.get("status", {}).get("allocation")
    return {**kept, "status": {"allocation": allocation}} if allocation else kept


def kept_of_node(node: Json, topology_labels: Collection[str] = ()) -> Json:
    """Of a node: its devices and resources, its groups, the release of its kubelet, and whether it takes pods."""
    status, labels = node.get("status", {}), node["metadata"].get("labels") or {}
    names = [name for name in labels if name == MODEL_LABEL or name in topology_labels or resource_of_label(name)]
    ready = [each for each in status.get("conditions") or () if each["type"] == "Ready"]
    return {
        "metadata": _metadata(node, names, (SIMULATED_GPUS,)),
        "spec": _picked(node["spec"], ("unschedulable",))
        | {"taints": [_picked(each, OF_TAINT) for each in node["spec"].get("taints") or ()]},
        "status": {
            "conditions": [_picked(each, OF_CONDITION) for each in ready],
            "nodeInfo": _picked(status.get("nodeInfo") or {}, ("kubeletVersion",)),
            **{name: _amounts(status.get(name) or {}) for name in ("capacity", "allocatable")},
        },
    }


def _amounts(amounts: Json) -> Json:
    return {intern(name): amounts[name] for name in amounts if name in ("cpu", "memory") or is_gpu_resource(name)}


def _metadata(found: Json, labels: Iterable[str], annotations: Iterable[str] = ()) -> Json:
    metadata = found["metadata"]
    return {
        **{name: metadata[name] for name in OF_METADATA if name in metadata},
        "labels": _picked(metadata.get("labels") or {}, labels),
        "annotations": _picked(metadata.get("annotations") or {}, annotations),
    }


def _version_of(found: Json, labels: Iterable[str] = (HUB,)) -> Json:
    metadata = found["metadata"]
    kept = {name: metadata[name] for name in OF_VERSION if name in metadata}
    return {**kept, "labels": _picked(metadata.get("labels") or {}, labels)}


def _picked(found: Json, names: Iterable[str]) -> Json:
    """Some fields. Equal texts, such as those of the state of thousands of pods, are one object."""
    return {
        intern(name): intern(value) if isinstance(value := found[name], str) else value
        for name in names
        if name in found
    }


def _node_of(pod: Json) -> str | None:
    node: str | None = pod["spec"].get("nodeName")
    return intern(node) if node else node
