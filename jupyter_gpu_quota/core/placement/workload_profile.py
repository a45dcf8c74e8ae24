"""What a node in a given state is worth to the demand that was seen: how much typical work could still go there.

A request goes where it costs least worth. Worth is, for the typical work (the commonest shapes with their counts):

* what a few sequences of it, each offered to the node one by one, would fill of its GPUs, on average;
* what the next of them would take if it came here (0 where it does not fit);
* for work of several devices per rank, how many of it fit side by side: whole nodes are what only it needs.

All integers, no randomness: the sequences walk through the counts in steps of the golden ratio. States are looked at
on a grid, so that few are ever valued: a device's rest counts as far as typical fractions can fill it, and CPU and
memory to the nearest step of the node's size, no more than its free GPUs could use.
Source: docs/scheduling.md, section 7.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..model import WHOLE_DEVICE, Demand, Job

MOST_SHAPES = 64
"""So many of the commonest shapes are remembered."""
SEQUENCES, LENGTH = 8, 40
CPU_STEPS, MEMORY_STEPS = 32, 16
"""The grid: a node's CPU and memory are told apart in so many steps."""
_GOLDEN, _TURN = 2_654_435_769, 1 << 32
PLENTY = 1 << 40
"""CPU and memory of a node that does not state them."""


class Kind(NamedTuple):
    """What nodes of a state have in common: the model of each device (one name where all are equal), and the grid."""

    models: tuple[str, ...]
    cpu_step: int
    memory_step: int


class State(NamedTuple):
    """What is free on a node: CPU, memory, and each device, the fullest first (on mixed nodes in the order of ids)."""

    kind: Kind
    cpu_milli: int
    memory_mib: int
    free: tuple[int, ...]


Shape = tuple[int, int, int, tuple[str, ...]]
"""What one rank asks for: gpu_milli, cpu_milli, memory_mib, models (none: any)."""
Work = tuple[int, int, int]
"""The same on a node whose model fits: gpu_milli, cpu_milli, memory_mib."""


