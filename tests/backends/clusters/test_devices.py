"""The samples and the enforcement of devices in several clusters: each is asked for its own, by its own names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from jupyter_gpu_quota.backends.clusters.devices import ClustersEnforcement, ClustersSamples
from jupyter_gpu_quota.backends.protocol import Capabilities, DeviceUsers, StopNotebookOrder
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import OWN_CLUSTER, Allocation, Device
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.backends.clusters.fakes import DEVICES, WEST

OWN, ELSEWHERE = DEVICES[0], replace(DEVICES[1], id="west:n1/1", node="west:n1")
USERS = {
    OWN: [Allocation(id="a", workload="J", rank=0, device=OWN.id, gpu_milli=1000, memory_mib=1)],
    ELSEWHERE: [Allocation(id="b", workload="K", rank=0, device=ELSEWHERE.id, gpu_milli=1000, memory_mib=1)],
}


class Part:
    """The samples and the enforcement of one cluster. ``is_read``: its samples are there; ``asked``: what it was."""

    def __init__(self, name: str) -> None:
        self.lends_slices = name != WEST
        self.name, self.is_read, self.asked = name, True, list[str]()

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        self.asked = [f"{device.id} on {device.node}: {part.device}" for device in users for part in users[device]]
        return [sample(device) for device in users] if self.is_read else None

    def device_facts(self) -> Sequence[DeviceFact]:
        return [DeviceFact(device="n1/1", foreign_milli=500)] if self.name == WEST else []

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        self.asked = [device.id for device in devices]
        offers = tuple(EnforcementOffer(device=device.id, why=self.name) for device in devices)
        return Capabilities(offers=offers, read_at=7 if self.name == WEST else 9)

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        return dict.fromkeys(shares, EnforcementLabel(why=self.name))

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        self.asked.append(order.notebook)

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        self.asked.append("sweep")


def sample(device: Device) -> DeviceSample:
    return DeviceSample(
        node=device.node, device=device.id, at=1, utilisation_percent=None, memory_used_mib=None, coverage_permille=0,
        simulated=False,
    )  # fmt: skip


@pytest.fixture
def parts() -> dict[str, Part]:
    return {name: Part(name) for name in (OWN_CLUSTER, WEST)}


def test_each_cluster_samples_its_own_devices(parts: dict[str, Part]) -> None:
    found = ClustersSamples(parts).samples(USERS, now=1)
    assert found is not None
    assert [(each.node, each.device) for each in found] == [("n1", "n1/0"), ("west:n1", "west:n1/1")]
    assert {name: part.asked for name, part in parts.items()} == {
        OWN_CLUSTER: ["n1/0 on n1: n1/0"], WEST: ["n1/1 on n1: n1/1"],
    }  # fmt: skip
    assert [fact.device for fact in ClustersSamples(parts).device_facts()] == ["west:n1/1"]


def test_the_samples_of_a_cluster_do_not_wait_for_those_of_another(parts: dict[str, Part]) -> None:
    parts[WEST].is_read = False
    found = ClustersSamples(parts).samples(USERS, now=1)
    assert found is not None and [each.device for each in found] == ["n1/0"]
    parts[OWN_CLUSTER].is_read = False
    assert ClustersSamples(parts).samples(USERS, now=1) is None


def test_offers_are_in_the_order_of_the_devices(parts: dict[str, Part]) -> None:
    found = ClustersEnforcement(parts).capabilities([ELSEWHERE, OWN], gpu_milli=500, project=None)
    assert [(each.device, each.why) for each in found.offers] == [("west:n1/1", WEST), ("n1/0", OWN_CLUSTER)]
    assert (found.read_at, parts[WEST].asked) == (7, ["n1/1"])


def test_a_share_is_read_back_where_its_sample_was_taken(parts: dict[str, Part]) -> None:
    share = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=1)
    samples = {"a": sample(OWN), "b": sample(ELSEWHERE), "c": replace(sample(ELSEWHERE), node="gone:n1")}
    labels = ClustersEnforcement(parts).read_back(dict.fromkeys("abcd", share), samples, policed=True, now=1)
    assert {name: label.why for name, label in labels.items()} == {
        "a": OWN_CLUSTER, "b": WEST, "c": OWN_CLUSTER, "d": OWN_CLUSTER,
    }  # fmt: skip


def test_notebooks_are_stopped_in_the_hubs_own_cluster(parts: dict[str, Part]) -> None:
    enforcement = ClustersEnforcement(parts)
    enforcement.stop_notebook(StopNotebookOrder(notebook="N", fencing=1, reason="over_share"))
    enforcement.sweep(["N"], [])
    assert (parts[OWN_CLUSTER].asked, parts[WEST].asked) == (["N", "sweep"], [])
    assert enforcement.lends_slices  # as the own cluster says
