"""What holds a rank to its share on this machine: its control group, the driver's limit on that, MPS where it is on.

The strongest that can be had is set before the rank begins. What it is worth is read back by others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ....core.enforcement import DeviceShare
from ...protocol import StartOrder
from ..enforcement.cgroup import Cgroups, job_cgroup
from ..enforcement.limiter import Limiter
from ..enforcement.mps import Mps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """How a rank begins: in which cgroup, None where none can be made; whether limited; and as which client of MPS."""

    cgroup: str | None = None
    limited: bool = False
    mps: Mapping[str, str] = field(default_factory=dict)


class RankEnforcement:
    """Cgroups of one state folder. ``mps`` has pipe directories of projects whose jobs may share a device by MPS."""

    def __init__(
        self, cgroups: Cgroups, *, mps: Mapping[str, str] | None = None, limiter: Limiter | None = None
    ) -> None:  # fmt: skip
        self.cgroups, self._mps, self._limiter = cgroups, dict(mps or {}), limiter or Limiter(cgroups)

    def hold(self, order: StartOrder, rank: int) -> RankSettings:
        """Make the cgroup of a rank and limit it, if that can be. Doing it again does the same again."""
        name, parts = job_cgroup(order.job, order.attempt, rank), parts_of(order, rank)
        why = self.cgroups.make(name)
        if why:
            log.debug("rank %d of job %s has no control group: %s", rank, order.job, why)
        limited = not why and self._limiter.limit(name, parts)
        mps = Mps(pipes=self._mps.get(order.project, ""))
        variables = mps.render(parts[0]) if len(parts) == 1 and not limited else {}
        return RankSettings(cgroup=None if why else str(self.cgroups.path(name)), limited=limited, mps=variables)

    def processes(self, job: str, attempt: int, rank: int) -> frozenset[int]:
        """What is in the cgroup of a rank, wherever it descends from."""
        return self.cgroups.processes(job_cgroup(job, attempt, rank))

    def sweep(self, is_live: Callable[[str, int, int], bool], devices: Sequence[str]) -> None:
        """Release the cgroups of ranks that are over, and of those that were made and never used."""
        for name in self.cgroups.names():
            kind, *rank = name.split(".")
            if kind == "job" and len(rank) == 3 and not is_live(rank[0], int(rank[1]), int(rank[2])):
                self._limiter.release(name, devices)


def parts_of(order: StartOrder, rank: int) -> list[DeviceShare]:
    """What a rank has of each device."""
    devices = {device.id: device for device in order.devices}
    return [
        DeviceShare(
            workload=order.job, attempt=order.attempt, rank=rank, device=devices[placed.device].uuid,
            gpu_milli=placed.gpu_milli, memory_mib=placed.memory_mib, simulated=devices[placed.device].simulated,
        )
        for placed in order.placements
        if placed.rank == rank and placed.device in devices
    ]  # fmt: skip
