"""Nodes by what is free on them, for requests that need more than GPUs: a shelf carries the nodes of one state.

What a request costs on a shelf is found once and kept; nodes that changed are put on another shelf at the next look.
CPU and memory stand on a grid on a shelf, rounded down, and are compared exactly where the grid does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from ..model import WHOLE_DEVICE
from .workload_profile import Shape, State, Worth

Spot = tuple[int, int]
"""A node, and how much is free on the device that a fraction takes there (a whole device for anything else)."""


class Option(NamedTuple):
    """A shelf for a request: what it costs there, then the tightest device, then the oldest shelf."""

    cost: int
    free: int
    shelf: int


class _Ranking:
    """The shelves that take one request, best first; ``read``: how many of the log's entries are in it."""

    __slots__ = ("options", "read")

    def __init__(self) -> None:
        self.options: list[Option] = []
        self.read = 0


class Shelves:
    """All nodes of a ledger on their shelves. ``state_of`` says what is free on a node now."""

    def __init__(self, nodes: int, state_of: Callable[[int], State], worth: Worth | None) -> None:
        self._state_of, self._worth = state_of, worth
        self._number: dict[State, int] = {}
        self._states: list[State] = []
        self._members: list[list[int]] = []
        self._count: list[int] = []
        self._shelf_of = [-1] * nodes
        self._exact: list[tuple[int, int]] = [(0, 0)] * nodes
        self._log: list[int] = []
        """Shelves, each time that one gets its first node."""
        self._rankings: dict[Shape, _Ranking] = {}
        self._costs: dict[tuple[int, Shape], list[tuple[int, int]]] = {}
        self._changed = set(range(nodes))

    def note(self, node: int) -> None:
        """What is free on a node has changed."""
        self._changed.add(node)

    def best(self, shape: Shape) -> Spot | None:
        """Where a rank of this shape costs least; None where it fits nowhere."""
        if self._changed:
            self._file()
        ranking = self._rankings.setdefault(shape, _Ranking())
        self._catch_up(ranking, shape)
        options, passed, found = ranking.options, list[Option](), None
        while options and found is None:
            option = options[0]
            if self._count[option.shelf]:
                node = self._first_that_fits(option.shelf, shape)
                found = None if node is None else (node, option.free)
            if found is None:
                heappop(options)
                if self._count[option.shelf]:
                    passed.append(option)
        for option in passed:
            heappush(options, option)
        return found

    def _file(self) -> None:
        for node in sorted(self._changed):
            state = self._state_of(node)
            self._exact[node] = (state.cpu_milli, state.memory_mib)
            shelf = self._shelf(_rounded(state))
            if shelf == self._shelf_of[node]:
                continue
            if self._shelf_of[node] >= 0:
                self._count[self._shelf_of[node]] -= 1
            if not self._count[shelf]:
                self._members[shelf].clear()
                self._log.append(shelf)
            self._shelf_of[node] = shelf
            self._count[shelf] += 1
            heappush(self._members[shelf], node)
        self._changed.clear()

    def _shelf(self, state: State) -> int:
        number = self._number.get(state)
        if number is None:
            number = self._number[state] = len(self._states)
            self._states.append(state)
            self._members.append([])
            self._count.append(0)
        return number

    def _catch_up(self, ranking: _Ranking, shape: Shape) -> None:
        for shelf in dict.fromkeys(self._log[ranking.read :]):
            if self._count[shelf]:
                for cost, free in self._costs_on(shelf, shape):
                    heappush(ranking.options, Option(cost, free, shelf))
        ranking.read = len(self._log)

    def _first_that_fits(self, shelf: int, shape: Shape) -> int | None:
        members, state = self._members[shelf], self._states[shelf]
        while self._shelf_of[members[0]] != shelf:
            heappop(members)
        if shape[1] <= state.cpu_milli and shape[2] <= state.memory_mib:
            return members[0]
        fitting = (node for node in set(members) if self._shelf_of[node] == shelf and self._takes(node, shape))
        return min(fitting, default=None)

    def _takes(self, node: int, shape: Shape) -> bool:
        cpu, memory = self._exact[node]
        return shape[1] <= cpu and shape[2] <= memory

    def _costs_on(self, shelf: int, shape: Shape) -> Iterable[tuple[int, int]]:
        """The cost of a request on each device of a shelf's nodes that makes a difference, with what is free on it."""
        key = (shelf, shape)
        if key not in self._costs:
            self._costs[key] = costs(self._states[shelf], shape, self._worth)
        return self._costs[key]


def _rounded(state: State) -> State:
    """CPU and memory rounded down to the grid."""
    kind, cpu, memory, free = state
    return State(kind, cpu - cpu % kind.cpu_step, memory - memory % kind.memory_step, free)


def costs(state: State, shape: Shape, worth: Worth | None) -> list[tuple[int, int]]:
    """What a rank costs in a state, by device that it may share: (cost, free on that device).

    With demand the cost is the worth that is lost. Without, a fraction prefers the fullest device, and anything else
    the node with the fewest whole ones. CPU and memory may be a step short here: the nodes know them exactly.
    """
    gpu, cpu, memory, models = shape
    kind, cpu_free, memory_free, everywhere = state
    if cpu_free + kind.cpu_step <= cpu or memory_free + kind.memory_step <= memory:
        return []
    free = usable(state, models)
    options = _options(free, gpu)
    if worth is None or not options:
        return [(_plain(free, gpu, amount), amount) for amount in options]
    before, cpu_left, memory_left = worth.of(state), max(0, cpu_free - cpu), max(0, memory_free - memory)
    return [
        (before - worth.of(State(kind, cpu_left, memory_left, _after(everywhere, gpu, amount))), amount)
        for amount in options
    ]


def usable(state: State, models: tuple[str, ...]) -> Sequence[int]:
    """What is free on the devices of these models (none named: on all)."""
    kind = state.kind
    if not models or (len(kind.models) == 1 and kind.models[0] in models):
        return state.free
    if len(kind.models) == 1:
        return ()
    return [free for free, model in zip(state.free, kind.models, strict=True) if model in models]


def _options(free: Sequence[int], gpu: int) -> Sequence[int]:
    if not gpu:
        return (0,) if free else ()
    if gpu < WHOLE_DEVICE:
        return sorted({amount for amount in free if amount >= gpu})
    return (WHOLE_DEVICE,) if free.count(WHOLE_DEVICE) >= gpu // WHOLE_DEVICE else ()


@lru_cache(maxsize=1 << 16)
def _after(free: tuple[int, ...], gpu: int, amount: int) -> tuple[int, ...]:
    """What is free once a request took its part; sorted, as only worth looks at it."""
    if not gpu:
        return free
    left = sorted(free)
    if gpu < WHOLE_DEVICE:
        left[left.index(amount)] -= gpu
    else:
        many = gpu // WHOLE_DEVICE
        left[len(left) - many :] = [0] * many
    left.sort()
    return tuple(left)


def _plain(free: Sequence[int], gpu: int, amount: int) -> int:
    """Fractions go to the fullest shared device, then, like whole devices, where the fewest whole ones are left."""
    if gpu and amount < WHOLE_DEVICE:
        return amount
    return WHOLE_DEVICE + free.count(WHOLE_DEVICE)
