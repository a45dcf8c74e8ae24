"""The fragmentation score of a node: how much of the expected work could still go there.

The score is the GPU that a few sequences of expected work (common requests by their counts), each offered to the node
one by one, would fill. A request is placed where the score and the priced amounts (:mod:`.scarcity`) fall least. It is
computed in integers and without randomness: the sequences step through the counts by the golden ratio. States are
rounded to a grid, so that few scores are computed: the rest of a device counts as far as expected fractions can fill
it, CPU and memory count to the nearest step of the node's size and no more than its free GPUs could use.
Source: docs/scheduling.md, section 7.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..model import WHOLE_DEVICE, Demand
from .workload_profile import commonest

SEQUENCES, LENGTH, MAX_ROWS = 8, 40, 128
"""The number of sequences, their length, and the most rows of the demand that they step through."""
CPU_STEPS, MEMORY_STEPS = 32, 16
"""The grid: the number of steps of a node's CPU and memory."""
_GOLDEN, _TURN = 2_654_435_769, 1 << 32
Work = tuple[int, int, int]
"""A rank's request on a node whose model fits: gpu_milli, cpu_milli, memory_mib."""


class NodeKind(NamedTuple):
    """The fixed properties of a node: the model of each device (one where all are equal), the grid, and the size."""

    models: tuple[str, ...]
    cpu_step: int
    memory_step: int
    devices: int
    cpu_milli: int
    memory_mib: int


class NodeState(NamedTuple):
    """The free CPU, memory and GPU of a node, by device: the fullest first (on mixed nodes in the order of ids)."""

    kind: NodeKind
    cpu_milli: int
    memory_mib: int
    free: tuple[int, ...]


def usable(state: NodeState, models: tuple[str, ...]) -> Sequence[int]:
    """The free amounts of the devices of these models (none named: of all)."""
    kind = state.kind
    if not models or (len(kind.models) == 1 and kind.models[0] in models):
        return state.free
    if len(kind.models) == 1:
        return ()
    return [free for free, model in zip(state.free, kind.models, strict=True) if model in models]


@lru_cache(maxsize=4)
def score_for(demand: tuple[Demand, ...]) -> FragmentationScore:
    """The scores under a demand; cached while the demand stays the same."""
    return FragmentationScore(demand)


