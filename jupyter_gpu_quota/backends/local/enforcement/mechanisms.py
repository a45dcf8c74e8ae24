"""The mechanisms that enforce shares, strongest first: the requirements of each, and the evidence that it works.

* MIG (hardware): a share that is a whole MIG instance or a whole device. An admin makes the instances.
* memory limit (driver): an allocation beyond the limit of a cgroup fails with an ordinary out-of-memory. It needs
  driver 615, cgroup v2 and root; MIG instances have none, and managed memory is not counted.
  Source: https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html
* MPS: a memory limit and a part of the multiprocessors for each client. Off unless the settings name a daemon. A killed
  client can break other clients of its daemon, so a daemon serves the batch jobs of one project only.
  Source: https://docs.nvidia.com/deploy/mps/
* watching processes (policed): the memory of a process tree is read, and a workload above its share is stopped.
* variables (cooperative): caps that frameworks set for themselves. A process may ignore them.

A label shows only what was read back. Source: docs/explanation/shares.md.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ....core.enforcement.levels import DeviceShare, EnforcementLevel
from ...rendering.variables import XLA_FRACTION
from ..sampling.reading import DeviceReading

LIMITS_FROM = 615
"""The first driver that limits the memory of a cgroup."""

PIPES, MEMORY = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
COMPUTE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of the machine for a probe. ``why_no_cgroups``: empty where cgroups can be made.

    ``mps`` are the pipe directories of MPS daemons, by project.
    """

    driver: str | None
    why_no_cgroups: str = ""
    root: bool = False
    mps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts that were read back of one share; each fact that could not be read has its reason.

    ``why_unread``: the device has no recent reading. ``limit_mib`` is the driver's limit, soft and hard alike; None
    where there is none, for the reason ``why_no_limit``; ``is_limit_unread``: there may be one. ``why_outside``: not
    all of its processes are in the cgroup that has the limit. ``variables`` are of its first process; None: they cannot
    be read. ``why_no_memory``: the memory of its processes is unknown. ``mps``: NVML lists MPS clients on the device.
    ``policed``: work above its share is stopped.
    """

    why_unread: str = ""
    limit_mib: int | None = None
    why_no_limit: str = ""
    is_limit_unread: bool = False
    why_outside: str = ""
    variables: Mapping[str, str] | None = None
    why_no_memory: str = ""
    mps: bool = False
    policed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One way to enforce shares. ``memory`` and ``compute`` are the levels that it reaches where it works.

    ``probe`` returns why a device cannot have it, ``verify`` why the evidence does not show it. A reason is a clause
    without a full stop; it is empty where nothing prevents the mechanism.
    """

    name: str
    memory: EnforcementLevel
    compute: EnforcementLevel
    probe: Callable[[Machine, DeviceReading], str]
    verify: Callable[[DeviceShare, Evidence], str]


# --- MIG --------------------------------------------------------------------------------------------------------------
def _verify_mig(share: DeviceShare, evidence: Evidence) -> str:
    """CUDA_VISIBLE_DEVICES is a hint: this does not know whether a process uses another device."""
    if share.is_fraction:
        return f"others may have a part of the same {'MIG instance' if share.is_instance else 'device'}"
    return evidence.why_unread and f"the device was not read: {evidence.why_unread}"


# --- the driver's memory limit ----------------------------------------------------------------------------------------
def _probe_driver(machine: Machine, device: DeviceReading) -> str:
    lacking = ["a MIG instance has none" if device.parent else device.unavailable.get("limits", "it was not probed")]
    major = (machine.driver or "").partition(".")[0]
    if major.isdigit() and int(major) < LIMITS_FROM:
        lacking = [f"it needs a driver from {LIMITS_FROM} on, this is {machine.driver}"]
    lacking += [machine.why_no_cgroups, "" if machine.root else "it needs root"]
    return "; ".join(filter(None, lacking))


