"""What holds a rank to its share on this machine: its control group, the driver's limit on that, MPS where it is on.

The strongest that can be had is set before the rank begins. What it is worth is read back by others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...protocol import StartOrder
from ..enforcement.cgroup import Leaves, job_leaf
from ..enforcement.limiter import Limiter
from ..enforcement.mps import Mps
from ..enforcement.protocol import Part

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How a rank begins: in which leaf, None where none can be made; whether limited; and as which client of MPS."""

    leaf: str | None = None
    limited: bool = False
    mps: Mapping[str, str] = field(default_factory=dict)


class Holding:
    """Leaves of one state folder. ``mps`` has the pipe directories of projects whose jobs may share a device by MPS."""

    def __init__(
        self, leaves: Leaves, *, mps: Mapping[str, str] | None = None, limiter: Limiter | None = None
    ) -> None:  # fmt: skip
        self.leaves, self._mps, self._limiter = leaves, dict(mps or {}), limiter or Limiter(leaves)

    def hold(self, order: StartOrder, rank: int) -> Held:
        """Make the leaf of a rank and limit it, if that can be. Doing it again does the same again."""
        name, parts = job_leaf(order.job, order.attempt, rank), parts_of(order, rank)
        why = self.leaves.make(name)
        if why:
            log.debug("rank %d of job %s has no control group: %s", rank, order.job, why)
        limited = not why and self._limiter.limit(name, parts)
        mps = Mps(pipes=self._mps.get(order.project, ""))
        variables = mps.render(parts[0]) if len(parts) == 1 and not limited else {}
        return Held(leaf=None if why else str(self.leaves.path(name)), limited=limited, mps=variables)

    def processes(self, job: str, attempt: int, rank: int) -> frozenset[int]:
        """What is in the leaf of a rank, wherever it descends from."""
        return self.leaves.processes(job_leaf(job, attempt, rank))

    def sweep(self, is_live: Callable[[str, int, int], bool], devices: Sequence[str]) -> None:
        """Release the leaves of ranks that are over, and of those that were made and never used."""
        for name in self.leaves.names():
            kind, *rank = name.split(".")
            if kind == "job" and len(rank) == 3 and not is_live(rank[0], int(rank[1]), int(rank[2])):
                self._limiter.release(name, devices)


def parts_of(order: StartOrder, rank: int) -> list[Part]:
    """What a rank has of each device."""
    devices = {device.id: device for device in order.devices}
    return [
        Part(
            workload=order.job, attempt=order.attempt, rank=rank, device=devices[placed.device].uuid,
            gpu_milli=placed.gpu_milli, memory_mib=placed.memory_mib, simulated=devices[placed.device].simulated,
        )
        for placed in order.placements
        if placed.rank == rank and placed.device in devices
    ]  # fmt: skip
