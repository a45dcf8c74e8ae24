"""Renders the share of a rank as one ResourceClaim: a part of each device that our scheduler chose. Pure.

The claim names the device by its UUID, so kube-scheduler, which stays the only one that allocates, can give this device
or none. A whole device is claimed without an amount: the driver's default is all of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.model import WHOLE_DEVICE
from .cluster_names import FENCING, attempt_labels, pod_name
from .pods import PodSettings

Json = dict[str, Any]

_UUID = re.compile(r"[0-9A-Za-z-]{1,80}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPart:
    """A part of one device. ``total_mib`` is the memory of the whole device, as the driver publishes it."""

    uuid: str
    gpu_milli: int
    total_mib: int


def claimed_memory_mib(part: ClaimedPart) -> int:
    """The memory that a part consumes, in whole MiB and rounded down: parts of one device never exceed it."""
    return part.total_mib * part.gpu_milli // WHOLE_DEVICE


def rank_claim(
    job: str, attempt: int, rank: int, fencing: int, settings: PodSettings, owner: Json, parts: Sequence[ClaimedPart]
) -> Json:
    """The claim of one rank; it has the name of the rank's pod. Raises ValueError for a UUID that is none."""
    metadata = {
        "name": pod_name(job, attempt, rank), "namespace": settings.namespace,
        "labels": attempt_labels(settings.hub, job, attempt), "annotations": {FENCING: str(fencing)},
        "ownerReferences": [owner],
    }  # fmt: skip
    requests = [device_request(f"gpu-{number}", part, settings) for number, part in enumerate(parts)]
    spec = {"devices": {"requests": requests}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def device_request(name: str, part: ClaimedPart, settings: PodSettings) -> Json:
    """The request for a device, or for a part of its memory. Raises ValueError for a UUID that is none."""
    if not _UUID.match(part.uuid):
        raise ValueError(f"{part.uuid!r} is not the UUID of a device")
    selector = f'device.attributes["{settings.driver}"].uuid == "{part.uuid}"'
    exactly: Json = {
        "deviceClassName": settings.device_class or settings.driver,
        "selectors": [{"cel": {"expression": selector}}],
    }
    if part.gpu_milli < WHOLE_DEVICE:
        exactly["capacity"] = {"requests": {"memory": f"{claimed_memory_mib(part)}Mi"}}
    return {"name": name, "exactly": exactly}
