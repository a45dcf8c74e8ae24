"""Nodes and devices, from the objects of the API server."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.kept_fields import kept_of_node
from jupyter_gpu_quota.backends.kubernetes.devices.inventory import PublishedDevice, of_other_classes
from jupyter_gpu_quota.backends.kubernetes.devices.inventory import inventory as inventory_of
from jupyter_gpu_quota.backends.kubernetes.devices.inventory import published_devices as devices_of
from jupyter_gpu_quota.backends.kubernetes.devices.quantities import exact, milli, whole
from jupyter_gpu_quota.backends.protocol import Inventory
from jupyter_gpu_quota.backends.rendering.cluster_names import SIMULATED_GPUS
from jupyter_gpu_quota.backends.rendering.plugin_resources import can_be_shared, resource_of
from jupyter_gpu_quota.core.model import Health

DRIVER = "gpu.nvidia.com"
MEMORY = "81559Mi"
WHOLE_BY_DEFAULT = {"default": MEMORY, "validRange": {"min": "1Mi", "max": MEMORY, "step": "1Mi"}}


def inventory(nodes: list[dict[str, Any]], slices: list[dict[str, Any]]) -> Inventory:
    return inventory_of(nodes, slices, DRIVER)


def published_devices(slices: list[dict[str, Any]]) -> list[PublishedDevice]:
    return devices_of(slices, DRIVER)


def node(name: str, gpus: int = 0, *, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    amounts = {"cpu": "63500m", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, **metadata}, "spec": {}, "status": status}


def device(name: str = "gpu-0", **more: Any) -> dict[str, Any]:
    """A device as NVIDIA's driver publishes it with consumableShares=memory."""
    fields = {
        "name": name, "allowMultipleAllocations": True,
        "attributes": {"uuid": {"string": f"GPU-{name}"}, "productName": {"string": "NVIDIA H100"}},
        "capacity": {"memory": {"value": MEMORY, "requestPolicy": WHOLE_BY_DEFAULT}},
    }  # fmt: skip
    return fields | more


def resource_slice(*devices: dict[str, Any], generation: int = 1, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    pool = {"name": "gpu01", "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": driver, "nodeName": "gpu01", "pool": pool, "devices": list(devices)}}


def test_mig_instances_of_a_plugin_are_devices_of_their_profile() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/mig-1g.10gb.memory": "9856"}
    found = node("gpu01", 1, labels=labels)
    found["status"]["capacity"] |= {
        "nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.20gb.shared": "4",
    }  # fmt: skip
    _, devices, _ = inventory([found], [])
    assert [(each.id, each.index, each.model, each.memory_mib) for each in devices] == [
        ("gpu01/0", 0, "NVIDIA-H100", 0),
        ("gpu01/mig-1g.10gb-0", 1, "NVIDIA-H100 MIG 1g.10gb", 9856),
        ("gpu01/mig-1g.10gb-1", 2, "NVIDIA-H100 MIG 1g.10gb", 9856),
        ("gpu01/mig-3g.40gb-0", 3, "NVIDIA-H100 MIG 3g.40gb", 0),
    ]


