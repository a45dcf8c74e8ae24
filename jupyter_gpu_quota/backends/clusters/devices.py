"""The devices of several clusters: their samples, and the enforcement of shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer
from ...core.facts import DeviceFact
from ...core.model import OWN_CLUSTER, Device
from ...core.samples import DeviceSample
from ..protocol import Capabilities, CapabilityReader, DeviceUsers, EnforcementBackend, SampleBackend, StopNotebookOrder
from .names import Names, cluster_of


class ClustersSamples:
    """One sample per device, from the backend of its cluster."""

    def __init__(self, by_name: Mapping[str, SampleBackend]) -> None:
        self._by_name = by_name

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        """The samples that are read already; None where none is."""
        found = [self._of(name, users, now) for name in self._by_name]
        known = [each for each in found if each is not None]
        return [sample for samples in known for sample in samples] if known else None

    def device_facts(self) -> Sequence[DeviceFact]:
        """The facts of all clusters."""
        return [
            replace(fact, device=Names(name).outside(fact.device))
            for name, backend in self._by_name.items()
            for fact in backend.device_facts()
        ]

    def _of(self, name: str, users: DeviceUsers, now: int) -> list[DeviceSample] | None:
        names = Names(name)
        own = {
            names.device(device): names.allocations(held)
            for device, held in users.items()
            if cluster_of(device.node) == name
        }
        found = self._by_name[name].samples(own, now=now)
        if found is None:
            return None
        return [replace(each, device=names.outside(each.device), node=names.outside(each.node)) for each in found]


class ClustersCapabilities:
    """How shares can be enforced, as the cluster of each device says."""

    def __init__(self, by_name: Mapping[str, CapabilityReader]) -> None:
        self._readers = by_name

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """The offers in the order of the devices, and the time of the oldest."""
        by_cluster: dict[str, list[Device]] = {}
        for device in devices:
            by_cluster.setdefault(cluster_of(device.node), []).append(device)
        offers, read_at = dict[str, EnforcementOffer](), []
        for name, own in by_cluster.items():
            names, reader = Names(name), self._readers[name]
            found = reader.capabilities(list(map(names.device, own)), gpu_milli=gpu_milli, project=project)
            read_at.append(found.read_at)
            for device, offer in zip(own, found.offers, strict=True):
                offers[device.id] = replace(offer, device=device.id)
        return Capabilities(offers=tuple(offers[device.id] for device in devices), read_at=min(read_at, default=0))


class ClustersEnforcement(ClustersCapabilities):
    """Labels of shares. Notebooks are stopped in the hub's own cluster, the only one in which they run."""

    def __init__(self, by_name: Mapping[str, EnforcementBackend]) -> None:
        super().__init__(by_name)
        self._by_name = by_name

    @property
    def lends_slices(self) -> bool:
        """As the hub's own cluster says, in which notebooks run."""
        return self._by_name[OWN_CLUSTER].lends_slices

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """A label for each share, by the cluster that its sample names."""
        by_cluster: dict[str, dict[str, DeviceShare]] = {}
        for allocation, share in shares.items():
            sample = samples.get(allocation)
            name = OWN_CLUSTER if sample is None else cluster_of(sample.node)
            by_cluster.setdefault(name if name in self._by_name else OWN_CLUSTER, {})[allocation] = share
        found: dict[str, EnforcementLabel] = {}
        for name, own in by_cluster.items():
            found |= self._by_name[name].read_back(own, samples, policed=policed, now=now)
        return found

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        """Kill the notebook's processes."""
        self._by_name[OWN_CLUSTER].stop_notebook(order)

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Release what is left of other notebooks."""
        self._by_name[OWN_CLUSTER].sweep(notebooks, devices)
