"""Shares as claims of a DRA driver's devices: allocated by the real kube-scheduler, never beyond a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.protocol import StartOrder
from jupyter_gpu_quota.core.model import Device, Placement
from tests.backends.contract import Controller
from tests.kube.control_plane import ControlPlane
from tests.kube.fractions.devices import MEMORY_MIB, device, resource_slice
from tests.kube.world import KubernetesWorld

SHARES = {"default": "1", "validRange": {"min": "1", "max": "8", "step": "1"}}
RESOURCES = "/apis/resource.k8s.io/v1"


@pytest.fixture
def world(dra_plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesWorld]:
    """A node with two devices, as NVIDIA's driver publishes them with consumableShares=memory."""
    dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0"), device("gpu-1")))
    made = KubernetesWorld(dra_plane, tmp_path, kubelet={})
    try:
        yield made
    finally:
        made.close()
        dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/here")


def share(
    world: KubernetesWorld, job: str, gpu_milli: int, *names: str, command: str = "exec sleep 1000"
) -> StartOrder:
    """A job of one rank with so much of each device."""
    world.until(lambda: len((world.backend.jobs.inventory() or ((), ()))[1]) == 2)
    known = {each.id: each for each in (world.backend.jobs.inventory() or ((), ()))[1]}
    devices: tuple[Device, ...] = tuple(known[f"here/{name}"] for name in names)
    parts = tuple(Placement(rank=0, device=each.id, gpu_milli=gpu_milli, memory_mib=1) for each in devices)
    return StartOrder(job=job, attempt=1, fencing=1, command=("sh", "-c", command), placements=parts, devices=devices)


def consumed_in(plane: ControlPlane, namespace: str) -> dict[str, list[str]]:
    """What each device gave, by the allocations that the API server has."""
    found: dict[str, list[str]] = {}
    claims: list[dict[str, Any]] = plane.get(f"{RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]
    for claim in claims:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        for each in results:
            found.setdefault(each["device"], []).append(each["consumedCapacity"]["memory"])
    return {name: sorted(amounts) for name, amounts in found.items()}


def consumed(world: KubernetesWorld) -> dict[str, list[str]]:
    return consumed_in(world.plane, world.namespace)


def running(controller: Controller, job: str) -> None:
    controller.until(lambda fact: fact.job == job and fact.started_at is not None)


def test_a_share_claims_its_part_of_the_memory_rounded_down(world: KubernetesWorld) -> None:
    controller = Controller(world)
    controller.give(share(world, "K", 600, "gpu-0"))
    running(controller, "K")
    assert consumed(world) == {"gpu-0": [f"{MEMORY_MIB * 600 // 1000}Mi"]}


def test_whole_devices_are_claimed_without_an_amount(world: KubernetesWorld) -> None:
    controller = Controller(world)
    controller.give(share(world, "J", 1000, "gpu-0", "gpu-1"))
    running(controller, "J")
    assert consumed(world) == {"gpu-0": [f"{MEMORY_MIB}Mi"], "gpu-1": [f"{MEMORY_MIB}Mi"]}
    (pod,) = world.pods()
    assert "nvidia.com/gpu" not in str(pod["spec"]["containers"][0]["resources"])


@pytest.mark.parametrize(
    ("published", "why"),
    [
        pytest.param(
            {"allowMultipleAllocations": False, "capacity": {"memory": {"value": f"{MEMORY_MIB}Mi"}}},
            "one claim only", id="a driver without shares",
        ),
        pytest.param(
            {"capacity": device()["capacity"] | {"shares": {"value": "8", "requestPolicy": SHARES}}},
            "counts shares of equal size",
            id="a driver that counts shares",
        ),
    ],
)  # fmt: skip
def test_a_share_that_the_driver_would_not_count_is_refused(
    dra_plane: ControlPlane, tmp_path: Path, published: dict[str, Any], why: str
) -> None:
    dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0", **published), device("gpu-1")))
    world = KubernetesWorld(dra_plane, tmp_path, kubelet={})
    try:
        controller = Controller(world)
        controller.give(share(world, "J", 125, "gpu-0"))
        fact = controller.until(lambda fact: fact.refused is not None)
        assert "0.125 GPU of device here/gpu-0 cannot be claimed" in str(fact.refused) and why in str(fact.refused)
        assert world.pods() == []
        controller.give(share(world, "W", 1000, "gpu-0"))
        running(controller, "W")
    finally:
        world.close()
        dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/here")
