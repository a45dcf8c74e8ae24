"""The driver's memory limit on a control group: an allocation beyond it fails with an ordinary out-of-memory.

It needs driver 615, cgroup v2 and root; MIG instances have none, and managed memory is not counted by it. Limits are
set and read by a process of its own (:mod:`..sampling.limits`), because a call into the driver may hang.
Source: https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..manifests import pod_limits
from ..sampling.reading import DeviceReading
from .leaf import leaf_of
from .protocol import Machine, Part, Seen, Strength

if TYPE_CHECKING:
    from .limiter import Limiter

LIMITS_FROM = 615
"""The first driver that limits the memory of a control group."""

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota.sampling.limits")
TIMEOUT_S, REAP_S = 30.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Read the limit of one group on one device, after setting it: ``mib`` as soft and hard limit, 0 to take it away.

    None only reads.
    """

    device: str
    group: str
    mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the driver says of one group on one device afterwards; ``limit_mib`` None: no limit, and ``why``."""

    limit_mib: int | None = None
    why: str = ""


def limits(asked: Sequence[Ask], *, timeout_s: float = TIMEOUT_S) -> list[Told]:
    """Set and read limits, in a process of its own. It waits, ``timeout_s`` at most; answers in the order asked.

    Where nothing is answered, every answer says why.
    """
    if not asked:
        return []
    try:
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        return [Told(why=f"the limits cannot be asked for: {error}")] * len(asked)
    try:
        said, _ = process.communicate(json.dumps([asdict(each) for each in asked]).encode(), timeout=timeout_s)
        told = [_understood(raw) for raw in json.loads(said)]
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel: then it is left alone
            process.wait(REAP_S)
        return [Told(why="the driver's library does not answer")] * len(asked)
    except (ValueError, TypeError, KeyError, AttributeError):
        return [Told(why=f"the driver's library ended the process that asked ({process.returncode})")] * len(asked)
    return told if len(told) == len(asked) else [Told(why="not everything was answered")] * len(asked)


def _understood(raw: Mapping[str, object]) -> Told:
    """One answer: soft and hard must be the same, or it is no limit of ours."""
    if raw["why"]:
        return Told(why=str(raw["why"]))
    soft, hard = raw["soft_mib"], raw["hard_mib"]
    if not isinstance(soft, int) or not isinstance(hard, int):
        return Told(why="the driver tells of no limit")
    if soft != hard:
        return Told(why=f"the driver tells of a soft limit of {soft} MiB and a hard one of {hard} MiB")
    return Told(limit_mib=hard)


@dataclass(frozen=True, slots=True)
class DriverLimit:
    """``limiter`` sets limits on this machine; without it nothing can be released here."""

    limiter: Limiter | None = None
    name: str = "memory limit (driver)"
    memory: Strength = Strength.DRIVER
    compute: Strength = Strength.NONE

    def probe(self, device: DeviceReading, machine: Machine) -> str:
        lacking = ["a MIG instance has none" if device.parent else device.able.get("limits", "it was not probed")]
        major = (machine.driver or "").partition(".")[0]
        if major.isdigit() and int(major) < LIMITS_FROM:
            lacking = [f"it needs a driver from {LIMITS_FROM} on, this is {machine.driver}"]
        lacking += [machine.no_cgroups, "" if machine.root else "it needs root"]
        return "; ".join(filter(None, lacking))

    def render(self, part: Part) -> Mapping[str, str]:
        """What a pod is told; on one machine the limit is set on the leaf instead."""
        return pod_limits(part.memory_mib) if part.is_fraction and not part.is_instance else {}

    def verify(self, part: Part, seen: Seen) -> str:
        if seen.limit_mib is None:
            return seen.no_limit or "no limit was read back"
        if seen.limit_mib != part.memory_mib:
            return f"the limit that was read back is {seen.limit_mib} MiB, not {part.memory_mib} MiB"
        return seen.outside

    def release(self, part: Part) -> None:
        """Take the limit away, and then the group."""
        if self.limiter is not None and part.device is not None:
            self.limiter.release(leaf_of(part), [part.device])
