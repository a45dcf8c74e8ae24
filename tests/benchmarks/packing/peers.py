"""Placements from the literature, re-implemented: random, best-fit, best-fit by GPU only, and FGD.

They place one task at a time into the same clusters as the shipped placement. Where a paper leaves a tie open, the
docstring names the choice; figures made with these are labelled re-implemented.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jupyter_gpu_quota.core.model import WHOLE_DEVICE
from jupyter_gpu_quota.simulate.packing.fill import TaskPlacement
from jupyter_gpu_quota.simulate.packing.trace import TraceNode, TraceTask

Score = tuple[float, ...]


class State(NamedTuple):
    """The free amounts of a node; nodes in equal state are grouped."""

    model: str
    cpu_milli: int
    memory_mib: int
    free: tuple[int, ...]

    def takes(self, task: TraceTask) -> bool:
        """Whether a task fits."""
        if task.cpu_milli > self.cpu_milli or task.memory_mib > self.memory_mib:
            return False
        if task.models and self.model not in task.models:
            return False
        if task.gpu_milli <= WHOLE_DEVICE:
            return max(self.free, default=0) >= task.gpu_milli
        return self.free.count(WHOLE_DEVICE) >= task.gpu_milli // WHOLE_DEVICE

    def choices(self, task: TraceTask) -> Iterator[tuple[int, State]]:
        """The free amount of the shared device (0: whole devices or none), and the state after the placement."""
        after = self._replace(cpu_milli=self.cpu_milli - task.cpu_milli, memory_mib=self.memory_mib - task.memory_mib)
        if not task.gpu_milli:
            yield 0, after
        elif task.gpu_milli < WHOLE_DEVICE:
            for free in sorted({free for free in self.free if free >= task.gpu_milli}):
                left = list(self.free)
                left[left.index(free)] -= task.gpu_milli
                yield free, after._replace(free=tuple(sorted(left)))
        else:
            many = task.gpu_milli // WHOLE_DEVICE
            yield 0, after._replace(free=(0,) * many + self.free[: len(self.free) - many])


class Peer(ABC):
    """A placement that scores every state that a node has, and takes the lowest."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self._free = [[WHOLE_DEVICE] * node.gpus for node in nodes]
        self._states = [State(n.model, n.cpu_milli, n.memory_mib, (WHOLE_DEVICE,) * n.gpus) for n in nodes]
        self._with: dict[State, set[int]] = {}
        for number, state in enumerate(self._states):
            self._with.setdefault(state, set()).add(number)

    @abstractmethod
    def score(self, task: TraceTask, before: State, free: int, after: State) -> Score:
        """Lower is better; ties go by node, then by the device with least free."""

    def offer(self, task: TraceTask) -> TaskPlacement | None:
        """Place a task for good where it scores lowest."""
        options = [
            (self.score(task, state, free, after), node, free, after)
            for state, nodes in self._with.items()
            if state.takes(task)
            for node in (self.pick(nodes),)
            for free, after in state.choices(task)
        ]
        if not options:
            return None
        _, node, free, after = min(options)
        self._move(node, after)
        return TaskPlacement(node=node, devices=self._take(node, task.gpu_milli, free))

    def pick(self, nodes: set[int]) -> int:
        """The node among those of one state."""
        return min(nodes)

    def _move(self, node: int, after: State) -> None:
        before = self._states[node]
        self._with[before].remove(node)
        if not self._with[before]:
            del self._with[before]
        self._with.setdefault(after, set()).add(node)
        self._states[node] = after

    def _take(self, node: int, milli: int, free: int) -> tuple[int, ...]:
        devices = self._free[node]
        if 0 < milli < WHOLE_DEVICE:
            taken: tuple[int, ...] = (devices.index(free),)
        else:
            whole = [at for at, left in enumerate(devices) if left == WHOLE_DEVICE]
            taken = tuple(whole[: milli // WHOLE_DEVICE])
        for at in taken:
            devices[at] -= min(milli, WHOLE_DEVICE)
        return taken


class Random(Peer):
    """A random node that fits the task, and a random device of it."""

    def __init__(self, nodes: Sequence[TraceNode], seed: int) -> None:
        super().__init__(nodes)
        self._random = random.Random(seed)

    def score(self, task: TraceTask, before: State, free: int, after: State) -> Score:
        raise NotImplementedError("random does not score")

    def offer(self, task: TraceTask) -> TaskPlacement | None:
        """Place a task for good on some node."""
        fitting = sorted(node for state, nodes in self._with.items() if state.takes(task) for node in nodes)
        if not fitting:
            return None
        node = self._random.choice(fitting)
        free, after = self._random.choice(list(self._states[node].choices(task)))
        self._move(node, after)
        return TaskPlacement(node=node, devices=self._take(node, task.gpu_milli, free))


class BestFit(Peer):
    """The node with the least left of everything, in parts of the largest node's amounts, then the fullest device."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        super().__init__(nodes)
        self._cpu = max(node.cpu_milli for node in nodes)
        self._memory = max(node.memory_mib for node in nodes)
        self._gpu = max(node.gpus for node in nodes) * WHOLE_DEVICE

    def score(self, task: TraceTask, before: State, free: int, after: State) -> Score:
        """What is left in parts of the largest node."""
        left = after.cpu_milli / self._cpu + after.memory_mib / self._memory + sum(after.free) / self._gpu
        return round(left, 9), free


class BestFitByGpu(Peer):
    """The node with the least GPU left, then the fullest device: CPU and memory only have to fit."""

    def score(self, task: TraceTask, before: State, free: int, after: State) -> Score:
        """GPU that is left."""
        return sum(after.free), free


class Gradient(Peer):
    """Fragmentation gradient descent (FGD): the node, and the device, on which fragmentation grows least.

    A node's fragmentation for one task is its free GPU if the task does not fit there, else what is free on devices
    that are too small for it; the mean over the workload, which the paper takes as known: all shapes of the trace with
    their counts (more than its 95 per cent, which gives less). Ties, which the paper leaves open: the least free GPU
    left, then node. This rule was better than ties by name, at random, by CPU, or rounded scores, in the same harness.
    """

    def __init__(self, nodes: Sequence[TraceNode], workload: Sequence[TraceTask]) -> None:
        super().__init__(nodes)
        counts = Counter((t.gpu_milli, t.cpu_milli, t.memory_mib, t.models) for t in workload if t.gpu_milli)
        self._workload = sorted(counts.items())
        self._known: dict[State, int] = {}

    def score(self, task: TraceTask, before: State, free: int, after: State) -> Score:
        """How much fragmentation grows, times the number of tasks."""
        return self._fragmentation(after) - self._fragmentation(before), sum(after.free), free

    def _fragmentation(self, state: State) -> int:
        if state not in self._known:
            self._known[state] = sum(count * _unusable(state, shape) for shape, count in self._workload)
        return self._known[state]


def _unusable(state: State, shape: tuple[int, int, int, tuple[str, ...]]) -> int:
    """Free GPU of a node that a task cannot use; tasks without GPU add the same everywhere and are left out."""
    gpu, cpu, memory, models = shape
    free, whole = state.free, WHOLE_DEVICE * state.free.count(WHOLE_DEVICE)
    fits = cpu <= state.cpu_milli and memory <= state.memory_mib and (not models or state.model in models)
    if not fits or gpu > max(whole, free[-1]):
        return sum(free)
    return sum([left for left in free if left < gpu]) if gpu < WHOLE_DEVICE else sum(free) - whole
