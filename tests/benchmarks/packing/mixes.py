"""Other mixes from the openb trace by resampling, as in the paper: they expose a policy that is tuned to one mix.

A mix requests as much GPU as the trace. Each is a function of the trace alone; its seed is fixed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jupyter_gpu_quota.core.model import WHOLE_DEVICE
from jupyter_gpu_quota.simulate.packing.trace import ClusterTrace, TraceNode, TraceTask

OF_CAPACITY = 98
"""Percent of the cluster's GPU that a mix requests, like the trace itself."""


def _kind(task: TraceTask) -> str:
    if not task.gpu_milli:
        return "none"
    return "fraction" if task.gpu_milli < WHOLE_DEVICE else "one" if task.gpu_milli == WHOLE_DEVICE else "many"


def resampled(trace: ClusterTrace, share: Mapping[str, int], without_gpu: int) -> ClusterTrace:
    """Tasks drawn so that each kind requests its percentage of the GPU, and a given percentage of the tasks none."""
    drawn = random.Random(1)
    kinds = {kind: [task for task in trace.tasks if _kind(task) == kind] for kind in (*share, "none")}
    target = sum(node.gpus for node in trace.nodes) * WHOLE_DEVICE * OF_CAPACITY // 100
    tasks: list[TraceTask] = []
    for kind, percent in share.items():
        asked = 0
        while asked < target * percent // 100:
            tasks.append(drawn.choice(kinds[kind]))
            asked += tasks[-1].gpu_milli
    more = len(tasks) * without_gpu // (100 - without_gpu)
    tasks += [drawn.choice(kinds["none"]) for _ in range(more)]
    return replace(trace, tasks=_named(tasks))


def constrained(trace: ClusterTrace, percent: int) -> ClusterTrace:
    """A given percentage of the GPU tasks run on one model only, drawn by its number of devices."""
    drawn = random.Random(2)
    models = [node.model for node in trace.nodes for _ in range(node.gpus)]
    tasks = []
    for task in trace.tasks:
        model = drawn.choice(models)
        chosen = drawn.randrange(100) < percent and could_run(task, model, trace.nodes)
        tasks.append(replace(task, models=(model,)) if task.gpu_milli and chosen else task)
    return replace(trace, tasks=tuple(tasks))


def could_run(task: TraceTask, model: str, nodes: Sequence[TraceNode]) -> bool:
    """Whether a task fits an empty node of a model."""
    devices = -(-task.gpu_milli // WHOLE_DEVICE)
    return any(
        node.model == model
        and node.gpus >= devices
        and node.cpu_milli >= task.cpu_milli
        and node.memory_mib >= task.memory_mib
        for node in nodes
    )


def _named(tasks: Sequence[TraceTask]) -> tuple[TraceTask, ...]:
    return tuple(replace(task, name=f"task-{number}") for number, task in enumerate(tasks))


MIXES: dict[str, Callable[[ClusterTrace], ClusterTrace]] = {
    "more fractions": lambda trace: resampled(trace, {"fraction": 80, "one": 18, "many": 2}, 13),
    "more multi-GPU": lambda trace: resampled(trace, {"fraction": 15, "one": 35, "many": 50}, 13),
    "more CPU-only": lambda trace: resampled(trace, {"fraction": 29, "one": 64, "many": 7}, 25),
    "more model constraints": lambda trace: constrained(trace, 33),
}
