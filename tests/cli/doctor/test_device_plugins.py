"""What ``doctor`` says of devices that jobs do not get."""

from __future__ import annotations

from jupyter_gpu_quota.backends.kubernetes.cluster_report import ClusterReport, _of_plugins
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from jupyter_gpu_quota.cli.doctor.cluster import results
from tests.backends.kubernetes.test_inventory import node

SETTINGS = PodSettings(namespace="jobs", hub="test", image="none", volume_claim="jobs")


def test_slices_and_unhealthy_devices_are_named() -> None:
    slices = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    broken = node("b", 8)
    broken["status"] |= {"allocatable": {"nvidia.com/gpu": "7"}}
    found = _of_plugins([node("a", 32, labels=slices), broken, node("c", 8), node("d")])
    report = ClusterReport(version="v1.36", missing=(), fence=1, published={}, used_by_others={}, taints={}, **found)
    said = {each.what: each.found for each in results(report, SETTINGS)}
    assert said["time slices"].endswith("on a (4 of each device)")
    assert said["unhealthy"] == "the device plugin does not give all devices of b (1)"


def test_devices_of_another_class_are_counted_by_node() -> None:
    report = ClusterReport(
        version="v1.36", missing=(), fence=1, published={}, used_by_others={}, taints={}, of_other_classes={"a": 7}
    )
    said = {each.what: each.found for each in results(report, SETTINGS)}
    assert said["device class"] == "class gpu.nvidia.com does not have all devices of these nodes: a (7)"


def test_a_cluster_of_whole_devices_has_no_such_line() -> None:
    assert _of_plugins([node("c", 8), node("d")]) == {"sliced": {}, "unhealthy": {}}