def _verify_driver(share: DeviceShare, evidence: Evidence) -> str:
    if evidence.limit_mib is None:
        return evidence.why_no_limit or "no limit was read back"
    if evidence.limit_mib != share.memory_mib:
        return f"the limit that was read back is {evidence.limit_mib} MiB, not {share.memory_mib} MiB"
    return evidence.why_outside


# --- MPS --------------------------------------------------------------------------------------------------------------
def _probe_mps(machine: Machine, device: DeviceReading) -> str:
    if shutil.which("nvidia-cuda-mps-control") is None:
        return "nvidia-cuda-mps-control is not here"
    if not machine.mps:
        return "it is off; c.GPUQuota.mps names a project's daemon"
    silent = sorted(project for project, pipes in machine.mps.items() if _is_silent(Path(pipes, "control")))
    return f"no daemon listens for {', '.join(silent)}" if silent else ""


def _is_silent(control: Path) -> bool:
    """Whether certainly no daemon listens on its pipe, or socket: one that was killed leaves it."""
    try:
        if stat.S_ISSOCK(control.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.setblocking(False)
                connection.connect(str(control))
        else:
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ECONNREFUSED)
    return False


def _verify_mps(share: DeviceShare, evidence: Evidence) -> str:
    variables = evidence.variables or {}
    if MEMORY not in variables:
        return "it was not started as a client of MPS"
    if variables[MEMORY] != f"0={share.memory_mib}M":
        return f"its limit under MPS is {variables[MEMORY]}, not 0={share.memory_mib}M"
    return "" if evidence.mps else evidence.why_unread or "NVML lists no client of MPS on the device"


def mps_variables(share: DeviceShare, pipes: str) -> Mapping[str, str]:
    """The variables of a client of the MPS daemon that listens at ``pipes``; none where the share cannot use it.

    A fraction of one device is device 0 of its process. The percentage is rounded up: 0 is no compute at all.
    """
    if not pipes or share.notebook or share.simulated or not share.is_fraction:
        return {}
    return {PIPES: pipes, MEMORY: f"0={share.memory_mib}M", COMPUTE: str(-(-share.gpu_milli // 10))}


# --- memory enforcement by this service, and by frameworks ------------------------------------------------------------
def _verify_policed(share: DeviceShare, evidence: Evidence) -> str:
    if not evidence.policed:
        return "policy.enforcement does not require it, so no work is stopped"
    return evidence.why_unread or evidence.why_no_memory


def _verify_cooperative(share: DeviceShare, evidence: Evidence) -> str:
    if not share.is_fraction:
        return "a whole device needs no cap"
    if evidence.variables is None:
        return "the variables of its first process cannot be read"
    return "" if XLA_FRACTION in evidence.variables else "its first process was started without the frameworks' caps"


LEVEL = EnforcementLevel
MIG = Mechanism(
    name="MIG (hardware)", memory=LEVEL.HARDWARE, compute=LEVEL.HARDWARE, verify=_verify_mig,
    probe=lambda machine, device: device.unavailable.get("mig", "it was not probed"),
)  # fmt: skip
DRIVER = Mechanism(
    name="memory limit (driver)", memory=LEVEL.DRIVER, compute=LEVEL.NONE, probe=_probe_driver, verify=_verify_driver
)
MPS = Mechanism(name="MPS", memory=LEVEL.MPS, compute=LEVEL.MPS, probe=_probe_mps, verify=_verify_mps)
POLICED = Mechanism(
    name="watching processes (policed)", memory=LEVEL.POLICED, compute=LEVEL.NONE, verify=_verify_policed,
    probe=lambda machine, device: device.why.get("processes") or device.why.get("process_memory", ""),
)  # fmt: skip
COOPERATIVE = Mechanism(
    name="variables (cooperative)", memory=LEVEL.COOPERATIVE, compute=LEVEL.NONE, probe=lambda machine, device: "",
    verify=_verify_cooperative,
)  # fmt: skip
MECHANISMS = (MIG, DRIVER, MPS, POLICED, COOPERATIVE)
"""Strongest first."""
