"""Scarcity prices: what the free part of a node is worth to expected work that few nodes can take.

The fragmentation score looks at one node at a time. It does not see that a node is among the last that are whole, or
that have a model. So each free amount has a price, by kind of node: its free GPU, and the GPU that expected ranks of 2,
4 and 8 devices could have there side by side. The price follows the scarcity of the amount. For each set of kinds that
some expected work is restricted to, this is the GPU that the work will request until the free GPU is used up, in parts
of the GPU that it could have there now. Rare work keeps more than it requests on average: it arrives irregularly, and
may find GPUs without the CPU that it needs.

A node without work has one more price, a small one, so that the most capable nodes stay free until the work that needs
them has been seen. Source: docs/scheduling.md, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

from ..model import WHOLE_DEVICE, Demand
from .fragmentation import NodeKind, NodeState, usable

PER_MILLE = 1000
MAX_SCARCITY = 2 * PER_MILLE
MARGIN_DIVISOR = 8
"""Restricted work of up to one GPU keeps more: this part of the geometric mean of its GPU and all free GPU."""
UNUSED_NODE = 20
"""The price of a node without work, in thousandths of its GPU, where no other kind can replace it."""
LEVELS = 4
"""Amounts of a node: any GPU; GPU for ranks of 2 or 3 devices, of 4 to 7, of 8 and more."""
_Rooms = tuple[int, ...]
"""An amount for each level, in milli-GPU."""
_ByModels = dict[tuple[str, ...], list[tuple[int, int, int, int]]]
"""Large ranks by models: devices, CPU, memory, and GPU times count; those of few devices first."""


class ScarcityPrices:
    """The prices for expected work (``rows``) on nodes in these states."""

    def __init__(self, rows: Sequence[Demand], nodes: Mapping[NodeState, int]) -> None:
        self._large = [_by_models([row for row in rows if _level(row) == level]) for level in range(1, LEVELS)]
        self._rooms: dict[NodeState, _Rooms] = {}
        free: dict[NodeKind, list[int]] = {}
        counts: dict[NodeKind, int] = {}
        for state, count in nodes.items():
            kind = state.kind
            counts[kind] = counts.get(kind, 0) + count
            amounts = free.setdefault(kind, [0] * LEVELS)
            for level, room in enumerate(self._rooms_of(state)):
                amounts[level] += count * room
        self._prices = {kind: tuple(map(_price, each)) for kind, each in _scarcity(rows, free).items()}
        self._unused = _unused_prices(counts)

    def of(self, state: NodeState) -> int:
        """The worth of a node's free amounts, in milli-GPU times PER_MILLE."""
        kind, rooms = state.kind, self._rooms_of(state)
        worth = sum([price * room for price, room in zip(self._prices[kind], rooms, strict=True)])
        return worth + self._unused[kind] if _is_unused(state) else worth

    def _rooms_of(self, state: NodeState) -> _Rooms:
        if state.free.count(WHOLE_DEVICE) < 2:
            return (sum(state.free), 0, 0, 0)
        found = self._rooms.get(state)
        if found is None:
            found = self._rooms[state] = (sum(state.free), *[_room(total, rows, state) for total, rows in self._large])
        return found


