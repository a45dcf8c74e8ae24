"""Renders the slice of a notebook for its pod: labels, node, and a claim or a limit for its devices. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ...core.model import WHOLE_DEVICE
from .claims import ClaimedPart, device_request
from .cluster_names import HUB, NOTEBOOK
from .plugin_resources import can_be_shared, limits_of, why_no_share
from .pods import CHOSEN_BY_RUNTIME, PodSettings, can_reserve
from .shares import ReservedShare, reserved_share
from .variables import STARTUP_BEFORE, Slice

Json = dict[str, Any]

CLAIM = "gpu"
"""The name of the claim in the pod's spec."""

_NOTEBOOK_ID = re.compile(r"[0-9A-Za-z]{1,40}\Z")


class SliceNotSupported(Exception):
    """No pod can get such a slice; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookPod:
    """The slice in a pod. ``node`` None: any. ``claim`` has no owner yet; ``share`` is of a reserved device.

    ``limits`` are of the container.
    """

    labels: dict[str, str] = field(default_factory=dict)
    node: str | None = None
    claim: Json | None = None
    share: ReservedShare | None = None
    limits: dict[str, str] = field(default_factory=dict)


def notebook_pod(booked: Slice | None, settings: PodSettings, *, simulated: bool) -> NotebookPod:
    """The additions for a booked slice. Ids of a cluster's devices begin with their node. Raises SliceNotSupported."""
    if booked is None or not booked.allocations:
        return NotebookPod()
    if not _NOTEBOOK_ID.match(booked.id):
        raise SliceNotSupported(f"{booked.id!r} is not the id of a notebook on Kubernetes")
    labels = {HUB: settings.hub, NOTEBOOK: booked.id}
    (node,) = {part.device.rpartition("/")[0] for part in booked.allocations}
    if simulated:
        return NotebookPod(labels=labels, node=node)
    if all(part.device_uuid for part in booked.allocations):
        return NotebookPod(labels=labels, node=node, claim=_claim(booked, labels, settings))
    parts = [part for part in booked.allocations if part.gpu_milli < WHOLE_DEVICE]
    if parts and len(booked.allocations) == 1 and can_reserve(settings) and can_be_shared(parts[0].device):
        share = reserved_share(settings.hub, parts[0].device, parts[0].gpu_milli)
        return NotebookPod(labels={**labels, **share.labels}, node=node, share=share)
    for part in parts:
        raise SliceNotSupported(why_no_share(part.device, part.gpu_milli))
    return NotebookPod(labels=labels, node=node, limits=limits_of(part.device for part in booked.allocations))


def _claim(booked: Slice, labels: dict[str, str], settings: PodSettings) -> Json:
    requests = []
    for number, part in enumerate(booked.allocations):
        whole = ClaimedPart(
            uuid=part.device_uuid or "", gpu_milli=part.gpu_milli, total_mib=part.device_memory_mib or 0
        )
        requests.append(device_request(f"gpu-{number}", whole, settings))
    metadata = {"name": f"gq-{booked.id.lower()}", "namespace": settings.namespace, "labels": labels}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
    }  # fmt: skip


def variables_of_pod(variables: dict[str, str], *, simulated: bool, has_device: bool) -> dict[str, str]:
    """The variables of a notebook server without those that are of the hub's machine, or that the runtime sets.

    The start-up file of kernels is at a path of the hub's image.
    """
    found = dict(variables)
    if STARTUP_BEFORE in found:
        found["PYTHONSTARTUP"] = found.pop(STARTUP_BEFORE)
    elif found.get("PYTHONSTARTUP", "").endswith("/backends/rendering/torch_hook.py"):
        del found["PYTHONSTARTUP"]
    if has_device and not simulated:
        for name in CHOSEN_BY_RUNTIME:
            found.pop(name, None)
    return found