class FragmentationScore:
    """The scores of node states under one demand, in milli-GPU times SEQUENCES. ``rows``: the expected work with GPUs.

    Rule R74.
    """

    def __init__(self, demand: Sequence[Demand]) -> None:
        self.rows = commonest(row for row in demand if row.gpu_milli)
        self._steps = _reachable([row.gpu_milli for row in self.rows])
        self._most_cpu = _most_per_gpu([(row.cpu_milli, row.gpu_milli) for row in self.rows])
        self._most_memory = _most_per_gpu([(row.memory_mib, row.gpu_milli) for row in self.rows])
        self._walk = _walk(self.rows[:MAX_ROWS])
        self._of_models: dict[tuple[str, ...], _ExpectedWork] = {}
        self._useful: dict[tuple[int, ...], tuple[tuple[int, ...], int, int]] = {}
        """By free amounts: the part of each device that expected work could fill, and the CPU and memory for it."""
        self._known: dict[NodeState, int] = {}

    def of(self, state: NodeState) -> int:
        """The score of a state, rounded to the grid."""
        kind, cpu, memory, free = state
        useful = self._useful.get(free)
        if useful is None:
            filled = tuple(sorted(filter(None, map(self._steps.__getitem__, free))))
            milli, (cpu_part, cpu_gpu), (memory_part, memory_gpu) = sum(filled), self._most_cpu, self._most_memory
            useful = filled, -(-milli * cpu_part // cpu_gpu), -(-milli * memory_part // memory_gpu)
            self._useful[free] = useful
        free, most_cpu, most_memory = useful
        cpu = min(cpu, most_cpu) + kind.cpu_step // 2
        memory = min(memory, most_memory) + kind.memory_step // 2
        on_grid = NodeState(kind, cpu - cpu % kind.cpu_step, memory - memory % kind.memory_step, free)
        known = self._known.get(on_grid)
        if known is None:
            known = self._known[on_grid] = self._expected(kind).score(on_grid)
        return known

    def _expected(self, kind: NodeKind) -> _ExpectedWork:
        if kind.models not in self._of_models:
            fits = [
                not row.gpu_models or not set(row.gpu_models).isdisjoint(kind.models) for row in self.rows[:MAX_ROWS]
            ]
            self._of_models[kind.models] = _ExpectedWork(self.rows[:MAX_ROWS], self._walk, fits)
        return self._of_models[kind.models]


class _ExpectedWork:
    """The expected work that devices of some models take."""

    def __init__(self, rows: Sequence[Demand], walk: Sequence[Sequence[int]], fits: Sequence[bool]) -> None:
        works = [(row.gpu_milli, row.cpu_milli, row.memory_mib) for row in rows]
        self._sequences = [[works[at] for at in order if fits[at]] for order in walk]
        self._small_enough: dict[int, list[list[Work]]] = {}
        self._least = min((work[0] for work, here in zip(works, fits, strict=True) if here), default=WHOLE_DEVICE)

    def score(self, state: NodeState) -> int:
        """See the module's docstring."""
        _, cpu, memory, free = state
        if not free:
            return 0
        sequences = self._up_to(free.count(WHOLE_DEVICE) * WHOLE_DEVICE or free[-1])
        return sum([_filled(order, cpu, memory, list(free), self._least) for order in sequences])

    def _up_to(self, gpu: int) -> list[list[Work]]:
        """The sequences without larger requests."""
        if gpu not in self._small_enough:
            self._small_enough[gpu] = [[work for work in order if work[0] <= gpu] for order in self._sequences]
        return self._small_enough[gpu]


def _filled(order: Sequence[Work], cpu: int, memory: int, free: list[int], least: int) -> int:
    """The milli-GPU that a sequence takes, each request on the fullest device with room for it."""
    filled = 0
    for gpu, cpu_each, memory_each in order:
        if cpu_each > cpu or memory_each > memory:
            continue
        if gpu < WHOLE_DEVICE:
            at = bisect_left(free, gpu)
            if at == len(free):
                continue
            rest = free.pop(at) - gpu
            if rest >= least:
                insort(free, rest)
        else:
            per_rank = gpu // WHOLE_DEVICE
            if per_rank > len(free) or free[-per_rank] < WHOLE_DEVICE:
                continue
            del free[-per_rank:]
        cpu, memory, filled = cpu - cpu_each, memory - memory_each, filled + gpu
        if not free:
            break
    return filled


def _reachable(sizes: Sequence[int]) -> list[int]:
    """For each rest of a device, what expected fractions can fill of it; a whole device stays whole."""
    reached = 1
    for size in {size for size in sizes if 0 < size < WHOLE_DEVICE}:
        for _ in range(WHOLE_DEVICE // size):
            reached |= reached << size
    steps, last = [], 0
    for milli in range(WHOLE_DEVICE):
        last = milli if reached >> milli & 1 else last
        steps.append(last)
    return [*steps, WHOLE_DEVICE]


def _most_per_gpu(rows: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The largest ratio of an amount to milli-GPU, as a fraction."""
    most = (0, 1)
    for amount, gpu in rows:
        if amount * most[1] > most[0] * gpu:
            most = (amount, gpu)
    return most


def _walk(rows: Sequence[Demand]) -> list[list[int]]:
    """Sequences of row numbers with each row in proportion to its count."""
    ends, total = list[int](), 0
    for row in rows:
        total += row.count
        ends.append(total)
    steps = (number * _GOLDEN % _TURN * total // _TURN for number in range(SEQUENCES * LENGTH))
    order = [bisect_left(ends, at + 1) for at in steps] if total else []
    return [order[first : first + LENGTH] for first in range(0, len(order), LENGTH)]
