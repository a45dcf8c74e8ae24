"""The extended resources by which NVIDIA's device plugin counts GPUs, and MIG instances by their profile. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ...core.amounts import gpu_text

GPU_RESOURCE, MIG_PREFIX = "nvidia.com/gpu", "nvidia.com/mig-"

MODEL_LABEL = f"{GPU_RESOURCE}.product"
LABELS_OF_RESOURCES = ("memory", "replicas", "sharing-strategy")
"""The ends of the labels that say more of a resource, by NVIDIA's gpu-feature-discovery."""

_MIG_ID = re.compile(r"mig-(\S+)-\d+\Z")
_INSTANCE = "instance-"
_OF_INSTANCES = "-MIG-"
"""In the product label of a node whose GPUs are MIG instances of one profile, by the plugin's strategy ``single``."""

_SHARED = ".shared"
"""The end of the name of a resource of time slices, of which several are one device."""


def is_gpu_resource(name: str) -> bool:
    """Whether a resource counts whole GPUs or MIG instances."""
    return name == GPU_RESOURCE or (name.startswith(MIG_PREFIX) and not name.endswith(_SHARED))


def resource_of_label(label: str) -> str | None:
    """The resource of which a label of a node says more; None: it is another label."""
    resource, _, end = label.rpartition(".")
    return resource if end in LABELS_OF_RESOURCES and is_gpu_resource(resource) else None


def device_id(node: str, resource: str, model: str, number: int) -> str:
    """The id of a device that a plugin counts, such as ``gpu01/0`` or ``gpu01/mig-1g.10gb-0``."""
    if resource == GPU_RESOURCE:
        return f"{node}/{_INSTANCE if _OF_INSTANCES in model else ''}{number}"
    return f"{node}/mig-{resource.removeprefix(MIG_PREFIX)}-{number}"


def model_of(resource: str, model: str) -> str:
    """The model of such a device on a node with GPUs of a model."""
    return model if resource == GPU_RESOURCE else f"{model} MIG {resource.removeprefix(MIG_PREFIX)}"


def resource_of(device: str) -> str:
    """The extended resource of a device, by its id."""
    found = _MIG_ID.match(device.rpartition("/")[2])
    return f"{MIG_PREFIX}{found[1]}" if found else GPU_RESOURCE


def can_be_shared(device: str) -> bool:
    """Whether a reservation can read the UUID of a device; nvidia-smi prints the GPU's, not the MIG instance's."""
    return resource_of(device) == GPU_RESOURCE and not device.rpartition("/")[2].startswith(_INSTANCE)


def why_no_share(device: str, gpu_milli: int) -> str:
    """Why a pod cannot have a part of this device."""
    words = f"{gpu_text(gpu_milli)} GPU of device {device} cannot be given: "
    if not can_be_shared(device):
        return f"{words}a MIG instance is given whole."
    return (
        f"{words}the device plugin of node {device.rpartition('/')[0]} counts whole devices only. A reservation gives "
        "one share of one device, where c.GPUQuota.kubernetes_fractions is auto or reservation."
    )


def limits_of(devices: Iterable[str]) -> dict[str, str]:
    """The limits of a container with these whole devices."""
    return {resource: str(number) for resource, number in sorted(Counter(map(resource_of, devices)).items())}
