"""The label of a part: the strongest of what was read back, and why nothing stronger was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....core.model import WHOLE_DEVICE
from ..sampling.reading import DeviceReading
from .cooperative import Cooperative
from .driver import DriverLimit
from .mig import Mig
from .mps import Mps
from .policed import Policed
from .protocol import Label, Least, Machine, Mechanism, Part, Seen, Strength, is_weaker

MECHANISMS: tuple[Mechanism, ...] = (Mig(), DriverLimit(), Mps(), Policed(), Cooperative())
"""Strongest first."""

SIMULATED = "the device is simulated: there is nothing to hold"
LONGEST_WHY = 600


def label(part: Part, seen: Seen, mechanisms: Sequence[Mechanism] = MECHANISMS) -> Label:
    """How a part is held, by what was read back of it."""
    if part.simulated:
        return Label(why=SIMULATED)
    memory = compute = Strength.NONE
    reasons = list[str]()
    for each in mechanisms:
        why = each.verify(part, seen)
        if why and is_weaker(memory, each.memory):
            reasons.append(f"{each.memory}: {why}")
        memory = memory if why or not is_weaker(memory, each.memory) else each.memory
        compute = compute if why or not is_weaker(compute, each.compute) else each.compute
    return Label(memory=memory, compute=compute, why="; ".join(reasons)[:LONGEST_WHY], unsure=_is_unsure(part, seen))


def _is_unsure(part: Part, seen: Seen) -> bool:
    """Whether what is missing was only not read: that ends nobody's work."""
    return bool(seen.unread or (seen.policed and seen.no_memory) or (part.is_fraction and seen.variables is None))


def too_weak(found: Label, least: Least) -> str:
    """Why a label is less than the policy accepts, as a clause; empty where it is enough."""
    short = []
    if is_weaker(found.memory, least.memory):
        short.append(f"its memory is held by {found.memory}, and the policy accepts {least.memory} or better")
    if is_weaker(found.compute, least.compute):
        short.append(f"its compute is held by {found.compute}, and the policy accepts {least.compute} or better")
    return " and ".join(short)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The best that a share of so much of one device could have, as was probed, and why no better.

    ``unsure``: the device could not be read, so that nothing is known of it.
    """

    device: str
    memory: Strength = Strength.NONE
    compute: Strength = Strength.NONE
    why: str = ""
    unsure: bool = False

    def is_enough(self, least: Least) -> bool:
        """Whether a policy accepts it."""
        return not is_weaker(self.memory, least.memory) and not is_weaker(self.compute, least.compute)


def offer(device: DeviceReading, machine: Machine, gpu_milli: int, project: str, *, notebook: bool) -> Offer:
    """What a share of a device could have at best."""
    if gpu_milli >= WHOLE_DEVICE:
        return Offer(device=device.uuid, memory=Strength.HARDWARE, compute=Strength.HARDWARE)
    memory = compute = Strength.NONE
    reasons = list[str]()
    for each in MECHANISMS:
        why = _why_no_fraction(each, device, machine, project, notebook=notebook)
        if why:
            reasons.append(f"{each.name}: {why}")
            continue
        memory = each.memory if is_weaker(memory, each.memory) else memory
        compute = each.compute if is_weaker(compute, each.compute) else compute
    return Offer(device=device.uuid, memory=memory, compute=compute, why="; ".join(reasons)[:LONGEST_WHY])


def _why_no_fraction(
    mechanism: Mechanism, device: DeviceReading, machine: Machine, project: str, *, notebook: bool
) -> str:
    if isinstance(mechanism, Mig):
        return "a fraction is not a whole instance"
    if isinstance(mechanism, Mps) and (notebook or project not in machine.mps):
        return "it is for batch jobs of projects that the settings name"
    return mechanism.probe(device, machine)


def best(offers: Iterable[Offer], least: Least) -> Offer | None:
    """The first offer that is enough; None where none is."""
    return next((each for each in offers if each.is_enough(least)), None)
