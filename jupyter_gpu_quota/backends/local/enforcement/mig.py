"""Hardware: a part that is a whole MIG instance, or a whole device. Nobody else has anything of it.

What keeps processes from looking at another device is not judged here: that is CUDA_VISIBLE_DEVICES, a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.enforcement import DeviceShare, EnforcementLevel
from ..sampling.reading import DeviceReading
from .protocol import Machine, Seen


@dataclass(frozen=True, slots=True)
class Mig:
    """Instances are made by an admin; a share of one is a whole one."""

    name: str = "MIG (hardware)"
    memory: EnforcementLevel = EnforcementLevel.HARDWARE
    compute: EnforcementLevel = EnforcementLevel.HARDWARE

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        return device.able.get("mig", "it was not probed")

    def render(self, part: DeviceShare) -> Mapping[str, str]:
        """Nothing of its own: the instance is named by CUDA_VISIBLE_DEVICES like any device."""
        return {}

    def verify(self, part: DeviceShare, seen: Seen) -> str:
        if part.is_fraction:
            return f"others may have a part of the same {'MIG instance' if part.is_instance else 'device'}"
        return seen.unread and f"the device was not read: {seen.unread}"

    def release(self, part: DeviceShare) -> None:
        """Instances stay."""
