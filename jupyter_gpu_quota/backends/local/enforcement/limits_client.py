"""Sets and reads the driver's memory limits of cgroups, in a process of its own: a call into the driver may hang."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota.backends.local.sampling.limits_process")
TIMEOUT_S, REAP_S = 30.0, 1.0
NO_ANSWER = "the driver's library does not answer"


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


class LimitsClient:
    """Sets and reads limits, each time in a new process; it is thread-safe.

    While a process that was killed hangs in the kernel no other one is started.
    """

    def __init__(self, *, command: Sequence[str] = COMMAND, reap_s: float = REAP_S) -> None:
        self._command, self._reap_s = tuple(command), reap_s
        self._killed: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def __call__(self, requests: Sequence[LimitRequest], *, timeout_s: float = TIMEOUT_S) -> list[LimitAnswer]:
        """Set and read limits. It waits, ``timeout_s`` at most. Returns an answer for each request, in their order."""
        if not requests:
            return []
        if self._is_stuck():
            return [LimitAnswer(why=NO_ANSWER)] * len(requests)
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            return [LimitAnswer(why=f"the limits cannot be read: {error}")] * len(requests)
        try:
            output, _ = process.communicate(json.dumps([asdict(each) for each in requests]).encode(), timeout=timeout_s)
            answers = [LimitAnswer(**raw) for raw in json.loads(output)]
        except subprocess.TimeoutExpired:
            self._kill(process)
            return [LimitAnswer(why=NO_ANSWER)] * len(requests)
        except (ValueError, TypeError):
            why = f"the driver's library ended the process that called it ({process.returncode})"
            return [LimitAnswer(why=why)] * len(requests)
        return answers if len(answers) == len(requests) else [LimitAnswer(why="answers are missing")] * len(requests)

    def _is_stuck(self) -> bool:
        """Whether a process that was killed still exists."""
        with self._lock:
            self._killed = [each for each in self._killed if each.poll() is None]
            return bool(self._killed)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, and remember it if it still exists then: one that hangs in the kernel cannot be killed."""
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what it did not read
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._reap_s)
        with self._lock:
            self._killed.append(process)


limits = LimitsClient()
"""The client of this process."""
