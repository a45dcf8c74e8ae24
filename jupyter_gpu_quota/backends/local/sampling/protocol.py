"""What a sampler can do: read what there is, and what is used of it. Nothing here waits for a device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ....core.facts import DeviceFact
from ....core.model import Allocation, Device, Node
from ....store.records.rows import SampleRow
from .reading import MIB

KNOWN, UNKNOWN = 1000, 0
"""Coverage of a row, in permille of the readings that were expected."""

Holders = Mapping[Device, Sequence[Allocation]]
"""Each device with the allocations on it; a device that nobody holds has none.

A notebook that lent its slice has one of 0 milli-GPU where the slice comes back to: its own processes are looked for.
"""

Inventory = tuple[tuple[Node, ...], tuple[Device, ...]]


def away_of(held: Iterable[Allocation]) -> frozenset[str]:
    """The workloads that have lent what they hold."""
    return frozenset(part.workload for part in held if not part.gpu_milli)


class Sampler(Protocol):
    """Tells how devices are used, and how they are."""

    def sample(self, holders: Holders, pids: Mapping[str, frozenset[int]], *, now: int) -> list[SampleRow] | None:
        """One row per device; None: they are being read, ask again at the next tick.

        ``pids`` are live processes by job.
        """

    def facts(self) -> Sequence[DeviceFact]:
        """What the last sample told of devices beside their use, where it is something new."""


class MachineSampler(Sampler, Protocol):
    """The sampler of one machine, which knows what devices that has."""

    def inventory(self, node: str) -> Inventory | None:
        """This machine and its devices; None: that cannot be told now."""

    def close(self) -> None: ...


def machine(node: str) -> Node:
    """This machine."""
    return Node(
        id=node,
        name=node,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
    )
