"""What the sampler of a machine does: it reads the devices, and what is used of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ....core.facts import DeviceFact
from ....core.model import Allocation, Node
from ....core.samples import DeviceSample
from ...protocol import DeviceUsers, Inventory
from .reading import MIB


def away_of(held: Iterable[Allocation]) -> frozenset[str]:
    """The workloads that have lent what they hold."""
    return frozenset(part.workload for part in held if not part.gpu_milli)


class MachineSampler(Protocol):
    """The sampler of one machine. Nothing here waits for a device."""

    def inventory(self, node: str) -> Inventory | None:
        """This machine and its devices; None: they cannot be read now."""

    def sample(self, users: DeviceUsers, pids: Mapping[str, frozenset[int]], *, now: int) -> list[DeviceSample] | None:
        """One sample per device; None: they are being read. ``pids`` are live processes by job."""

    def facts(self) -> Sequence[DeviceFact]:
        """Health and foreign use in the last sample, where that is something new."""

    def close(self) -> None: ...


def machine(node: str) -> Node:
    """This machine."""
    return Node(
        id=node,
        name=node,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
    )
