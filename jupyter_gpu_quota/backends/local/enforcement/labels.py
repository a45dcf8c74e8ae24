"""The label of a part: the strongest of what was read back, and why nothing stronger was."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.enforcement import DeviceShare, EnforcementLabel, EnforcementLevel, EnforcementOffer, is_weaker
from ....core.model import WHOLE_DEVICE
from ...protocol import SIMULATED
from ..sampling.reading import DeviceReading
from .cooperative import Cooperative
from .driver import DriverLimit
from .mig import Mig
from .mps import Mps
from .policed import Policed
from .protocol import Machine, Mechanism, Seen

MECHANISMS: tuple[Mechanism, ...] = (Mig(), DriverLimit(), Mps(), Policed(), Cooperative())
"""Strongest first."""

LONGEST_WHY = 600


def label(part: DeviceShare, seen: Seen, mechanisms: Sequence[Mechanism] = MECHANISMS) -> EnforcementLabel:
    """How a part is held, by what was read back of it."""
    if part.simulated:
        return EnforcementLabel(why=SIMULATED)
    memory = compute = EnforcementLevel.NONE
    reasons = list[str]()
    for each in mechanisms:
        why = each.verify(part, seen)
        if why and is_weaker(memory, each.memory):
            reasons.append(f"{each.memory}: {why}")
        memory = memory if why or not is_weaker(memory, each.memory) else each.memory
        compute = compute if why or not is_weaker(compute, each.compute) else each.compute
    return EnforcementLabel(
        memory=memory, compute=compute, why="; ".join(reasons)[:LONGEST_WHY], unsure=_is_unsure(part, seen)
    )


def _is_unsure(part: DeviceShare, seen: Seen) -> bool:
    """Whether what is missing was only not read: that ends nobody's work."""
    return bool(seen.unread or (seen.policed and seen.no_memory) or (part.is_fraction and seen.variables is None))


def offer(device: DeviceReading, machine: Machine, gpu_milli: int, project: str, *, notebook: bool) -> EnforcementOffer:
    """What a share of a device could have at best."""
    if gpu_milli >= WHOLE_DEVICE:
        return EnforcementOffer(device=device.uuid, memory=EnforcementLevel.HARDWARE, compute=EnforcementLevel.HARDWARE)
    memory = compute = EnforcementLevel.NONE
    reasons = list[str]()
    for each in MECHANISMS:
        why = _why_no_fraction(each, device, machine, project, notebook=notebook)
        if why:
            reasons.append(f"{each.name}: {why}")
            continue
        memory = each.memory if is_weaker(memory, each.memory) else memory
        compute = each.compute if is_weaker(compute, each.compute) else compute
    return EnforcementOffer(device=device.uuid, memory=memory, compute=compute, why="; ".join(reasons)[:LONGEST_WHY])


def _why_no_fraction(
    mechanism: Mechanism, device: DeviceReading, machine: Machine, project: str, *, notebook: bool
) -> str:
    if isinstance(mechanism, Mig):
        return "a fraction is not a whole instance"
    if isinstance(mechanism, Mps) and (notebook or project not in machine.mps):
        return "it is for batch jobs of projects that the settings name"
    return mechanism.probe(device, machine)