def test_mig_instances_that_are_counted_as_gpus_are_not_shared() -> None:
    """In the container of a reservation two instances of one GPU would print the same UUID."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"}
    _, devices, _ = inventory([node("gpu01", 2, labels=labels)], [])
    assert [(each.id, each.memory_mib) for each in devices] == [("gpu01/instance-0", 4864), ("gpu01/instance-1", 4864)]
    assert [(resource_of(each.id), can_be_shared(each.id)) for each in devices] == [("nvidia.com/gpu", False)] * 2


def test_a_device_plugin_counts_slots_without_a_uuid() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.memory": "81559"}
    nodes, devices, _ = inventory([node("gpu01", 2, labels=labels), node("cpu01")], [])
    assert [(each.id, each.cpu_milli, each.memory_mib, each.schedulable) for each in nodes] == [
        ("gpu01", 63_500, 1024, True)
    ]
    assert [(each.id, each.index, each.model, each.memory_mib, each.uuid) for each in devices] == [
        ("gpu01/0", 0, "NVIDIA-H100", 81_559, None), ("gpu01/1", 1, "NVIDIA-H100", 81_559, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "devices"),
    [
        pytest.param({"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"}, 0, id="time slices"),
        pytest.param({"gpu.replicas": "4", "gpu.sharing-strategy": "mps"}, 0, id="clients of MPS"),
        pytest.param({"gpu.replicas": "1", "gpu.sharing-strategy": "none"}, 8, id="whole devices"),
        pytest.param({"gpu.replicas": "4"}, 8, id="no strategy"),
    ],
)
def test_a_time_slice_of_a_plugin_is_no_device(labels: dict[str, str], devices: int) -> None:
    given = node("gpu01", 8, labels={f"nvidia.com/{name}": value for name, value in labels.items()})
    assert len(inventory([given], []).devices) == len(inventory([kept_of_node(given)], []).devices) == devices


def test_a_label_or_annotation_that_is_no_number_hides_no_other_node() -> None:
    wrong = node("a", 1, labels={"nvidia.com/gpu.memory": "80GiB"})
    annotated = node("b", annotations={SIMULATED_GPUS: "two"})
    _, devices, _ = inventory([wrong, annotated, node("c", 1)], [])
    assert [(each.id, each.memory_mib) for each in devices] == [("a/0", 0), ("c/0", 0)]


def test_nodes_name_their_groups_of_close_nodes_by_labels() -> None:
    labels = ("nvidia.com/gpu.clique", "topology.kubernetes.io/rack")
    given = [
        node("a", 1, labels={"nvidia.com/gpu.clique": "c1.0", "topology.kubernetes.io/rack": "r1", "zone": "z"}),
        node("b", 1, labels={"topology.kubernetes.io/rack": "r1"}),
        node("c", 1, labels={"zone": "z"}),
        node("d", 1),
    ]
    nodes, _, _ = inventory_of(given, [], DRIVER, "auto", labels)
    assert [each.topology for each in nodes] == [("c1.0", "r1"), ("", "r1"), (), ()]


def test_published_devices_replace_the_count() -> None:
    _, devices, _ = inventory([node("gpu01", 8)], [resource_slice(device("gpu-1"), device("gpu-0"))])
    assert [(each.id, each.uuid, each.model, each.memory_mib) for each in devices] == [
        ("gpu01/gpu-0", "GPU-gpu-0", "NVIDIA H100", 81_559), ("gpu01/gpu-1", "GPU-gpu-1", "NVIDIA H100", 81_559),
    ]  # fmt: skip


def test_only_the_newest_generation_of_a_pool_counts_and_only_of_our_driver() -> None:
    slices = [
        resource_slice(device("old"), generation=1),
        resource_slice(device("new"), generation=2),
        resource_slice(device("nic"), driver="nic.example.com"),
    ]
    assert [each.name for each in published_devices(slices)] == ["new"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(node("n", 1), True, id="a ready node takes work"),
        pytest.param(node("n", 1, ready="False"), False, id="one that is not ready takes none"),
        pytest.param(node("n", 1, ready="Unknown"), False, id="one that does not answer takes none"),
        pytest.param(node("n", 1) | {"spec": {"unschedulable": True}}, False, id="a cordoned one takes none"),
    ],
)
def test_whether_a_node_takes_work(given: dict[str, Any], expected: bool) -> None:
    (found,), _, _ = inventory([given], [])
    assert found.schedulable is expected


PRESSURE = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule", "timeAdded": "2026-11-24T10:00:00Z"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "expected"),
    [
        pytest.param(PRESSURE, [], False, id="a full disk"),
        pytest.param(PRESSURE | {"effect": "PreferNoSchedule"}, [], True, id="an effect that keeps no pod away"),
        pytest.param(PRESSURE, [{"operator": "Exists"}], True, id="jobs tolerate it"),
        pytest.param(
            {"key": "ToBeDeletedByClusterAutoscaler", "value": "1764000000", "effect": "NoSchedule"}, [], False,
            id="the autoscaler removes the node",
        ),
        pytest.param(
            {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}, [], False, id="one that evicts pods"
        ),
        pytest.param(
            {"key": "hub.jupyter.org/dedicated", "value": "user", "effect": "NoSchedule"}, [], True,
            id="one of the site, which notebooks may tolerate",
        ),
    ],
)  # fmt: skip
def test_a_ready_node_with_a_taint_of_its_state_takes_no_work(
    taint: dict[str, str], tolerations: list[dict[str, str]], expected: bool
) -> None:
    given = kept_of_node(node("n", 1) | {"spec": {"taints": [taint]}})
    (found,), (one,), _ = inventory_of([given], [], DRIVER, tolerations=tolerations)
    assert found.schedulable is expected
    assert (one.trouble is None) is expected and one.health is Health.HEALTHY, "what runs there stays"
    if not expected:
        assert str(one.trouble).startswith(f"node n has taints that keep pods away: {taint['key']}")


READY_AT = "2026-11-24T10:00:00Z"


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        pytest.param({"status": "True"}, None, id="a ready node"),
        pytest.param(
            {"status": "Unknown", "lastTransitionTime": READY_AT, "message": "Kubelet stopped posting node status."},
            f"node n is lost: its kubelet has not answered since {READY_AT}", id="one that is lost",
        ),
        pytest.param(
            {"status": "False", "lastTransitionTime": READY_AT, "message": "container runtime is down"},
            f"node n has not been ready since {READY_AT}: container runtime is down", id="one that is not ready",
        ),
        pytest.param({"status": "False"}, "node n has not been ready since an unknown time", id="without a time"),
    ],
)  # fmt: skip
def test_devices_of_a_node_that_is_not_ready_say_why_and_since_when(condition: dict[str, str], why: str | None) -> None:
    given = node("n", 1)
    given["status"]["conditions"] = [{"type": "Ready", **condition}]
    for slices in ([], [resource_slice(device("gpu-0")) | {}]):
        slices = [each | {"spec": each["spec"] | {"nodeName": "n"}} for each in slices]
        assert {each.trouble for each in inventory([given], slices)[1]} == {why}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param(device(), "", id="memory whose default is the whole device"),
        pytest.param(device(allowMultipleAllocations=False), "one claim only", id="a device for one claim"),
        pytest.param(
            device(capacity=device()["capacity"] | {"shares": {"value": "8"}}), "equal size", id="shares of equal size"
        ),
        pytest.param(
            device(capacity={"memory": {"value": MEMORY, "requestPolicy": {"default": "0"}}}),
            "does not take the whole",
            id="a claim that takes nothing by default",
        ),
        pytest.param(
            device(capacity={"memory": {"value": MEMORY}}), "does not take the whole", id="memory without a policy"
        ),
    ],
)  # fmt: skip
def test_whether_parts_of_a_device_can_be_claimed(given: dict[str, Any], why: str) -> None:
    (found,) = published_devices([resource_slice(given)])
    assert (found.is_shareable, why in found.why_not_shareable) == (not why, True)


@pytest.mark.parametrize(
    ("taints", "trouble"),
    [
        pytest.param([], None, id="without taints"),
        pytest.param([{"key": "gpu.nvidia.com/note", "effect": "None"}], None, id="one that only informs"),
        pytest.param(
            [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}], "gpu.nvidia.com/xid=79:NoExecute",
            id="one that ends pods",
        ),
        pytest.param(
            [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}], "a:NoSchedule, b:NoExecute",
            id="several",
        ),
    ],
)  # fmt: skip
def test_a_device_with_a_taint_is_unhealthy(taints: list[dict[str, str]], trouble: str | None) -> None:
    (found,) = inventory([node("gpu01", 8)], [resource_slice(device(taints=taints))]).devices
    health = Health.UNHEALTHY if trouble else Health.HEALTHY
    assert (found.health, found.trouble) == (health, trouble and f"it is tainted: {trouble}")


MIG = {
    "type": {"string": "mig"}, "uuid": {"string": "MIG-0"}, "parentUUID": {"string": "GPU-gpu-0"},
    "productName": {"string": "NVIDIA H100"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("device_class", "expected"),
    [
        pytest.param("", ["gpu-0"], id="the class of the driver has whole GPUs"),
        pytest.param("gpu.nvidia.com", ["gpu-0"], id="the same by name"),
        pytest.param("mig.nvidia.com", ["gpu-0-mig-1"], id="that of MIG instances"),
        pytest.param("of-the-site", ["gpu-0", "gpu-0-mig-1"], id="one of the site may have both"),
    ],
)
def test_only_devices_that_claims_of_the_class_can_get_are_devices(device_class: str, expected: list[str]) -> None:
    whole_gpu = device(attributes=device()["attributes"] | {"gpu.nvidia.com/type": {"string": "gpu"}})
    slices = [resource_slice(whole_gpu, device("gpu-0-mig-1", attributes=MIG))]
    found = devices_of(slices, DRIVER, device_class=device_class)
    assert [each.name for each in found] == expected
    _, devices, _ = inventory_of([node("gpu01")], slices, DRIVER, device_class=device_class)
    assert [each.id for each in devices] == [f"gpu01/{name}" for name in expected]
    left_out = 2 - len(expected)
    assert of_other_classes(slices, DRIVER, device_class) == ({"gpu01": left_out} if left_out else {})


def test_the_types_of_another_driver_are_not_judged() -> None:
    attributes = device()["attributes"] | {"type": {"string": "amdgpu"}}
    (found,) = devices_of([resource_slice(device(attributes=attributes), driver="gpu.amd.com")], "gpu.amd.com")
    assert found.name == "gpu-0"


def test_a_device_names_its_partitions() -> None:
    abstract = {"type": {"string": "mig"}, "parentUUID": {"string": "GPU-gpu-0"}}
    slices = [resource_slice(device(), device("mig-a", attributes=MIG), device("mig-b", attributes=abstract))]
    (found,) = published_devices(slices)
    assert found.partitions == ("mig-a", "mig-b")
    assert of_other_classes(slices, DRIVER) == {"gpu01": 1}, "one without a UUID does not exist yet"


def test_a_device_without_a_uuid_or_memory_is_left_out() -> None:
    assert published_devices([resource_slice(device(attributes={}), device(capacity={}))]) == []


def test_an_annotated_node_has_simulated_devices() -> None:
    _, devices, _ = inventory([node("n", annotations={"gpu-quota.jupyter.org/simulated-gpus": "2"})], [])
    assert [(each.id, each.simulated, each.uuid) for each in devices] == [
        ("n/0", True, "SIM-n-0"), ("n/1", True, "SIM-n-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", Fraction(1)), ("1k", Fraction(1000)), ("125m", Fraction(1, 8)), ("80Gi", Fraction(80 << 30)),
        ("0.5", Fraction(1, 2)), ("1e3", Fraction(1000)), ("12E2", Fraction(1200)), ("1E", Fraction(10**18)),
    ],
)  # fmt: skip
def test_a_quantity_is_exact(text: str, expected: Fraction) -> None:
    assert exact(text) == expected
    assert (whole(text), milli(text)) == (expected // 1, expected * 1000 // 1)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1KB", "0x1"])
def test_a_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        exact(text)


def test_with_dra_alone_nodes_of_a_device_plugin_are_not_used() -> None:
    nodes = [node("gpu01", 2), node("gpu02", 2), node("sim", annotations={SIMULATED_GPUS: "1"})]
    _, devices, _ = inventory_of(nodes, [resource_slice(device())], DRIVER, "dra")
    assert [each.id for each in devices] == ["gpu01/gpu-0", "sim/0"]


def test_without_fractions_a_published_device_is_given_as_a_whole() -> None:
    (found,) = devices_of([resource_slice(device())], DRIVER, "none")
    assert (found.is_shareable, found.why_not_shareable) == (False, "c.GPUQuota.kubernetes_fractions is none")
