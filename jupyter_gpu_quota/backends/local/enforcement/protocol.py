"""What every mechanism can do, and the words in which a share says how it is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ....core.enforcement import DeviceShare, EnforcementLevel
from ..sampling.reading import DeviceReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a probe looks at beside the device. ``no_cgroups``: why no control groups can be made, empty where they can.

    ``mps`` are the pipe directories of MPS daemons, by project.
    """

    driver: str | None
    no_cgroups: str = ""
    root: bool = False
    mps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was read back of one part, for mechanisms to judge by; what could not be read says why.

    ``unread``: why nothing of the device was read lately, empty where it was. ``limit_mib`` is the driver's limit, soft
    and hard alike, None where there is none, with ``no_limit`` to say why. ``outside``: why its processes are not all
    in the control group that has the limit. ``variables`` are of its first process; None: they cannot be read.
    ``no_memory``: why it is not known how much memory its processes hold. ``mps``: NVML tells of MPS on the device.
    """

    unread: str = ""
    limit_mib: int | None = None
    no_limit: str = ""
    outside: str = ""
    variables: Mapping[str, str] | None = None
    no_memory: str = ""
    mps: bool = False
    policed: bool = False


class Mechanism(Protocol):
    """One way to hold shares. ``memory`` and ``compute`` are what it is worth where it works.

    A reason is a clause without a full stop; an empty one means that nothing is in the way.
    """

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> EnforcementLevel: ...
    @property
    def compute(self) -> EnforcementLevel: ...

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        """Why it cannot be had of a device; empty where it can."""

    def render(self, part: DeviceShare) -> Mapping[str, str]:
        """The variables that a process of this part is started with."""

    def verify(self, part: DeviceShare, seen: Seen) -> str:
        """Why what was read back does not show it; empty where it does."""

    def release(self, part: DeviceShare) -> None:
        """Undo what outlives the processes; doing it again does nothing."""
