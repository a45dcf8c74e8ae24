"""The packing experiment of "Beware of Fragmentation" (USENIX ATC 2023) through ``decide``.

The tasks are shuffled, and randomly drawn copies are appended until they request enough GPU. They are submitted to an
empty cluster in ticks, for two percent of its GPU each, and one plan starts those of a tick, in their order; a
task that finds no room is turned away, and no task ends. CPU, memory and GPU all count. The workload profile comes from
the tasks so far, never from those of a later tick. One project has the whole cluster as its training quota.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from ...core.model import (
    WHOLE_DEVICE,
    Allocation,
    Amounts,
    Device,
    Job,
    JobState,
    Node,
    Policy,
    Project,
    Snapshot,
)
from ...core.placement.ledger import Ledger
from ...core.placement.place import Fit, Piece, Request, occupy, place
from ...core.placement.workload_profile import ObservedDemand
from ...core.plan import Start
from ...core.scheduling.cache.decision_cache import DecisionCache
from ...core.scheduling.decide import decide
from .trace import TraceNode, TraceTask

MARKS = (100, 110, 120, 130)
"""Percent of the cluster's GPU that was offered: the points at which the paper gives its figures."""

TICK_PERCENT = 2
"""Percent of the cluster's GPU that the tasks of a tick request."""

POOL, EVERYBODY = "all", "everybody"
DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlacement:
    """The number of a task's node, and those of the devices on it (none for a task without GPU)."""

    node: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillFigures:
    """The allocated part of a capacity in milli-GPU, and the placement of each task, in order.

    ``allocated_milli`` is the amount after each whole percent of the capacity, from 1 on, was requested, or more: then
    ``asked_milli`` was requested.
    """

    seed: int
    capacity_milli: int
    asked_milli: tuple[int, ...]
    allocated_milli: tuple[int, ...]
    placements: tuple[TaskPlacement | None, ...]

    def percent(self, mark: int) -> float:
        """Allocated GPU in percent of the cluster's, once so many percent had been offered."""
        return 100 * self.allocated_milli[mark - 1] / self.capacity_milli


