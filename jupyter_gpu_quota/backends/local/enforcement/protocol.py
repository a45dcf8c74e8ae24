"""What every mechanism can do, and the words in which a share says how it is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ....core.model import WHOLE_DEVICE
from ..sampling.reading import DeviceReading


class Strength(StrEnum):
    """What holds a share's memory, or its compute, to its part; strongest first."""

    HARDWARE = "hardware"
    DRIVER = "driver"
    MPS = "mps"
    POLICED = "policed"
    COOPERATIVE = "cooperative"
    NONE = "none"


STRONGEST_FIRST = tuple(Strength)


def is_weaker(one: Strength, other: Strength) -> bool:
    """Whether one holds less than the other."""
    return STRONGEST_FIRST.index(one) > STRONGEST_FIRST.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The weakest that the policy accepts, one for each."""

    memory: Strength = Strength.NONE
    compute: Strength = Strength.NONE

    @property
    def asks(self) -> bool:
        """Whether it asks for anything at all."""
        return (self.memory, self.compute) != (Strength.NONE, Strength.NONE)

    @property
    def polices(self) -> bool:
        """Whether who takes more memory than its share is stopped: where the policy wants that, or something better."""
        return not is_weaker(self.memory, Strength.POLICED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A workload's part of one device. ``device`` is the UUID, None where it is not known yet.

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
        """Whether others may have a part of the same device."""
        return self.gpu_milli < WHOLE_DEVICE

    @property
    def is_instance(self) -> bool:
        """Whether the device is a MIG instance, by the name that NVML gives it."""
        return bool(self.device) and str(self.device).startswith("MIG-")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """How one part is held, as was read back. ``why`` says why by nothing stronger.

    ``unsure``: something could not be read, so that it may be held better than it says.
    """

    memory: Strength = Strength.NONE
    compute: Strength = Strength.NONE
    why: str = ""
    unsure: bool = False


class Mechanism(Protocol):
    """One way to hold shares. ``memory`` and ``compute`` are what it is worth where it works.

    A reason is a clause without a full stop; an empty one means that nothing is in the way.
    """

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> Strength: ...
    @property
    def compute(self) -> Strength: ...

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        """Why it cannot be had of a device; empty where it can."""

    def render(self, part: Part) -> Mapping[str, str]:
        """The variables that a process of this part is started with."""

    def verify(self, part: Part, seen: Seen) -> str:
        """Why what was read back does not show it; empty where it does."""

    def release(self, part: Part) -> None:
        """Undo what outlives the processes; doing it again does nothing."""
