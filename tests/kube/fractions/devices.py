"""Devices as NVIDIA's DRA driver publishes them with consumableShares=memory."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

DRIVER = "gpu.nvidia.com"
MEMORY_MIB = 81_559


def device(name: str = "gpu-0", **more: Any) -> Json:
    """One device whose memory may be claimed in parts; a claim without an amount takes all of it."""
    memory = f"{MEMORY_MIB}Mi"
    policy = {"default": memory, "validRange": {"min": "1Mi", "max": memory, "step": "1Mi"}}
    fields = {
        "name": name, "allowMultipleAllocations": True,
        "attributes": {
            "type": {"string": "gpu"}, "uuid": {"string": f"GPU-{name}"}, "productName": {"string": "NVIDIA H100"},
        },
        "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
    }  # fmt: skip
    return fields | more


def resource_slice(node: str, *devices: Json, generation: int = 1, driver: str = DRIVER) -> Json:
    """The devices of a node."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": node}, "spec": spec}


def device_class() -> Json:
    """The class of the driver's whole GPUs."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": "nvidia.com/gpu"}
    return {"metadata": {"name": DRIVER}, "spec": spec}