def fill(nodes: Sequence[TraceNode], tasks: Sequence[TraceTask], seed: int, demand: int = 130) -> FillFigures:
    """One run: ``demand`` is how much is offered, in percent of the cluster's GPU.

    Raises ValueError where the tasks ask for no GPU, so that no demand could be reached.
    """
    capacity = capacity_milli(nodes)
    order = list(offered(tasks, capacity * demand // 100, seed))
    requested = list(accumulate(task.gpu_milli for task in order))
    cluster, done, figures = _Cluster(nodes), 0, list[tuple[int, int]]()
    for mark in range(1, demand + 1):
        until = min(-(-mark // TICK_PERCENT) * TICK_PERCENT, demand)
        count = bisect_left(requested, capacity * until // 100) + 1
        if count > done:
            cluster.tick(order[done:count])
            done = count
        figures.append((requested[count - 1], cluster.allocated_milli))
    offers, allocated_amounts = zip(*figures, strict=True)
    return FillFigures(
        seed=seed, capacity_milli=capacity, asked_milli=offers, allocated_milli=allocated_amounts,
        placements=tuple(cluster.placements),
    )  # fmt: skip


def marks_up_to(demand: int) -> list[int]:
    """The marks below a demand, and the demand itself, in percent."""
    return sorted({*(mark for mark in MARKS if mark < demand), demand})


def capacity_milli(nodes: Iterable[TraceNode]) -> int:
    """The GPU of the cluster, in milli-GPU."""
    return sum(node.gpus for node in nodes) * WHOLE_DEVICE


def offered(tasks: Sequence[TraceTask], least_milli: int, seed: int) -> Iterator[TraceTask]:
    """The tasks shuffled, then copies of any of them, until they request at least ``least_milli``."""
    if not any(task.gpu_milli for task in tasks):
        raise ValueError("The tasks ask for no GPU; name a trace in which some do.")
    requested = 0
    for task in _endless_tasks(tasks, Random(seed)):  # noqa: S311 - a simulation, not a secret
        requested += task.gpu_milli
        yield task
        if requested >= least_milli:
            return


def _endless_tasks(tasks: Sequence[TraceTask], random: Random) -> Iterator[TraceTask]:
    order = list(tasks)
    random.shuffle(order)
    yield from order
    while True:
        yield tasks[random.randrange(len(tasks))]


class _Cluster:
    """The cluster; ``placements`` by the number of the task, in the order in which they were offered."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self.placements: list[TaskPlacement | None] = []
        self.allocated_milli = 0
        self._nodes, self._devices = nodes_of(nodes), devices_of(nodes)
        self._number = {device.id: at for at, device in enumerate(self._devices)}
        self._ledger, self._seen = Ledger(self._devices, self._nodes), ObservedDemand()
        self._running: dict[int, Job] = {}
        self._allocations: list[Allocation] = []
        self._cache = DecisionCache()
        quota = Amounts(training_milli=capacity_milli(nodes))
        self._policy = Policy(
            revision=1,
            pools=(POOL,),
            projects=(Project(name=EVERYBODY, amounts={POOL: quota}),),
            within_project="first_come",
        )

    def tick(self, tasks: Sequence[TraceTask]) -> None:
        """Place further tasks: those without GPU, which the queue does not take, then the others by one plan."""
        first = len(self.placements)
        self.placements += [None] * len(tasks)
        for at, task in enumerate(tasks, first):
            self._note(task)
            if not task.gpu_milli:
                self._place_without_gpu(at, task)
        waiting = {at: _job(at, task) for at, task in enumerate(tasks, first) if task.gpu_milli}
        for action in decide(self._snapshot(waiting.values()), self._policy, self._cache).actions:
            if isinstance(action, Start):
                self._start(waiting[int(action.workload)], action)

    def _snapshot(self, waiting: Iterable[Job]) -> Snapshot:
        return Snapshot(
            version=1,
            now=len(self.placements),
            nodes=tuple(self._nodes),
            devices=tuple(self._devices),
            jobs=(*self._running.values(), *waiting),
            allocations=tuple(self._allocations),
        )

    def _start(self, job: Job, action: Start) -> None:
        at = int(job.id)
        self._running[at] = replace(job, state=JobState.RUNNING, started_at=0, time_limit_s=DAY_S)
        self._allocations += [
            Allocation(
                id=f"{job.id}/{number}", workload=job.id, rank=placed.rank, device=placed.device,
                gpu_milli=placed.gpu_milli, memory_mib=0,
            )
            for number, placed in enumerate(action.placements)
        ]  # fmt: skip
        self.allocated_milli += job.gpu_milli
        pieces = [Piece(0, self._number[placed.device], placed.gpu_milli) for placed in action.placements]
        pieces[0] = pieces[0]._replace(cpu_milli=job.cpu_milli, memory_mib=job.memory_mib)
        occupy(self._ledger, pieces, borrowed=False)
        devices = [self._devices[piece.device] for piece in pieces]
        self.placements[at] = TaskPlacement(
            node=int(devices[0].node), devices=tuple(device.index for device in devices)
        )

    def _note(self, task: TraceTask) -> None:
        demand = self._seen.note((task.gpu_milli, task.cpu_milli, task.memory_mib, task.models))
        if demand is not None:
            self._ledger.set_demand(demand)

    def _place_without_gpu(self, at: int, task: TraceTask) -> None:
        """Place a task on a node, and take its CPU and memory from what the node has for others."""
        fit = place(self._ledger, Request(0, 1, task.models, task.cpu_milli, task.memory_mib))
        if not isinstance(fit, Fit):
            return
        occupy(self._ledger, fit.pieces, borrowed=False)
        node = self._ledger.node_of[fit.pieces[0].device]
        there = self._nodes[node]
        self._nodes[node] = replace(
            there, cpu_milli=there.cpu_milli - task.cpu_milli, memory_mib=there.memory_mib - task.memory_mib
        )
        self.placements[at] = TaskPlacement(node=node, devices=())


def _job(at: int, task: TraceTask) -> Job:
    """A task that waits. Its time limit ends before any planned start, so that no reservation excludes it."""
    return Job(
        id=f"{at:08d}", project=EVERYBODY, user=EVERYBODY, pool=POOL, gpu_milli=task.gpu_milli, submitted_at=at,
        gpu_models=task.models, cpu_milli=task.cpu_milli, memory_mib=task.memory_mib, preemptible=False, time_limit_s=1,
    )  # fmt: skip


def nodes_of(nodes: Iterable[TraceNode]) -> list[Node]:
    """The machines as the core knows them, named by number."""
    return [
        Node(id=_id(number), name=node.name, cpu_milli=node.cpu_milli, memory_mib=node.memory_mib)
        for number, node in enumerate(nodes)
    ]


def devices_of(nodes: Iterable[TraceNode]) -> list[Device]:
    """Their devices, all in one pool."""
    return [
        Device(
            id=f"{_id(number)}/{index:03d}", node=_id(number), index=index, model=node.model, memory_mib=0, pool=POOL
        )
        for number, node in enumerate(nodes)
        for index in range(node.gpus)
    ]


def _id(number: int) -> str:
    return f"{number:06d}"
