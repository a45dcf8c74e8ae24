"""Supervisors are started before they are needed: one waits, ready, for an order on its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from .rank_process import RankOrder

SCRIPT = Path(__file__).with_name("supervise.py")
BEGIN_TIMEOUT_S = 30.0

CLEAN_ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8"}
"""All that a supervisor is told by variables: under one account a job can read its supervisor's."""


class SpareSupervisor:
    """One supervisor that has no order yet. It goes when its standard input is closed: with us, however we end."""

    def __init__(self) -> None:
        self._lock, self._open = threading.Lock(), True
        self._waiting: subprocess.Popen[bytes] | None = None

    def begin(self, order: RankOrder) -> None:
        """Hand an order to a supervisor; returns when that is on its own. Raises OSError if none could be begun.

        One that waited may have died meanwhile, so a fresh one is asked after it. Two that got the same order are told
        apart by the lock of its rank.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None and _hand_over(waiting, order) == 0:
            return
        if status := _hand_over(_start(), order):
            raise OSError(f"the supervisor of job {order['job']} ended with {status} before it began")

    def refill(self) -> None:
        """Start the one that waits for the next order, if none does."""
        with self._lock:
            if self._open and self._waiting is None:
                self._waiting = _start()

    def close(self) -> None:
        """Let the waiting one go."""
        with self._lock:
            waiting, self._waiting, self._open = self._waiting, None, False
        if waiting is not None:
            waiting.communicate(timeout=BEGIN_TIMEOUT_S)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=CLEAN_ENVIRONMENT,
        start_new_session=True,
    )


def _hand_over(supervisor: subprocess.Popen[bytes], order: RankOrder) -> int:
    """Give a supervisor its order; returns 0 once it has detached itself, else how it ended."""
    with supervisor:
        try:
            supervisor.communicate(json.dumps(order).encode(), timeout=BEGIN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            raise
    return supervisor.returncode
