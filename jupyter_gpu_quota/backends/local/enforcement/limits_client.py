"""Sets and reads the driver's memory limits of cgroups, in a process of its own: a call into the driver may hang."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota.backends.local.sampling.limits_process")
TIMEOUT_S, REAP_S = 30.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRequest:
    """Read the limit of one cgroup on one device, after setting it to ``mib`` (0: no limit; None: only read)."""

    device: str
    group: str
    mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitAnswer:
    """The limit that was read back; ``limit_mib`` None: there is none, and ``why``.

    ``is_known``: the driver gave the answer, or has no limits at all. Otherwise there may be a limit that was not read.
    """

    limit_mib: int | None = None
    why: str = ""
    is_known: bool = False


def limits(requests: Sequence[LimitRequest], *, timeout_s: float = TIMEOUT_S) -> list[LimitAnswer]:
    """Set and read limits. It waits, ``timeout_s`` at most. Returns one answer for each request, in the same order."""
    if not requests:
        return []
    try:
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        return [LimitAnswer(why=f"the limits cannot be read: {error}")] * len(requests)
    try:
        output, _ = process.communicate(json.dumps([asdict(each) for each in requests]).encode(), timeout=timeout_s)
        answers = [LimitAnswer(**raw) for raw in json.loads(output)]
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel cannot be killed
            process.wait(REAP_S)
        return [LimitAnswer(why="the driver's library does not answer")] * len(requests)
    except (ValueError, TypeError):
        why = f"the driver's library ended the process that called it ({process.returncode})"
        return [LimitAnswer(why=why)] * len(requests)
    return answers if len(answers) == len(requests) else [LimitAnswer(why="answers are missing")] * len(requests)
