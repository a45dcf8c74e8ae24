"""Policed: memory is watched per process tree, and who takes more than its share is stopped, never its neighbour.

This is the judgement alone, pure; ``service.policing`` looks and acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..sampling.reading import DeviceReading
from .protocol import Machine, Part, Seen, Strength

SLACK_MIB = 64
"""Above its share by as much nobody is warned: figures of NVML are rounded, and contexts breathe."""

WARN_FOR_MS = 60_000
"""From the first reading above the share to the end: time to free memory, or to save."""

LEAST_READINGS = 3
"""Readings above the share, the first included, before anybody is stopped."""


@dataclass(frozen=True, slots=True)
class Policed:
    """Worth something only while each process's memory can be read, and the policy has offenders stopped."""

    name: str = "watching processes (policed)"
    memory: Strength = Strength.POLICED
    compute: Strength = Strength.NONE

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        return device.why.get("processes") or device.why.get("process_memory", "")

    def render(self, part: Part) -> Mapping[str, str]:
        return {}

    def verify(self, part: Part, seen: Seen) -> str:
        if not seen.policed:
            return "policy.enforcement does not ask for it, so nobody is stopped"
        return seen.unread or seen.no_memory

    def release(self, part: Part) -> None:
        """Nothing was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Somebody above its share: since when, in how many readings, and how much at the last."""

    since: int
    readings: int
    read_at: int
    used_mib: int
    share_mib: int

    @property
    def ends_at(self) -> int:
        return self.since + WARN_FOR_MS

    def is_over(self, now: int) -> bool:
        """Whether the warning was long enough, and borne out often enough, that it is stopped."""
        return now >= self.ends_at and self.readings >= LEAST_READINGS


def watched(before: Excess | None, *, used_mib: int | None, share_mib: int, read_at: int) -> Excess | None:
    """What a reading makes of what was known. Unknown is no offence, and forgives none.

    Takes MiB and the reading's instant. Returns None for who keeps to its share; the same value for a reading that
    was counted already.
    """
    if before is not None and read_at <= before.read_at:
        return before
    if used_mib is None:
        return before
    if used_mib <= share_mib + SLACK_MIB:
        return None
    since, readings = (read_at, 0) if before is None else (before.since, before.readings)
    return Excess(since=since, readings=readings + 1, read_at=read_at, used_mib=used_mib, share_mib=share_mib)
