"""Placements alone in the packing experiment, one task after the other: the shipped one, and peers beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jupyter_gpu_quota.core.model import Demand
from jupyter_gpu_quota.core.placement.ledger import Ledger
from jupyter_gpu_quota.core.placement.place import Fit, Request, occupy, place
from jupyter_gpu_quota.core.placement.workload_profile import ObservedDemand
from jupyter_gpu_quota.simulate.packing.fill import (
    TICK_PERCENT,
    FillFigures,
    TaskPlacement,
    capacity_milli,
    devices_of,
    nodes_of,
    offered,
)
from jupyter_gpu_quota.simulate.packing.trace import TraceNode, TraceTask


class Placer(Protocol):
    """Places one task after the other."""

    def offer(self, task: TraceTask) -> TaskPlacement | None:
        """Place a task for good; None where it fits nowhere."""


def place_one_by_one(
    nodes: Sequence[TraceNode], tasks: Sequence[TraceTask], seed: int, placer: Placer, demand: int = 130
) -> FillFigures:
    """One run: ``demand`` is how much is offered, in percent of the cluster's GPU."""
    capacity = capacity_milli(nodes)
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


class Shipped:
    """The placement that ``decide`` uses, one task at a time, with the demand learnt from the tasks so far.

    The prices follow the room at every two percent of the cluster's GPU, as in plans that start so much.
    """

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self._ledger = Ledger(devices_of(nodes), nodes_of(nodes))
        self._seen, self._demand = ObservedDemand(), tuple[Demand, ...]()
        self._tick_milli = capacity_milli(nodes) * TICK_PERCENT // 100
        self._offered_milli = self._next_milli = 0

    def offer(self, task: TraceTask) -> TaskPlacement | None:
        """See :class:`Placer`."""
        ledger = self._ledger
        demand = self._seen.note((task.gpu_milli, task.cpu_milli, task.memory_mib, task.models))
        self._demand = demand or self._demand
        self._offered_milli += task.gpu_milli
        if demand or self._offered_milli >= self._next_milli:
            self._next_milli = self._offered_milli + self._tick_milli
            ledger.set_demand(self._demand)
        fit = place(ledger, Request(task.gpu_milli, 1, task.models, task.cpu_milli, task.memory_mib))
        if not isinstance(fit, Fit):
            return None
        occupy(ledger, fit.pieces, borrowed=False)
        node = ledger.node_of[fit.pieces[0].device]
        index = (ledger.devices[piece.device].index for piece in fit.pieces)
        return TaskPlacement(node=node, devices=tuple(index) if task.gpu_milli else ())
