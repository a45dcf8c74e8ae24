"""The driver's memory limit on a control group: an allocation beyond it fails with an ordinary out-of-memory.

It needs driver 615, cgroup v2 and root; MIG instances have none, and managed memory is not counted by it.
Source: https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.enforcement import DeviceShare, EnforcementLevel
from ...rendering.variables import pod_limits
from ..sampling.reading import DeviceReading
from .cgroup import cgroup_of
from .limiter import Limiter
from .protocol import Machine, Seen

LIMITS_FROM = 615
"""The first driver that limits the memory of a control group."""


@dataclass(frozen=True, slots=True)
class DriverLimit:
    """``limiter`` sets limits on this machine; without it nothing can be released here."""

    limiter: Limiter | None = None
    name: str = "memory limit (driver)"
    memory: EnforcementLevel = EnforcementLevel.DRIVER
    compute: EnforcementLevel = EnforcementLevel.NONE

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        lacking = ["a MIG instance has none" if device.parent else device.able.get("limits", "it was not probed")]
        major = (machine.driver or "").partition(".")[0]
        if major.isdigit() and int(major) < LIMITS_FROM:
            lacking = [f"it needs a driver from {LIMITS_FROM} on, this is {machine.driver}"]
        lacking += [machine.no_cgroups, "" if machine.root else "it needs root"]
        return "; ".join(filter(None, lacking))

    def render(self, part: DeviceShare) -> Mapping[str, str]:
        """What a pod is told; on one machine the limit is set on the cgroup instead."""
        return pod_limits(part.memory_mib) if part.is_fraction and not part.is_instance else {}

    def verify(self, part: DeviceShare, seen: Seen) -> str:
        if seen.limit_mib is None:
            return seen.no_limit or "no limit was read back"
        if seen.limit_mib != part.memory_mib:
            return f"the limit that was read back is {seen.limit_mib} MiB, not {part.memory_mib} MiB"
        return seen.outside

    def release(self, part: DeviceShare) -> None:
        """Take the limit away, and then the group."""
        if self.limiter is not None and part.device is not None:
            self.limiter.release(cgroup_of(part), [part.device])
