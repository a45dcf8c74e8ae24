"""Node classes: the nodes in an equal state, for requests that need more than GPUs.

The cost of a request on a class is computed once and kept; nodes that changed are classified again at the next look.
The CPU and memory of a class are rounded down to a grid; where that is not enough, nodes are compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from ..model import WHOLE_DEVICE
from .fragmentation import SEQUENCES, FragmentationScore, NodeState, usable
from .locality import Group
from .scarcity import PER_MILLE, ScarcityPrices
from .workload_profile import RankRequest

Worth = Callable[[NodeState], int]
Models = tuple[str, ...]
NodeAndFree = tuple[int, int]
"""A node, and how much is free on the device that a fraction takes there (a whole device for anything else)."""


class Option(NamedTuple):
    """A class for a request, ordered by cost, then the tightest device, then the oldest class."""

    cost: int
    free: int
    node_class: int


class _Ranking:
    """The classes that take one request, best first; ``read``: the number of entries of the log that are included."""

    __slots__ = ("options", "read")

    def __init__(self) -> None:
        self.options: list[Option] = []
        self.read = 0


class NodeClasses:
    """All nodes of a ledger by class. ``state_of`` returns the state of a node now."""

    def __init__(
        self, nodes: int, state_of: Callable[[int], NodeState],
        score: FragmentationScore | None, prices: ScarcityPrices | None,
    ) -> None:  # fmt: skip
        self._state_of, self._worth = state_of, worth_of(score, prices) if score and prices else None
        self._number: dict[NodeState, int] = {}
        self._states: list[NodeState] = []
        self._most: list[int] = []
        """By class: no rank with more GPU fits it."""
        self._members: list[list[int]] = []
        self._count: list[int] = []
        self._class_of = [-1] * nodes
        self._exact: list[tuple[int, int]] = [(0, 0)] * nodes
        self._log: list[int] = []
        """Classes, each time that one gets its first node."""
        self._rankings: dict[RankRequest, _Ranking] = {}
        self._costs: dict[tuple[int, RankRequest], list[tuple[int, int]]] = {}
        self._changed = set(range(nodes))

    def note(self, node: int) -> None:
        self._changed.add(node)

    def best(self, request: RankRequest, group: Group | None = None) -> NodeAndFree | None:
        """The node of a group (None: of all) on which a rank with this request costs least; None: it fits nowhere."""
        if self._changed:
            self._classify()
        ranking = self._rankings.setdefault(request, _Ranking())
        self._update(ranking, request)
        options, passed, found = ranking.options, list[Option](), None
        while options and found is None:
            option = options[0]
            if self._count[option.node_class]:
                node = self._first_that_fits(option.node_class, request, group)
                found = None if node is None else (node, option.free)
            if found is None:
                heappop(options)
                if self._count[option.node_class]:
                    passed.append(option)
        for option in passed:
            heappush(options, option)
        return found

    def _classify(self) -> None:
        for node in sorted(self._changed):
            state = self._state_of(node)
            self._exact[node] = (state.cpu_milli, state.memory_mib)
            rounded = _rounded(state)
            node_class = self._number.get(rounded, len(self._states))
            if node_class == len(self._states):
                self._number[rounded] = node_class
                self._states.append(rounded)
                self._most.append(rounded.free.count(WHOLE_DEVICE) * WHOLE_DEVICE or max(rounded.free, default=0))
                self._members.append([])
                self._count.append(0)
            if node_class == self._class_of[node]:
                continue
            if self._class_of[node] >= 0:
                self._count[self._class_of[node]] -= 1
            if not self._count[node_class]:
                self._members[node_class].clear()
                self._log.append(node_class)
            self._class_of[node] = node_class
            self._count[node_class] += 1
            heappush(self._members[node_class], node)
        self._changed.clear()

    def _update(self, ranking: _Ranking, request: RankRequest) -> None:
        """Add the classes that got their first node since the ranking was read, with the cost on each device."""
        for node_class in dict.fromkeys(self._log[ranking.read :]):
            if self._count[node_class] and self._most[node_class] >= request[0]:
                found = self._costs.get(key := (node_class, request))
                if found is None:
                    found = self._costs[key] = costs(self._states[node_class], request, self._worth)
                for cost, free in found:
                    heappush(ranking.options, Option(cost, free, node_class))
        ranking.read = len(self._log)

    def _first_that_fits(self, node_class: int, request: RankRequest, group: Group | None) -> int | None:
        members, state = self._members[node_class], self._states[node_class]
        while self._class_of[members[0]] != node_class:
            heappop(members)
        _, cpu, memory, _ = request
        if cpu <= state.cpu_milli and memory <= state.memory_mib and (group is None or members[0] in group):
            return members[0]
        among = set(members) if group is None else group
        here = (node for node in among if self._class_of[node] == node_class)
        fitting = (node for node in here if cpu <= self._exact[node][0] and memory <= self._exact[node][1])
        return min(fitting, default=None)


def _rounded(state: NodeState) -> NodeState:
    """A state with CPU and memory rounded down to the grid."""
    kind, cpu, memory, free = state
    return NodeState(kind, cpu - cpu % kind.cpu_step, memory - memory % kind.memory_step, free)


def worth_of(score: FragmentationScore, prices: ScarcityPrices) -> Worth:
    """The fragmentation score and the priced amounts of a state together, each state computed once."""
    known: dict[NodeState, int] = {}

    def worth(state: NodeState) -> int:
        found = known.get(state)
        if found is None:
            found = known[state] = PER_MILLE * score.of(state) + SEQUENCES * prices.of(state)
        return found

    return worth


def costs(state: NodeState, request: RankRequest, worth: Worth | None) -> list[tuple[int, int]]:
    """The cost of a rank in a state, by device that it may share: (cost, free on that device).

    The cost is the loss of worth. Without a worth a fraction prefers the fullest device, a larger request the node with
    the fewest whole ones. CPU and memory may be a step short here: the nodes know them exactly.
    """
    gpu, cpu, memory, models = request
    kind, cpu_free, memory_free, everywhere = state
    if cpu_free + kind.cpu_step <= cpu or memory_free + kind.memory_step <= memory:
        return []
    free = usable(state, models)
    options = _options(free, gpu)
    if worth is None or not options:
        return [(_plain(free, gpu, amount), amount) for amount in options]
    before, cpu_left, memory_left = worth(state), max(0, cpu_free - cpu), max(0, memory_free - memory)
    found = []
    for amount in options:
        after = NodeState(kind, cpu_left, memory_left, _after(kind.models, everywhere, gpu, amount, models))
        found.append((before - worth(after), amount))
    return found


def _options(free: Sequence[int], gpu: int) -> Sequence[int]:
    if not gpu:
        return (0,) if free else ()
    if gpu < WHOLE_DEVICE:
        return sorted({amount for amount in free if amount >= gpu})
    return (WHOLE_DEVICE,) if free.count(WHOLE_DEVICE) >= gpu // WHOLE_DEVICE else ()


@lru_cache(maxsize=1 << 16)
def _after(models: Models, free: tuple[int, ...], gpu: int, amount: int, wanted: Models) -> tuple[int, ...]:
    """The free amounts after a request for ``wanted`` models was placed, in the order of :class:`.NodeState`."""
    if not gpu:
        return free
    is_mixed, left = len(models) > 1, list(free)
    takes = [at for at, milli in enumerate(free) if milli == amount]
    if is_mixed and wanted:
        takes = [at for at in takes if models[at] in wanted]
    for at in takes[: max(1, gpu // WHOLE_DEVICE)]:
        left[at] -= min(gpu, WHOLE_DEVICE)
    return tuple(left if is_mixed else sorted(left))


def _plain(free: Sequence[int], gpu: int, amount: int) -> int:
    """Fractions go to the fullest shared device, then, like whole devices, where the fewest whole ones are left."""
    if gpu and amount < WHOLE_DEVICE:
        return amount
    return WHOLE_DEVICE + free.count(WHOLE_DEVICE)
