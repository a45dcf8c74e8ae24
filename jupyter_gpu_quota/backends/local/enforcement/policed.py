"""Policed: memory is read per process tree, and a workload that takes more than its share is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.enforcement import DeviceShare, EnforcementLevel
from ..sampling.reading import DeviceReading
from .protocol import Machine, Seen


@dataclass(frozen=True, slots=True)
class Policed:
    """Works only while the memory of each process can be read, and the policy stops work above its share."""

    name: str = "watching processes (policed)"
    memory: EnforcementLevel = EnforcementLevel.POLICED
    compute: EnforcementLevel = EnforcementLevel.NONE

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        return device.why.get("processes") or device.why.get("process_memory", "")

    def render(self, part: DeviceShare) -> Mapping[str, str]:
        return {}

    def verify(self, part: DeviceShare, seen: Seen) -> str:
        if not seen.policed:
            return "policy.enforcement does not ask for it, so nobody is stopped"
        return seen.unread or seen.no_memory

    def release(self, part: DeviceShare) -> None:
        """Nothing was set."""
