"""Cooperative: caps that frameworks keep by themselves. A process that wants more takes more."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ....core.enforcement import DeviceShare, EnforcementLevel
from ...rendering.variables import XLA_FRACTION, framework_caps
from ..sampling.reading import DeviceReading
from .protocol import Machine, Seen


@dataclass(frozen=True, slots=True)
class Cooperative:
    """Variables for TensorFlow and JAX, and a start-up file by which kernels cap PyTorch."""

    name: str = "variables (cooperative)"
    memory: EnforcementLevel = EnforcementLevel.COOPERATIVE
    compute: EnforcementLevel = EnforcementLevel.NONE

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        return ""

    def render(self, part: DeviceShare) -> Mapping[str, str]:
        return framework_caps(part.gpu_milli, part.memory_mib)

    def verify(self, part: DeviceShare, seen: Seen) -> str:
        if not part.is_fraction:
            return "a whole device needs no cap"
        if seen.variables is None:
            return "the variables of its first process cannot be read"
        return "" if XLA_FRACTION in seen.variables else "its first process was started without the frameworks' caps"

    def release(self, part: DeviceShare) -> None:
        """Variables end with their process."""


def variables_of(pid: int) -> Mapping[str, str] | None:
    """What a process was started with, as /proc has it; None where that cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (each.partition(b"=") for each in raw.split(b"\0") if b"=" in each)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def first_with(name: str, holding: str, pids: Iterable[int]) -> int | None:
    """The lowest of these processes whose variable of this name holds a text."""
    for pid in sorted(pids):
        variables = variables_of(pid)
        if variables is not None and holding in variables.get(name, ""):
            return pid
    return None