def learnt(counts: Mapping[Shape, int]) -> tuple[Demand, ...]:
    """The commonest shapes of what was asked for so far, as a snapshot carries them; ties go by shape."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))[:MOST_SHAPES]
    return tuple(
        Demand(gpu_milli=gpu, cpu_milli=cpu, memory_mib=memory, gpu_models=models, count=count)
        for (gpu, cpu, memory, models), count in rows
    )


def typical(jobs: Iterable[Job]) -> tuple[Demand, ...]:
    """What the jobs of a pool, waiting and running, ask for by rank; none where that says only plain GPU amounts.

    Counts are rounded down to 1, 2, 3, 4, 6, 8, 12, 16 ..., so that one job more or less seldom makes it another
    demand, under which every state would be valued anew.
    """
    counts = Counter[Shape]()
    for job in jobs:
        counts[shape_of(job)] += job.ranks
    return typical_of(counts)


def typical_of(counts: Mapping[Shape, int]) -> tuple[Demand, ...]:
    """The same of ranks that were counted by shape."""
    if not any(cpu or memory or models for _, cpu, memory, models in counts):
        return ()
    return learnt({shape: _rounded(count) for shape, count in counts.items()})


def shape_of(job: Job) -> Shape:
    """What each rank of a job asks for."""
    return job.gpu_milli, job.cpu_milli, job.memory_mib, job.gpu_models


def _rounded(count: int) -> int:
    """The two leading bits of a count."""
    rest = max(0, count.bit_length() - 2)
    return count >> rest << rest


class Seen:
    """What was asked for so far, and when there is enough more of it to learn from again: half as much as before."""

    def __init__(self) -> None:
        self._counts: dict[Shape, int] = {}
        self._total = 0
        self._due = 1

    def note(self, shape: Shape) -> tuple[Demand, ...] | None:
        """Count one more; returns the demand when it should be looked at anew."""
        self._counts[shape] = self._counts.get(shape, 0) + 1
        self._total += 1
        if self._total < self._due:
            return None
        self._due = max(self._total + 1, self._total * 3 // 2)
        return learnt(self._counts)


def tells_more(demand: Sequence[Demand]) -> bool:
    """Whether demand says anything but plain GPU amounts, for which the plain rule is kept."""
    return any(row.cpu_milli or row.memory_mib or row.gpu_models for row in demand)


@lru_cache(maxsize=4)
def worth_of(demand: tuple[Demand, ...]) -> Worth:
    """The worth under a demand; what was valued is remembered while the demand stays the same."""
    return Worth(demand)


class Worth:
    """What states are worth under one demand, in milli-GPU times SEQUENCES times the demand's total count."""

    def __init__(self, demand: Sequence[Demand]) -> None:
        self._rows = sorted(demand, key=lambda row: (-row.count, _shape(row)))[:MOST_SHAPES]
        self._total = sum(row.count for row in self._rows)
        self._steps = _reachable([row.gpu_milli for row in self._rows])
        gpu_rows = [row for row in self._rows if row.gpu_milli]
        self._most_cpu = _most_per_gpu([(row.cpu_milli, row.gpu_milli) for row in gpu_rows])
        self._most_memory = _most_per_gpu([(row.memory_mib, row.gpu_milli) for row in gpu_rows])
        self._walk = _walk(self._rows)
        self._of_models: dict[tuple[str, ...], _Typical] = {}
        self._useful: dict[tuple[int, ...], tuple[tuple[int, ...], int, int]] = {}
        self._known: dict[State, int] = {}

    def of(self, state: State) -> int:
        """The worth of a state, as the grid shows it."""
        seen = self._on_grid(state)
        known = self._known.get(seen)
        if known is None:
            known = self._known[seen] = self._typical(seen.kind).worth(seen, self._total)
        return known

    def _on_grid(self, state: State) -> State:
        kind, cpu, memory, free = state
        useful = self._useful.get(free)
        if useful is None:
            useful = self._useful[free] = self._useful_of(free)
        free, most_cpu, most_memory = useful
        cpu = min(cpu, most_cpu) + kind.cpu_step // 2
        memory = min(memory, most_memory) + kind.memory_step // 2
        return State(kind, cpu - cpu % kind.cpu_step, memory - memory % kind.memory_step, free)

    def _useful_of(self, free: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        """What typical work could fill of each device, and the CPU and memory that it could use beside it."""
        free = tuple(sorted(filter(None, map(self._steps.__getitem__, free))))
        milli, (cpu, cpu_per), (memory, memory_per) = sum(free), self._most_cpu, self._most_memory
        return free, -(-milli * cpu // cpu_per), -(-milli * memory // memory_per)

    def _typical(self, kind: Kind) -> _Typical:
        if kind.models not in self._of_models:
            fits = [not row.gpu_models or not set(row.gpu_models).isdisjoint(kind.models) for row in self._rows]
            self._of_models[kind.models] = _Typical(self._rows, self._walk, fits)
        return self._of_models[kind.models]


class _Typical:
    """The typical work that devices of some models take."""

    def __init__(self, rows: Sequence[Demand], walk: Sequence[Sequence[int]], fits: Sequence[bool]) -> None:
        works = [(row.gpu_milli, row.cpu_milli, row.memory_mib) for row in rows]
        chosen = [at for at, row in enumerate(rows) if fits[at] and row.gpu_milli]
        self._sequences = [[works[at] for at in order if fits[at] and rows[at].gpu_milli] for order in walk]
        self._small_enough: dict[int, list[list[Work]]] = {}
        self.counted = [(works[at], rows[at].count * rows[at].gpu_milli) for at in chosen]
        self.least = min((works[at][0] for at in chosen), default=WHOLE_DEVICE)

    def worth(self, state: State, total: int) -> int:
        """See the module; the counts' sum is ``total``."""
        _, cpu, memory, free = state
        if not free:
            return 0
        sequences = self._up_to(free.count(WHOLE_DEVICE) * WHOLE_DEVICE or free[-1])
        filled = sum([_filled(order, cpu, memory, list(free), self.least) for order in sequences])
        return total * filled + SEQUENCES * self._next(cpu, memory, free)

    def _up_to(self, gpu: int) -> list[list[Work]]:
        """The sequences without what asks for more GPU."""
        if gpu not in self._small_enough:
            self._small_enough[gpu] = [[work for work in order if work[0] <= gpu] for order in self._sequences]
        return self._small_enough[gpu]

    def _next(self, cpu: int, memory: int, free: Sequence[int]) -> int:
        """What one typical work would take here, and side by side if it needs several devices, times all counts."""
        whole, largest, found = free.count(WHOLE_DEVICE), free[-1], 0
        for (gpu, cpu_each, memory_each), weight in self.counted:
            if cpu_each > cpu or memory_each > memory:
                continue
            if gpu <= WHOLE_DEVICE:
                found += weight if gpu <= largest else 0
            else:
                copies = _copies((gpu, cpu_each, memory_each), cpu, memory, whole)
                found += weight * (copies + 1) if copies else 0
        return found


def _filled(order: Sequence[Work], cpu: int, memory: int, free: list[int], least: int) -> int:
    """How many milli-GPU the works of a sequence take, each on the fullest device that has room for it."""
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
            many = gpu // WHOLE_DEVICE
            if many > len(free) or free[-many] < WHOLE_DEVICE:
                continue
            del free[-many:]
        cpu, memory, filled = cpu - cpu_each, memory - memory_each, filled + gpu
        if not free:
            break
    return filled


def _copies(work: Work, cpu: int, memory: int, whole: int) -> int:
    gpu, cpu_each, memory_each = work
    copies = whole // (gpu // WHOLE_DEVICE)
    copies = min(copies, cpu // cpu_each) if cpu_each else copies
    return min(copies, memory // memory_each) if memory_each else copies


def _shape(row: Demand) -> Shape:
    return row.gpu_milli, row.cpu_milli, row.memory_mib, row.gpu_models


def _reachable(sizes: Sequence[int]) -> list[int]:
    """For each rest of a device, what of it typical fractions can fill; a whole device stays whole."""
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
    """Sequences of row numbers in which each row comes about as often as its count says."""
    ends, total = list[int](), 0
    for row in rows:
        total += row.count
        ends.append(total)
    steps = (number * _GOLDEN % _TURN * total // _TURN for number in range(SEQUENCES * LENGTH))
    order = [_row_at(ends, at) for at in steps] if total else []
    return [order[first : first + LENGTH] for first in range(0, len(order), LENGTH)]


def _row_at(ends: Sequence[int], at: int) -> int:
    return bisect_left(ends, at + 1)
