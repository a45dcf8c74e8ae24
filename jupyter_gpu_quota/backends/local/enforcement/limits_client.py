"""Setting and reading the driver's limits on control groups, by a process of its own (:mod:`..sampling.limits`).

A call into the driver may hang.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota.backends.local.sampling.limits_process")
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
