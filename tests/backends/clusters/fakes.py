"""Clusters in memory that can be away: nothing of them is read then, and no order reaches them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_gpu_quota.backends.clusters.backend import ClustersBackend
from jupyter_gpu_quota.backends.clusters.members import Member, Members
from jupyter_gpu_quota.backends.clusters.routes import JobRoutes
from jupyter_gpu_quota.backends.protocol import Inventory, StartOrder, StopOrder
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import OWN_CLUSTER, Device, Node
from jupyter_gpu_quota.core.recovery.differences import AttemptRecord
from tests.backends.fake_executor import FakeJobs

WEST = "west"
NODE = Node(id="n1", name="n1", cpu_milli=16_000, memory_mib=65_536)
DEVICES = tuple(
    Device(id=f"n1/{index}", node="n1", index=index, model="Big", memory_mib=16_384, pool=None) for index in range(2)
)


@dataclass(slots=True)
class FakeCluster(FakeJobs):
    """One cluster: its jobs and the records of their attempts. ``fences`` counts the calls that changed nothing too."""

    is_away: bool = False
    fences: list[int] = field(default_factory=list)
    orders: dict[tuple[str, int], StartOrder] = field(default_factory=dict)

    @property
    def jobs(self) -> FakeCluster:
        return self

    @property
    def attempts(self) -> FakeCluster:
        return self

    samples = enforcement = outputs = None

    def _check(self) -> None:
        if self.is_away:
            raise OSError("the API server does not answer")

    def inventory(self) -> Inventory | None:  # type: ignore[override]
        return None if self.is_away else FakeJobs.inventory(self)

    def start(self, order: StartOrder) -> None:
        if not self.is_away:
            FakeJobs.start(self, order)
            self.orders[order.job, order.attempt] = order

    def stop(self, order: StopOrder) -> None:
        if not self.is_away:
            FakeJobs.stop(self, order)

    def observe(self) -> Sequence[RankFact]:
        return () if self.is_away else FakeJobs.observe(self)

    def fence(self, fencing: int) -> None:
        self._check()
        self.fences.append(fencing)
        FakeJobs.fence(self, fencing)

    # --- attempts -------------------------------------------------------------------------------------------------
    def newest_fence(self) -> int:
        self._check()
        return self.fencing

    def left_out(self) -> Mapping[str, bool]:
        return {}

    def unsettled(self) -> Collection[tuple[str, int]]:
        self._check()
        return {key[:2] for key, run in self._runs.items() if not run.settled}

    def newest(self, jobs: Collection[str]) -> list[AttemptRecord]:
        self._check()
        found: dict[str, AttemptRecord] = {}
        for (job, attempt, _), run in sorted(self._runs.items()):
            order = self.orders[job, attempt]
            found[job] = AttemptRecord(
                job=job, attempt=attempt, facts=(run.fact,), ranks=order.ranks, placements=order.placements
            )
        return list(found.values())

    def close(self) -> None:
        """Nothing to release."""


class TwoClusters:
    """The hub's own cluster and ``west``, whose nodes and devices have the same names, as one backend."""

    def __init__(self, folder: Path, now: Callable[[], int] = lambda: 0) -> None:
        self.folder, self.now = folder, now
        self.own, self.west = (FakeCluster(now=now, nodes=(NODE,), devices=DEVICES) for _ in range(2))
        self.backend = self.another()

    def another(self) -> ClustersBackend:
        """The backend of another process."""
        members = Members(
            [Member(OWN_CLUSTER, self.own), Member(WEST, self.west)],  # type: ignore[arg-type]
            clock=lambda: self.now() / 1000,
        )
        return ClustersBackend(members, JobRoutes(self.folder, [WEST], later=lambda task: task()))
