"""The use of devices by work of others."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.kept_fields import kept_of_node, kept_of_pod
from jupyter_gpu_quota.backends.kubernetes.devices.foreign_use import (
    changed_use,
    claimed_by_others,
    counted_by_others,
    is_ours,
)
from jupyter_gpu_quota.backends.kubernetes.devices.inventory import PublishedDevice
from jupyter_gpu_quota.core.model import Allocation, Device

PUBLISHED = PublishedDevice(
    driver="gpu.nvidia.com", pool="n", name="gpu-0", node="n", uuid="GPU-0", model="H", memory_mib=80_000,
    is_shareable=True, partitions=("gpu-0-mig-1",),
)  # fmt: skip


def claim(memory: str | None, device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    consumed = {} if memory is None else {"consumedCapacity": {"memory": memory}}
    result = {"driver": "gpu.nvidia.com", "pool": "n", "device": device, **consumed, **more}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param([], {}, id="no claim"),
        pytest.param([{"status": {}}, {}], {}, id="a claim without a device"),
        pytest.param([claim("10000Mi"), claim("20000Mi")], {"n/gpu-0": 375}, id="amounts add up"),
        pytest.param([claim("1Mi")], {"n/gpu-0": 1}, id="an amount is rounded up"),
        pytest.param([claim(None)], {"n/gpu-0": 1000}, id="a claim without an amount has the whole device"),
        pytest.param([claim(None), claim("1Mi")], {"n/gpu-0": 1000}, id="no device has more than all"),
        pytest.param([claim(None, adminAccess=True)], {}, id="a claim with admin access has nothing of it"),
        pytest.param([claim(None, adminAccess=False)], {"n/gpu-0": 1000}, id="a claim without admin access"),
        pytest.param([claim("1Mi", "gpu-7")], {}, id="a device that is not published"),
        pytest.param([claim(None, "gpu-0-mig-1")], {"n/gpu-0": 1000}, id="a partition takes the whole device"),
        pytest.param([claim("1Mi", "gpu-0-mig-1")], {"n/gpu-0": 1000}, id="also one that is given in parts"),
    ],
)
def test_what_claims_of_others_have(claims: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert claimed_by_others(claims, [PUBLISHED]) == expected


def slot(index: int, **more: Any) -> Device:
    fields: dict[str, Any] = {"id": f"n/{index}", "node": "n", "index": index, "model": "H", "memory_mib": 1}
    return Device(**{**fields, "pool": "p", **more})


def pod(gpus: int, resource: str = "nvidia.com/gpu", **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", "resources": {"limits": {resource: str(gpus)}}}, {"name": "d"}]
    return kept_of_pod({"metadata": {"name": "x", **metadata}, "spec": {"nodeName": "n", "containers": containers}})


def node(gpus: int, given: int) -> dict[str, Any]:
    status = {"capacity": {"nvidia.com/gpu": str(gpus), "cpu": "8"}, "allocatable": {"nvidia.com/gpu": str(given)}}
    return kept_of_node({"metadata": {"name": "n"}, "spec": {}, "status": status})


def test_devices_that_their_plugin_does_not_give_take_the_last_slots_that_our_work_does_not_have() -> None:
    held = Allocation(id="a", workload="J", rank=0, device="n/3", gpu_milli=1000, memory_mib=1)
    users = {slot(0): [], slot(1): [], slot(2): [], slot(3): [held]}
    assert counted_by_others([], users, [node(4, 4)]) == {}
    assert counted_by_others([pod(1)], users, [node(4, 3)]) == {"n/1": 1000, "n/2": 1000}
    assert counted_by_others([], {slot(0): [held]}, [node(1, 0)]) == {}, "the work that has it goes on"


def test_requests_of_others_take_the_last_slots_that_our_work_does_not_have() -> None:
    held = Allocation(id="a", workload="J", rank=0, device="n/3", gpu_milli=1000, memory_mib=1)
    users = {slot(0): [], slot(1): [], slot(2): [], slot(3): [held]}
    assert counted_by_others([pod(1), pod(1)], users) == {"n/1": 1000, "n/2": 1000}


def test_a_mig_instance_of_others_takes_one_of_its_profile() -> None:
    instances = [slot(index, id=f"n/mig-{profile}-0") for index, profile in enumerate(("1g.10gb", "3g.40gb"), 1)]
    foreign = pod(1, "nvidia.com/mig-1g.10gb")
    assert counted_by_others([foreign], dict.fromkeys([slot(0), *instances], ())) == {"n/mig-1g.10gb-0": 1000}


def test_a_device_of_a_sidecar_of_others_is_used() -> None:
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": "n", "containers": [{"name": "c"}], "initContainers": [sidecar]}
    found = kept_of_pod({"metadata": {"name": "x"}, "spec": spec})
    assert counted_by_others([found], {slot(0): []}) == {"n/0": 1000}


def test_a_pod_without_a_request_takes_nothing() -> None:
    assert counted_by_others([pod(0)], {slot(0): []}) == {}


def test_only_a_change_is_reported_and_none_of_a_simulated_device() -> None:
    devices = [slot(0, foreign_milli=1000), slot(1, foreign_milli=1000), slot(2), slot(3, simulated=True)]
    assert changed_use(devices, {"n/0": 1000, "n/2": 500, "n/3": 500}) == {"n/1": 0, "n/2": 500}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"namespace": "hub", "labels": {"gpu-quota.jupyter.org/hub": "local"}}, True),
        ({"namespace": "other", "labels": {"gpu-quota.jupyter.org/hub": "local"}}, False),
        ({"namespace": "hub", "labels": {"gpu-quota.jupyter.org/hub": "another"}}, False),
        ({"namespace": "hub"}, False),
    ],
)
def test_which_work_is_ours(metadata: dict[str, Any], expected: bool) -> None:
    assert is_ours(pod(1, **metadata), "local", "hub") is expected
