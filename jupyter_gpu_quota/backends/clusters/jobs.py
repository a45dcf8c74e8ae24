"""The jobs of several clusters: each order goes to one of them, and a gang never spans two."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...core.facts import RankFact
from ...core.model import OWN_CLUSTER
from ..protocol import Inventory, JobBackend, StartOrder, StopOrder
from .members import Member, Members
from .names import cluster_of
from .routes import JobRoutes


class ClustersJobs:
    """The job backend. A cluster that is left out of the present term gets no order: the order is repeated."""

    def __init__(self, members: Members, routes: JobRoutes) -> None:
        self._members, self._routes = members, routes

    def inventory(self) -> Inventory:
        """The nodes of all clusters, without those that are left out or cannot be read now."""
        nodes, devices, read = [], [], set()
        for member in self._members.present():
            if (found := member.backend.jobs.inventory()) is not None:
                own_nodes, own_devices = member.names.inventory(found)
                nodes += own_nodes
                devices += own_devices
                read.add(member.name)
        unread = frozenset(member.name for member in self._members.all) - read
        return Inventory(tuple(nodes), tuple(devices), unread)

    def start(self, order: StartOrder) -> None:
        """Start an attempt in the cluster of its devices, once that is stored."""
        name = cluster_of_order(order)
        if (member := self._members.named(name)) is not None:
            self._routes.note(order.job, name, lambda: member.backend.jobs.start(member.names.order(order)))

    def has_code(self, job: str, bundle: str) -> bool:
        """Whether the cluster of a job, which has what was unpacked, says so; one that is left out counts as yes."""
        jobs = self._of(job)
        return jobs is None or jobs.has_code(job, bundle)

    def stop(self, order: StopOrder) -> None:
        """End an attempt in the cluster of its devices, else where the job was started."""
        name = cluster_of(order.devices[0]) if order.devices else self._routes.of(order.job)
        if (member := self._members.named(name)) is not None:
            member.backend.jobs.stop(replace(order, devices=tuple(map(member.names.inside, order.devices))))

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        """As the cluster of the job says; None while that is left out."""
        jobs = self._of(job)
        return None if jobs is None else jobs.stop_ordered_at(job, attempt)

    def observe(self) -> Sequence[RankFact]:
        """The facts of all clusters in this term."""
        return [fact for member in self._members.present() for fact in self._observed(member)]

    def settled(self, job: str, attempt: int) -> None:
        """The end of an attempt is stored."""
        if (jobs := self._of(job)) is not None:
            jobs.settled(job, attempt)

    def forget(self, job: str) -> None:
        """Remove all data of a job. Raises OSError while its cluster is left out."""
        if (jobs := self._of(job)) is None:
            raise OSError(f"cluster {self._routes.of(job)} is left out")
        jobs.forget(job)
        self._routes.forget(job)

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        """The sizes that each cluster measured."""
        by_cluster: dict[str, list[str]] = {}
        for job in jobs:
            by_cluster.setdefault(self._routes.of(job), []).append(job)
        found: dict[str, int | None] = {}
        for name, own in by_cluster.items():
            if (member := self._members.named(name)) is not None:
                found |= member.backend.jobs.output_sizes(own)
        return found

    def remove_outputs(self, job: str) -> None:
        """Remove the outputs of a job."""
        if (jobs := self._of(job)) is not None:
            jobs.remove_outputs(job)

    def fence(self, fencing: int) -> None:
        """Refuse older leaders in each cluster that can be read. Raises OSError where none can."""
        self._members.fence(fencing)
        self._routes.read_again()

    def _of(self, job: str) -> JobBackend | None:
        """The backend of a job; None where it is left out."""
        member = self._members.named(self._routes.of(job))
        return None if member is None else member.backend.jobs

    def _observed(self, member: Member) -> Sequence[RankFact]:
        found = member.backend.jobs.observe()
        if member.name != OWN_CLUSTER:
            for job in {fact.job for fact in found}:
                self._routes.note(job, member.name)
        return found


def cluster_of_order(order: StartOrder) -> str:
    """The cluster of a start order. Raises ValueError for devices of two: the pool of a job is in one cluster."""
    found = {cluster_of(device.node) for device in order.devices} or {OWN_CLUSTER}
    if len(found) > 1:
        raise ValueError(f"job {order.job} has devices of {' and '.join(sorted(found))}: a job runs in one cluster")
    return found.pop()
