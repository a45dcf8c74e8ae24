"""The time from a claim within guarantee to the preemptor's command line in the process table, with one victim.

Ann's two jobs are on both devices; Ben, with a training quota of one, submits. Ann's victim ends within 100 ms of its
pause file. The clock starts before the POST is sent, through the hub's proxy, so that the figure is an upper bound.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.benchmarks.figures import Figure, spread
from tests.soak.rest_calls import ask

CLAIMS = 50
WITHIN_S = 30.0
LOOK_EVERY_S = 0.005

VICTIM = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while not os.path.exists(os.environ["GPU_QUOTA_PAUSE_FILE"]):
    time.sleep(0.02)
os._exit(75)
"""
PREEMPTOR = "import time; time.sleep(0.3)"


def figures(hub: TemporaryHub, claims: int = CLAIMS) -> list[Figure]:
    """Fifty claims one after the other; each waits until Ann has both devices again."""
    mark = f"victim-{os.getpid()}"
    for _ in range(2):
        _submit(hub, "ann", [VICTIM, mark])
    took_s = [_one_claim(hub, mark, number) for number in range(claims)]
    timed = "POST sent (through the proxy) until the preemptor's argv is in /proc; the victim ends within 100 ms"
    return spread("claim", took_s, "s", timed, median_at_most=1.0, worst_at_most=2.0)


def _one_claim(hub: TemporaryHub, victims: str, number: int) -> float:
    mark = f"claim-{number}-{os.getpid()}"
    _when(lambda: _alive(victims) == 2, "Ann's jobs on both devices")
    sent = time.monotonic()
    _submit(hub, "ben", [PREEMPTOR, mark])
    seen = _when(lambda: _alive(mark) > 0, f"claim {number}")
    return seen - sent


def _submit(hub: TemporaryHub, user: str, code_and_mark: list[str]) -> None:
    body = {"command": [sys.executable, "-S", "-c", *code_and_mark], "gpu": "1"}
    answer = ask("POST", f"{hub.service_api}/jobs", hub.token_of(user), body)
    assert answer.status == 201, answer.text


def _when(true: Callable[[], bool], what: str) -> float:
    """Wait for a condition; return the instant on the monotonic clock."""
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {WITHIN_S:.0f} s"
        time.sleep(LOOK_EVERY_S)
    return time.monotonic()


def _alive(mark: str) -> int:
    """Processes whose last argument is this mark; zombies and supervisors have none."""
    end = mark.encode() + b"\0"
    return sum(_command_line(name).endswith(end) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
