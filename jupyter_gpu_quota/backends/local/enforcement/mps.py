"""MPS: a memory limit and a part of the multiprocessors for each client. Off unless the settings name a daemon.

A client that is killed can break its neighbours, so a daemon serves the batch jobs of one project and nobody else.
Source: https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....core.enforcement import DeviceShare, EnforcementLevel
from ..sampling.reading import DeviceReading
from .protocol import Machine, Seen

PIPES, MEMORY = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
COMPUTE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True, slots=True)
class Mps:
    """``pipes`` is where the daemon of the job's project listens; empty: it has none."""

    pipes: str = ""
    name: str = "MPS"
    memory: EnforcementLevel = EnforcementLevel.MPS
    compute: EnforcementLevel = EnforcementLevel.MPS

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        if shutil.which("nvidia-cuda-mps-control") is None:
            return "nvidia-cuda-mps-control is not here"
        if not machine.mps:
            return "it is off; c.GPUQuota.mps names a project's daemon"
        silent = sorted(project for project, place in machine.mps.items() if not Path(place, "control").exists())
        return f"no daemon listens for {', '.join(silent)}" if silent else ""

    def render(self, part: DeviceShare) -> Mapping[str, str]:
        """A fraction of one device is device 0 of its process. The percentage is rounded up: 0 is none at all."""
        if not self.pipes or part.notebook or part.simulated or not part.is_fraction:
            return {}
        percent = -(-part.gpu_milli // 10)
        return {PIPES: self.pipes, MEMORY: f"0={part.memory_mib}M", COMPUTE: str(percent)}

    def verify(self, part: DeviceShare, seen: Seen) -> str:
        variables = seen.variables or {}
        if MEMORY not in variables:
            return "it was not started as a client of MPS"
        if variables[MEMORY] != f"0={part.memory_mib}M":
            return f"its limit under MPS is {variables[MEMORY]}, not 0={part.memory_mib}M"
        return "" if seen.mps else "NVML tells of no client of MPS on the device"

    def release(self, part: DeviceShare) -> None:
        """A client's limits end with it."""
