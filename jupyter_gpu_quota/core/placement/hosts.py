"""The CPU and host memory of the nodes of one pool. They carry no quota; a rank only has to find room for them.

A node that does not state an amount (0) has plenty of it. A node whose devices are in several pools gives each its
part, by devices. ``used`` (work that stays), ``leaving`` (asked to go, still there), ``promised`` (reserved).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..model import Node
from .workload_profile import PLENTY


class Host(NamedTuple):
    """An amount of CPU and host memory."""

    cpu_milli: int = 0
    memory_mib: int = 0

    def covers(self, need: Host) -> bool:
        """Whether there is enough of both."""
        return self.cpu_milli >= need.cpu_milli and self.memory_mib >= need.memory_mib


NOTHING = Host()


class Hosts:
    """What every node carries, by its number in the ledger."""

    def __init__(self, sizes: Sequence[Host]) -> None:
        self.sizes = list(sizes)
        count = len(self.sizes)
        self._capacity = [Host(size.cpu_milli or PLENTY, size.memory_mib or PLENTY) for size in sizes]
        self._used, self._leaving, self._promised = [NOTHING] * count, [NOTHING] * count, [NOTHING] * count

    def add(self, node: int, used: Host = NOTHING, leaving: Host = NOTHING, promised: Host = NOTHING) -> None:
        """Change what one node carries, by these amounts."""
        self._used[node] = _sum(self._used[node], used)
        self._leaving[node] = _sum(self._leaving[node], leaving)
        self._promised[node] = _sum(self._promised[node], promised)

    def size(self, node: int) -> Host:
        """What the node has."""
        return self._capacity[node]

    def now(self, node: int) -> Host:
        """What is free at this instant and promised to nobody; an amount that is not stated does not shrink."""
        used, leaving, promised = self._used[node], self._leaving[node], self._promised[node]
        cpu = used.cpu_milli + max(leaving.cpu_milli, promised.cpu_milli)
        memory = used.memory_mib + max(leaving.memory_mib, promised.memory_mib)
        return self._less(node, cpu, memory)

    def unoccupied(self, node: int) -> Host:
        """What nothing occupies at this instant, promised or not."""
        used, leaving = self._used[node], self._leaving[node]
        return self._less(node, used.cpu_milli + leaving.cpu_milli, used.memory_mib + leaving.memory_mib)

    def after(self, node: int, gone: Host = NOTHING) -> Host:
        """What is free once everything that leaves has left, and ``gone`` with it; below 0 where too much is there."""
        used, promised = self._used[node], self._promised[node]
        cpu = used.cpu_milli + promised.cpu_milli - gone.cpu_milli
        return self._less(node, cpu, used.memory_mib + promised.memory_mib - gone.memory_mib)

    def _less(self, node: int, cpu: int, memory: int) -> Host:
        capacity = self._capacity[node]
        return Host(
            PLENTY if capacity.cpu_milli == PLENTY else capacity.cpu_milli - cpu,
            PLENTY if capacity.memory_mib == PLENTY else capacity.memory_mib - memory,
        )


def sizes_of(nodes: Iterable[Node], names: Sequence[str], parts: Mapping[str, tuple[int, int]]) -> list[Host]:
    """The nodes' sizes in the order of ``names``; ``parts``: of a node in several pools, (devices here, of all)."""
    stated = {node.id: Host(node.cpu_milli, node.memory_mib) for node in nodes}
    sizes = []
    for name in names:
        size, (here, among) = stated.get(name, NOTHING), parts.get(name, (1, 1))
        sizes.append(Host(size.cpu_milli * here // among, size.memory_mib * here // among))
    return sizes


def _sum(one: Host, other: Host) -> Host:
    return Host(one.cpu_milli + other.cpu_milli, one.memory_mib + other.memory_mib)
