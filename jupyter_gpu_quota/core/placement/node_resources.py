"""CPU and host memory of the nodes of one pool. They have no quota; a rank only needs room for them on its node.

An amount that a node does not state (0) is unlimited. A node with devices in several pools gives each pool a
proportional part. Columns: ``used`` (work that stays), ``leaving`` (still there), ``reserved``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..model import WHOLE_DEVICE, Device, Node

UNLIMITED = 1 << 40
"""CPU and memory of a node that does not state them."""


class CpuMemory(NamedTuple):
    """An amount of CPU and host memory."""

    cpu_milli: int = 0
    memory_mib: int = 0

    def covers(self, need: CpuMemory) -> bool:
        return self.cpu_milli >= need.cpu_milli and self.memory_mib >= need.memory_mib


NOTHING = CpuMemory()


def default_share(gpu_milli: int, nodes: Collection[tuple[CpuMemory, int]]) -> CpuMemory:
    """The CPU and memory of a rank that requests none: the GPU's part of its node.

    Takes the size of each node of the pool and its devices there. Of all nodes the least part counts, so that such jobs
    never keep each other from a free GPU; an amount that no node states is 0. Source: docs/scheduling.md, section 7.
    """

    def least(amounts: Iterable[tuple[int, int]]) -> int:
        return min((amount * gpu_milli // (WHOLE_DEVICE * count) for amount, count in amounts if amount), default=0)

    return CpuMemory(
        least((size.cpu_milli, count) for size, count in nodes),
        least((size.memory_mib, count) for size, count in nodes),
    )


class NodeResources:
    """The use of every node, by its number in the ledger. Rule R73."""

    def __init__(self, sizes: Sequence[CpuMemory]) -> None:
        self.sizes = list(sizes)
        count = len(self.sizes)
        self._capacity = [CpuMemory(size.cpu_milli or UNLIMITED, size.memory_mib or UNLIMITED) for size in sizes]
        self._used, self._leaving, self._reserved = [NOTHING] * count, [NOTHING] * count, [NOTHING] * count

    def add(
        self, node: int, used: CpuMemory = NOTHING, leaving: CpuMemory = NOTHING, reserved: CpuMemory = NOTHING
    ) -> None:
        self._used[node] = _sum(self._used[node], used)
        self._leaving[node] = _sum(self._leaving[node], leaving)
        self._reserved[node] = _sum(self._reserved[node], reserved)

    def size(self, node: int) -> CpuMemory:
        return self._capacity[node]

    def now(self, node: int) -> CpuMemory:
        """The free amounts now, without reserved ones; an amount that is not stated does not shrink."""
        used, leaving, reserved = self._used[node], self._leaving[node], self._reserved[node]
        cpu = used.cpu_milli + max(leaving.cpu_milli, reserved.cpu_milli)
        memory = used.memory_mib + max(leaving.memory_mib, reserved.memory_mib)
        return self._less(node, cpu, memory)

    def unoccupied(self, node: int) -> CpuMemory:
        """The unoccupied amounts now, reserved or not."""
        used, leaving = self._used[node], self._leaving[node]
        return self._less(node, used.cpu_milli + leaving.cpu_milli, used.memory_mib + leaving.memory_mib)

    def after(self, node: int, gone: CpuMemory = NOTHING) -> CpuMemory:
        """The free amounts after all drains, and after ``gone`` has left; below 0 for an overcommitted node."""
        used, reserved = self._used[node], self._reserved[node]
        cpu = used.cpu_milli + reserved.cpu_milli - gone.cpu_milli
        return self._less(node, cpu, used.memory_mib + reserved.memory_mib - gone.memory_mib)

    def _less(self, node: int, cpu: int, memory: int) -> CpuMemory:
        capacity = self._capacity[node]
        return CpuMemory(
            UNLIMITED if capacity.cpu_milli == UNLIMITED else capacity.cpu_milli - cpu,
            UNLIMITED if capacity.memory_mib == UNLIMITED else capacity.memory_mib - memory,
        )


def node_sizes(nodes: Iterable[Node], names: Sequence[str], parts: Mapping[str, tuple[int, int]]) -> list[CpuMemory]:
    """The nodes' sizes in the order of ``names``; ``parts``: for nodes in several pools, (devices here, all)."""
    stated = {node.id: CpuMemory(node.cpu_milli, node.memory_mib) for node in nodes}
    sizes = []
    for name in names:
        size, (here, among) = stated.get(name, NOTHING), parts.get(name, (1, 1))
        sizes.append(CpuMemory(size.cpu_milli * here // among, size.memory_mib * here // among))
    return sizes


def nodes_of_pool(nodes: Iterable[Node], devices: Collection[Device], pool: str) -> tuple[Node, ...]:
    """The nodes; one whose devices are in several pools has this pool's part of its CPU and memory alone."""
    among = Counter(device.node for device in devices)
    here = Counter(device.node for device in devices if device.pool == pool)
    return tuple(
        replace(
            node,
            cpu_milli=node.cpu_milli * here[node.id] // among[node.id],
            memory_mib=node.memory_mib * here[node.id] // among[node.id],
        )
        if 0 < here[node.id] < among[node.id]
        else node
        for node in nodes
    )


def _sum(one: CpuMemory, other: CpuMemory) -> CpuMemory:
    return CpuMemory(one.cpu_milli + other.cpu_milli, one.memory_mib + other.memory_mib)
