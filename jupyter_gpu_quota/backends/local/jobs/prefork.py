"""A job supervisor that is started before it is needed, and waits for its order on its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from .rank_process import RankOrder

SCRIPT = Path(__file__).with_name("supervise.py")
START_TIMEOUT_S = 30.0

CLEAN_ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8"}
"""The variables of a supervisor: only these, because a job under the same account can read them."""


class PreforkedSupervisor:
    """One supervisor without an order. It ends when its standard input is closed, and so with this process."""

    def __init__(self) -> None:
        self._lock, self._open = threading.Lock(), True
        self._waiting: subprocess.Popen[bytes] | None = None

    def start(self, order: RankOrder) -> None:
        """Send an order to a supervisor; returns once that is detached. Raises OSError if none could start.

        The waiting supervisor may have died; then a new one gets the order. If both get it, only the one that takes the
        rank's lock acts on it.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None and _hand_over(waiting, order) == 0:
            return
        if status := _hand_over(_prefork(), order):
            raise OSError(f"the supervisor of job {order['job']} ended with {status} before it started")

    def refill(self) -> None:
        """Start the supervisor for the next order, if none waits."""
        with self._lock:
            if self._open and self._waiting is None:
                self._waiting = _prefork()

    def close(self) -> None:
        """End the supervisor that waits."""
        with self._lock:
            waiting, self._waiting, self._open = self._waiting, None, False
        if waiting is not None:
            waiting.communicate(timeout=START_TIMEOUT_S)


def _prefork() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=CLEAN_ENVIRONMENT, start_new_session=True,
    )  # fmt: skip


def _hand_over(supervisor: subprocess.Popen[bytes], order: RankOrder) -> int:
    """Send a supervisor its order. Returns 0 once it is detached, else its exit status."""
    with supervisor:
        try:
            supervisor.communicate(json.dumps(order).encode(), timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            raise
    return supervisor.returncode
