"""The fields of a pod that runs on a share of a reserved device. Pure.

Its scheduling gate keeps it from a node until the controllers write the UUID of the device into its annotation, from
which the variable of its container is read when that starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .cluster_names import DEVICE, DEVICE_UUID, GPU_MILLI, RESERVATION, reservation_name

Json = dict[str, Any]

GATES = [{"name": RESERVATION}]
UUID_PATH = f"metadata.annotations['{DEVICE_UUID}']"
VISIBLE: Json = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": UUID_PATH}}}


def is_visible(variable: Json) -> bool:
    """Whether a variable of a pod is VISIBLE: the API server adds fields to it."""
    path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return (variable["name"], path) == (VISIBLE["name"], UUID_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedShare:
    """The labels and annotations of a pod with a share; it has GATES and the variable VISIBLE besides."""

    labels: dict[str, str]
    annotations: dict[str, str]


def reserved_share(hub: str, device: str, gpu_milli: int) -> ReservedShare:
    """The share of a device with this id."""
    return ReservedShare(
        labels={RESERVATION: reservation_name(hub, device)},
        annotations={DEVICE: device, GPU_MILLI: str(gpu_milli)},
    )
