"""The extended resources by which NVIDIA's device plugin counts GPUs, and MIG instances by their profile. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ...core.amounts import gpu_text

GPU_RESOURCE, MIG_PREFIX = "nvidia.com/gpu", "nvidia.com/mig-"

_MIG_ID = re.compile(r"mig-(\S+)-\d+\Z")


def mig_device_id(node: str, profile: str, number: int) -> str:
    """The id of a MIG instance that a plugin counts, such as ``gpu01/mig-1g.10gb-0``."""
    return f"{node}/mig-{profile}-{number}"


def resource_of(device: str) -> str:
    """The resource that has a device, by its id."""
    found = _MIG_ID.match(device.rpartition("/")[2])
    return f"{MIG_PREFIX}{found[1]}" if found else GPU_RESOURCE


def can_be_shared(device: str) -> bool:
    """Whether a reservation can tell the UUID of a device: in a container, that of a MIG instance's GPU is printed."""
    return resource_of(device) == GPU_RESOURCE


def why_no_share(device: str, gpu_milli: int) -> str:
    """Why a part of a device cannot be given to a pod beside what else it has, or with these settings."""
    return (
        f"{gpu_text(gpu_milli)} GPU of device {device} cannot be given: the device plugin of node "
        f"{device.rpartition('/')[0]} counts whole devices only. A reservation gives one share of one GPU, and none of "
        "a MIG instance, where c.GPUQuota.kubernetes_fractions is auto or reservation."
    )


def limits_of(devices: Iterable[str]) -> dict[str, str]:
    """The limits of a container with these whole devices."""
    return {resource: str(number) for resource, number in sorted(Counter(map(resource_of, devices)).items())}
