"""Prepares the enforcement of a rank: its cgroup, the driver's limit on that, and MPS where it is on.

The strongest mechanism that is available is set before the rank starts. :mod:`..enforcement.read_back` checks it later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ....core.enforcement.levels import DeviceShare
from ...protocol import StartOrder
from ..enforcement.cgroup import Cgroups, job_cgroup
from ..enforcement.limiter import Limiter
from ..enforcement.mechanisms import mps_variables

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """The path of a rank's cgroup, None without one; whether the driver limits it; variables of a client of MPS."""

    cgroup: str | None = None
    limited: bool = False
    mps: Mapping[str, str] = field(default_factory=dict)


class RankEnforcement:
    """The enforcement of ranks on one state folder. ``mps`` are the pipe directories of MPS daemons by project."""

    def __init__(
        self, cgroups: Cgroups, *, mps: Mapping[str, str] | None = None, limiter: Limiter | None = None
    ) -> None:
        self.cgroups, self._mps, self._limiter = cgroups, dict(mps or {}), limiter or Limiter(cgroups)

    def prepare(self, order: StartOrder, rank: int) -> RankSettings:
        """Make the cgroup of a rank and limit it, where that is possible. It is idempotent."""
        name, shares = job_cgroup(order.job, order.attempt, rank), _shares_of(order, rank)
        if why := self.cgroups.make(name):
            level = (
                logging.DEBUG if why == self.cgroups.why_not else logging.WARNING
            )  # the former is so on this machine
            log.log(level, "rank %d of job %s has no cgroup: %s", rank, order.job, why)
        limited = not why and self._limiter.limit(name, shares)
        is_client = len(shares) == 1 and not limited
        mps = mps_variables(shares[0], self._mps.get(order.project, "")) if is_client else {}
        return RankSettings(cgroup=None if why else str(self.cgroups.path(name)), limited=limited, mps=mps)

    def processes(self, job: str, attempt: int, rank: int) -> frozenset[int]:
        """The processes in the cgroup of a rank."""
        return self.cgroups.processes(job_cgroup(job, attempt, rank))

    def sweep(self, is_live: Callable[[str, int, int], bool], devices: Sequence[str]) -> None:
        """Release the cgroups of ranks that ended or never started."""
        for name in self.cgroups.names():
            kind, *rank = name.split(".")
            if kind == "job" and len(rank) == 3 and not is_live(rank[0], int(rank[1]), int(rank[2])):
                self._limiter.release(name, devices)


def _shares_of(order: StartOrder, rank: int) -> list[DeviceShare]:
    devices = {device.id: device for device in order.devices}
    return [
        DeviceShare(
            workload=order.job, attempt=order.attempt, rank=rank, device=devices[placed.device].uuid,
            gpu_milli=placed.gpu_milli, memory_mib=placed.memory_mib, simulated=devices[placed.device].simulated,
        )
        for placed in order.placements
        if placed.rank == rank and placed.device in devices
    ]  # fmt: skip
