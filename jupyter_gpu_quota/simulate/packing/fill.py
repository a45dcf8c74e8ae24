"""The packing experiment of "Beware of Fragmentation" (USENIX ATC 2023) on the shipped placement.

The tasks are shuffled, and randomly drawn copies are appended until they request enough GPU. They are submitted one by
one to an empty cluster; no task ends. CPU, memory and GPU all count. The placement learns the demand from the tasks
submitted so far, never from later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from ...core.model import WHOLE_DEVICE, Device, Node
from ...core.placement.ledger import Ledger
from ...core.placement.place import Fit, Request, occupy, place
from ...core.placement.workload_profile import ObservedDemand
from .trace import TraceNode, TraceTask

MARKS = (100, 110, 120, 130)
"""Percent of the cluster's GPU that was offered: the points at which the paper gives its figures."""

POOL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlacement:
    """The number of a task's node, and those of the devices on it (none for a task without GPU)."""

    node: int
    devices: tuple[int, ...]


class Placer(Protocol):
    """Places one task after the other."""

    def offer(self, task: TraceTask) -> TaskPlacement | None:
        """Place a task for good; None where it fits nowhere."""


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


def fill(
    nodes: Sequence[TraceNode], tasks: Sequence[TraceTask], seed: int, demand: int = 130, placer: Placer | None = None
) -> FillFigures:
    """One run: ``demand`` is how much is offered, in percent of the cluster's GPU; the shipped placement, or another.

    Raises ValueError where the tasks ask for no GPU, so that no demand could be reached.
    """
    capacity = capacity_milli(nodes)
    placer = placer or Shipped(nodes)
    placements: list[TaskPlacement | None] = []
    figures: list[tuple[int, int]] = []
    allocated = requested = 0
    for task in offered(tasks, capacity * demand // 100, seed):
        placement = placer.offer(task)
        placements.append(placement)
        requested += task.gpu_milli
        allocated += task.gpu_milli if placement else 0
        while len(figures) < min(demand, requested * 100 // capacity):
            figures.append((requested, allocated))
    offers, allocated_amounts = zip(*figures, strict=True)
    return FillFigures(
        seed=seed, capacity_milli=capacity, asked_milli=offers, allocated_milli=allocated_amounts,
        placements=tuple(placements),
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


class Shipped:
    """The placement that ``decide`` uses, one task at a time, with the demand learnt from the tasks so far."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self._ledger = Ledger(devices_of(nodes), nodes_of(nodes))
        self._seen = ObservedDemand()

    def offer(self, task: TraceTask) -> TaskPlacement | None:
        """See :class:`Placer`."""
        ledger = self._ledger
        demand = self._seen.note((task.gpu_milli, task.cpu_milli, task.memory_mib, task.models))
        if demand is not None:
            ledger.set_demand(demand)
        fit = place(ledger, Request(task.gpu_milli, 1, task.models, task.cpu_milli, task.memory_mib))
        if not isinstance(fit, Fit):
            return None
        occupy(ledger, fit.pieces, borrowed=False)
        node = ledger.node_of[fit.pieces[0].device]
        index = (ledger.devices[piece.device].index for piece in fit.pieces)
        return TaskPlacement(node=node, devices=tuple(index) if task.gpu_milli else ())


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
