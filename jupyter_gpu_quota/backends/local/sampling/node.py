"""The node of this machine, and the workloads that lent their slices."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ....core.model import Allocation, Node
from .reading import MIB


def workloads_that_lent(allocations: Iterable[Allocation]) -> frozenset[str]:
    """The workloads that have lent their slices."""
    return frozenset(part.workload for part in allocations if not part.gpu_milli)


def machine(node: str) -> Node:
    """This machine."""
    return Node(
        id=node,
        name=node,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
    )
