"""The guard: the parent of a job supervisor. It kills the remaining processes of a supervisor that was killed.

When a supervisor is killed, the kernel makes its guard the parent of all processes below it, in any session and with
any environment. So the guard finds all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NoReturn

from ..host.processes import ProcessStat, adopt_orphans, descendants, kill_all, process

KILL_AGAIN_S, MAX_KILL_INTERVAL_S = 0.05, 2.0


def fork_below_guard() -> ProcessStat | None:
    """Fork: the child continues and gets its guard as a process; this process stays as the guard, and never returns.

    Both ignore SIGTERM and the signals of terminals: a guard ends when no process below it is left.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    guard = process(os.getpid())
    if supervisor := os.fork():
        _guard(supervisor)
    return guard


def _guard(supervisor: int) -> NoReturn:
    try:
        os.waitpid(supervisor, 0)
        again_s = KILL_AGAIN_S
        while _has_living_children():
            with contextlib.suppress(OSError):  # a job may close its guard's descriptors; the guard continues
                kill_all(lambda: descendants(os.getpid()))
            time.sleep(again_s)
            again_s = min(2 * again_s, MAX_KILL_INTERVAL_S)
    finally:
        os._exit(0)  # this fork must never run the code of a supervisor


def _has_living_children() -> bool:
    """Reap the children that ended; returns whether others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