def _level(row: Demand) -> int:
    return min(LEVELS - 1, max(0, (row.gpu_milli // WHOLE_DEVICE).bit_length() - 1))


def _by_models(rows: Sequence[Demand]) -> tuple[int, _ByModels]:
    """The total count of these rows, and the rows by models."""
    found: _ByModels = {}
    for row in sorted(rows, key=lambda row: row.gpu_milli):
        work = (row.gpu_milli // WHOLE_DEVICE, row.cpu_milli, row.memory_mib, row.count * row.gpu_milli)
        found.setdefault(row.gpu_models, []).append(work)
    return sum(row.count for row in rows), found


def _room(total: int, by_models: _ByModels, state: NodeState) -> int:
    """The GPU that ranks of these rows could have side by side, the mean by their counts."""
    _, cpu, memory, _ = state
    found = 0
    for models, works in by_models.items():
        whole = usable(state, models).count(WHOLE_DEVICE)
        for devices, cpu_each, memory_each, weight in works:
            if devices > whole:
                break
            ranks = whole // devices
            if cpu_each and cpu < ranks * cpu_each:
                ranks = cpu // cpu_each
            if memory_each and memory < ranks * memory_each:
                ranks = memory // memory_each
            found += weight * ranks
    return found // total if total else 0


def _scarcity(rows: Sequence[Demand], free: Mapping[NodeKind, Sequence[int]]) -> dict[NodeKind, list[int]]:
    """The scarcity of each amount, in thousandths: the largest over the sets of kinds with work that fits no other."""
    kinds = sorted(free)
    wanted = _wanted(rows, kinds)
    requested, everything = sum(row.count * row.gpu_milli for row in rows), sum(free[kind][0] for kind in kinds)
    found = {kind: [0] * LEVELS for kind in kinds}
    for places in wanted:
        here = [kind for at, kind in enumerate(kinds) if places >> at & 1]
        for level in range(len(here) == len(kinds), LEVELS):
            room = sum(free[kind][level] for kind in here)
            needed = sum(each[level] for other, each in wanted.items() if other & places == other)
            needed = needed * everything // requested
            if not level:
                needed += isqrt(needed * everything) // MARGIN_DIVISOR
            scarcity = PER_MILLE * needed // room if room else MAX_SCARCITY
            for kind in here if needed else ():
                found[kind][level] = max(found[kind][level], min(scarcity, MAX_SCARCITY))
    return found


def _wanted(rows: Sequence[Demand], kinds: Sequence[NodeKind]) -> dict[int, list[int]]:
    """The GPU requested by work of each level and above, by the kinds whose empty nodes take it (bits by number)."""
    empty = [NodeState(kind, kind.cpu_milli, kind.memory_mib, (WHOLE_DEVICE,) * kind.devices) for kind in kinds]
    wanted: dict[int, list[int]] = {}
    for row in rows:
        places = sum(1 << at for at, state in enumerate(empty) if _fits(row, state))
        each = wanted.setdefault(places, [0] * LEVELS)
        for level in range(_level(row) + 1):
            each[level] += row.count * row.gpu_milli
    wanted.pop(0, None)
    return wanted


def _fits(row: Demand, empty: NodeState) -> bool:
    devices = -(-row.gpu_milli // WHOLE_DEVICE)
    room = len(usable(empty, row.gpu_models)) >= devices
    return room and row.cpu_milli <= empty.cpu_milli and row.memory_mib <= empty.memory_mib


def _price(scarcity: int) -> int:
    """The third power: amounts that are not scarce cost next to nothing."""
    return scarcity**3 // PER_MILLE**2


def _unused_prices(counts: Mapping[NodeKind, int]) -> dict[NodeKind, int]:
    """Falls with the square of the devices that are on nodes at least as large, and grows with that of the node's."""
    every = sum(kind.devices * count for kind, count in counts.items())
    most = max((kind.devices for kind in counts), default=1)
    found = {}
    for kind in counts:
        smaller = every - sum(other.devices * count for other, count in counts.items() if _is_as_large(other, kind))
        found[kind] = UNUSED_NODE * WHOLE_DEVICE * kind.devices**2 * smaller**2 // (most * every**2)
    return found


def _is_as_large(one: NodeKind, other: NodeKind) -> bool:
    return one.devices >= other.devices and one.cpu_milli >= other.cpu_milli and one.memory_mib >= other.memory_mib


def _is_unused(state: NodeState) -> bool:
    kind, cpu, memory, free = state
    cpu_used, memory_used = kind.cpu_milli - cpu, kind.memory_mib - memory
    return cpu_used < kind.cpu_step and memory_used < kind.memory_step and free.count(WHOLE_DEVICE) == kind.devices
