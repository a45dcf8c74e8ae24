"""The packing experiment through ``decide``, which considers all waiting tasks together: no task ends.

The tasks offered up to a mark wait together, and one plan starts some of them; then the tasks up to the next mark are
added. No task is paused or moved. One project has the whole cluster as its training quota. The queue takes no work
without GPU: such tasks are placed before each plan, and their CPU and memory are taken from their nodes. The backfill
reservation keeps no room free, because a waiting task has a time limit that ends before any planned start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...core.model import Allocation, Amounts, Job, JobState, Policy, Project, Snapshot
from ...core.placement.ledger import Ledger
from ...core.placement.place import Fit, Piece, Request, occupy, place
from ...core.placement.workload_profile import profile_of_jobs
from ...core.plan import Start
from ...core.scheduling.decide import decide
from .fill import POOL, FillFigures, TaskPlacement, capacity_milli, devices_of, marks_up_to, nodes_of, offered
from .trace import TraceNode, TraceTask

EVERYBODY = "everybody"
DAY_S = 86_400


def fill_by_decide(nodes: Sequence[TraceNode], tasks: Sequence[TraceTask], seed: int, demand: int = 130) -> FillFigures:
    """One run, as :func:`.fill.fill`; what is allocated changes at 100, 110, 120 and 130 percent and at the end."""
    capacity = capacity_milli(nodes)
    order = list(offered(tasks, capacity * demand // 100, seed))
    cluster, figures = _Cluster(nodes, order), [(0, 0)] * demand
    for mark in marks_up_to(demand):
        count = _up_to(order, capacity * mark // 100)
        cluster.join(count)
        requested = sum(task.gpu_milli for task in order[:count])
        figures[mark - 1 :] = [(requested, cluster.decide())] * (demand - mark + 1)
    offers, allocated_amounts = zip(*figures, strict=True)
    return FillFigures(
        seed=seed,
        capacity_milli=capacity,
        asked_milli=offers,
        allocated_milli=allocated_amounts,
        placements=tuple(cluster.placements),
    )


def _up_to(order: Sequence[TraceTask], least_milli: int) -> int:
    """The number of tasks that are offered until they request this amount."""
    requested = 0
    for at, task in enumerate(order):
        requested += task.gpu_milli
        if requested >= least_milli:
            return at + 1
    return len(order)


class _Cluster:
    """The cluster; ``placements`` by the number of the task."""

    def __init__(self, nodes: Sequence[TraceNode], order: Sequence[TraceTask]) -> None:
        self._order = order
        self.placements: list[TaskPlacement | None] = [None] * len(order)
        self._joined = 0
        self._nodes, self._devices = nodes_of(nodes), devices_of(nodes)
        self._number = {device.id: at for at, device in enumerate(self._devices)}
        self._held: dict[int, tuple[Allocation, ...]] = {}
        quota = Amounts(training_milli=capacity_milli(nodes))
        self._policy = Policy(
            revision=1,
            pools=(POOL,),
            projects=(Project(name=EVERYBODY, amounts={POOL: quota}),),
            within_project="first_come",
        )

    def join(self, count: int) -> None:
        """Offer more tasks, up to this number; those without GPU are placed."""
        more = range(self._joined, count)
        self._joined = count
        self._place_without_gpu(at for at in more if not self._order[at].gpu_milli)

    def decide(self) -> int:
        """Start the tasks that one plan starts. Returns the milli-GPU that is allocated then."""
        for action in decide(self._snapshot(), self._policy).actions:
            if isinstance(action, Start):
                self._start(int(action.workload), action)
        return sum(self._order[at].gpu_milli for at in self._held)

    def _start(self, at: int, action: Start) -> None:
        self._held[at] = tuple(
            Allocation(
                id=f"{at:08d}/{number}", workload=action.workload, rank=placed.rank, device=placed.device,
                gpu_milli=placed.gpu_milli, memory_mib=0,
            )
            for number, placed in enumerate(action.placements)
        )  # fmt: skip
        devices = [self._devices[self._number[placed.device]] for placed in action.placements]
        self.placements[at] = TaskPlacement(
            node=int(devices[0].node), devices=tuple(device.index for device in devices)
        )

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            version=1,
            now=self._joined,
            nodes=tuple(self._nodes),
            devices=tuple(self._devices),
            jobs=self._jobs(),
            allocations=tuple(part for parts in self._held.values() for part in parts),
        )

    def _jobs(self) -> tuple[Job, ...]:
        return tuple(self._job(at) for at in range(self._joined) if self._order[at].gpu_milli)

    def _job(self, at: int) -> Job:
        task = self._order[at]
        waiting = Job(
            id=f"{at:08d}", project=EVERYBODY, user=EVERYBODY, pool=POOL, gpu_milli=task.gpu_milli, submitted_at=at,
            gpu_models=task.models, cpu_milli=task.cpu_milli, memory_mib=task.memory_mib, preemptible=False,
            time_limit_s=1,
        )  # fmt: skip
        if at not in self._held:
            return waiting
        return replace(waiting, state=JobState.RUNNING, started_at=0, time_limit_s=DAY_S)

    def _place_without_gpu(self, numbers: Iterable[int]) -> None:
        ledger = Ledger(self._devices, self._nodes, demand=profile_of_jobs(self._jobs()))
        for at, parts in self._held.items():
            occupy(ledger, self._pieces(at, parts), borrowed=False)
        for at in numbers:
            task = self._order[at]
            fit = place(ledger, Request(0, 1, task.models, task.cpu_milli, task.memory_mib))
            if isinstance(fit, Fit):
                occupy(ledger, fit.pieces, borrowed=False)
                self._place_on_node(at, ledger.node_of[fit.pieces[0].device])

    def _pieces(self, at: int, parts: Sequence[Allocation]) -> list[Piece]:
        task = self._order[at]
        pieces = [Piece(0, self._number[part.device], part.gpu_milli) for part in parts]
        pieces[0] = pieces[0]._replace(cpu_milli=task.cpu_milli, memory_mib=task.memory_mib)
        return pieces

    def _place_on_node(self, at: int, node: int) -> None:
        """Place a task without GPU on a node."""
        task, there = self._order[at], self._nodes[node]
        self._nodes[node] = replace(
            there, cpu_milli=there.cpu_milli - task.cpu_milli, memory_mib=there.memory_mib - task.memory_mib
        )
        self.placements[at] = TaskPlacement(node=node, devices=())
