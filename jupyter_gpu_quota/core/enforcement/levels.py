"""Enforcement levels of a share: the required level, the level that was read back, and the best possible one.

A share's memory and its compute each have a level of their own: a driver limit enforces memory, not compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..model import WHOLE_DEVICE


class EnforcementLevel(StrEnum):
    """The enforcement of a workload's share of memory, or of compute; strongest first."""

    HARDWARE = "hardware"
    DRIVER = "driver"
    MPS = "mps"
    POLICED = "policed"
    COOPERATIVE = "cooperative"
    NONE = "none"


STRONGEST_FIRST = tuple(EnforcementLevel)


def is_weaker(one: EnforcementLevel, other: EnforcementLevel) -> bool:
    """Whether the first level enforces less than the second."""
    return STRONGEST_FIRST.index(one) > STRONGEST_FIRST.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredEnforcement:
    """The weakest levels that the policy accepts. Source: ``policy.enforcement`` of the quota file."""

    memory: EnforcementLevel = EnforcementLevel.NONE
    compute: EnforcementLevel = EnforcementLevel.NONE

    @property
    def is_set(self) -> bool:
        return (self.memory, self.compute) != (EnforcementLevel.NONE, EnforcementLevel.NONE)

    @property
    def stops_over_share(self) -> bool:
        """Whether work that takes more memory than its share is stopped: where the policy requires at least that."""
        return not is_weaker(self.memory, EnforcementLevel.POLICED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """A workload's share of one device. ``device`` is the UUID, None where it is not known yet.

    ``rank`` and ``attempt`` are 0 for a notebook.
    """

    workload: str
    device: str | None
    gpu_milli: int
    memory_mib: int
    rank: int = 0
    attempt: int = 0
    notebook: bool = False
    simulated: bool = False

    @property
    def is_fraction(self) -> bool:
        """Whether other workloads may have a share of the same device."""
        return self.gpu_milli < WHOLE_DEVICE

    @property
    def is_instance(self) -> bool:
        """Whether the device is a MIG instance, by the name that NVML gives it."""
        return bool(self.device) and str(self.device).startswith("MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcementLabel:
    """The enforcement of one share, as was read back. ``why`` gives the reason for no stronger level.

    ``unsure``: something could not be read, so the share may be enforced better than the label says.
    """

    memory: EnforcementLevel = EnforcementLevel.NONE
    compute: EnforcementLevel = EnforcementLevel.NONE
    why: str = ""
    unsure: bool = False

    def is_enough(self, required: RequiredEnforcement) -> bool:
        """Whether a policy accepts these levels for a share."""
        return not is_weaker(self.memory, required.memory) and not is_weaker(self.compute, required.compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcementOffer(EnforcementLabel):
    """The best enforcement that a share of one device can have, as was probed. ``why`` gives the reason for no better.

    ``unsure``: the device, or a mechanism, could not be probed, so a better one may be possible.
    """

    device: str


def best_offer(offers: Sequence[EnforcementOffer]) -> EnforcementOffer:
    """The strongest offer: by memory, then compute, then device. Raises ValueError where there is none."""
    rank_of = STRONGEST_FIRST.index
    return min(offers, key=lambda each: (rank_of(each.memory), rank_of(each.compute), each.device))
