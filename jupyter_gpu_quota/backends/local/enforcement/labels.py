"""The label of a share: the strongest enforcement that the evidence shows, and why nothing stronger."""

from __future__ import annotations

from dataclasses import replace

from ....core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementLevel, EnforcementOffer, is_weaker
from ....core.model import WHOLE_DEVICE
from ...protocol import SIMULATED
from ..sampling.reading import DeviceReading
from .mechanisms import DRIVER, MECHANISMS, MIG, MPS, POLICED, Evidence, Machine, Mechanism

MAX_WHY_LENGTH = 600


def label(share: DeviceShare, evidence: Evidence) -> EnforcementLabel:
    """How a share is enforced. ``unsure``: evidence is missing because it was not read; that stops no work."""
    if share.simulated:
        return EnforcementLabel(why=SIMULATED)
    memory = compute = EnforcementLevel.NONE
    reasons = list[str]()
    for each in MECHANISMS:
        if why := each.verify(share, evidence):
            reasons += [f"{each.memory}: {why}"] if is_weaker(memory, each.memory) else []
        else:
            memory, compute = _stronger(memory, each.memory), _stronger(compute, each.compute)
    why_unread = evidence.why_unread or (evidence.policed and evidence.why_no_memory)
    unsure = bool(why_unread or (share.is_fraction and (evidence.variables is None or evidence.is_limit_unread)))
    return EnforcementLabel(memory=memory, compute=compute, why="; ".join(reasons)[:MAX_WHY_LENGTH], unsure=unsure)


def offer(device: DeviceReading, machine: Machine, gpu_milli: int, project: str, *, notebook: bool) -> EnforcementOffer:
    """The best enforcement that a share of a device could have; ``unsure``: a better one may be possible.

    The driver may have limits, or list the processes, though it did not answer this time.
    """
    if gpu_milli >= WHOLE_DEVICE:
        return EnforcementOffer(device=device.uuid, memory=EnforcementLevel.HARDWARE, compute=EnforcementLevel.HARDWARE)
    memory = compute = EnforcementLevel.NONE
    reasons = list[str]()
    for each in MECHANISMS:
        if why := _why_unavailable(each, device, machine, project, notebook=notebook):
            reasons.append(f"{each.name}: {why}")
        else:
            memory, compute = _stronger(memory, each.memory), _stronger(compute, each.compute)
    able = replace(device, unavailable={**device.unavailable, "limits": ""})
    unsure = "limits" in device.unprobed and not DRIVER.probe(machine, able)
    unsure |= "processes" in device.unprobed and is_weaker(memory, POLICED.memory)
    why = "; ".join(reasons)[:MAX_WHY_LENGTH]
    return EnforcementOffer(device=device.uuid, memory=memory, compute=compute, why=why, unsure=unsure)


def _stronger(one: EnforcementLevel, other: EnforcementLevel) -> EnforcementLevel:
    return other if is_weaker(one, other) else one


def _why_unavailable(
    mechanism: Mechanism, device: DeviceReading, machine: Machine, project: str, *, notebook: bool
) -> str:
    if mechanism is MIG:
        return "a fraction is not a whole instance"
    if mechanism is MPS and (notebook or project not in machine.mps):
        return "it is for batch jobs of projects that the settings name"
    if mechanism is MPS:  # the daemons of other projects do not matter
        machine = replace(machine, mps={project: machine.mps[project]})
    return mechanism.probe(machine, device)
