"""The parent of a supervisor: it waits, and kills what a supervisor that dies leaves behind.

When a supervisor is killed, the kernel hands everything below it to its guard, whatever session, parent or
environment those processes gave themselves. So nothing has to be recognised, and nothing gets away meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NoReturn

from ..host.processes import ProcessStat, descendants, kill_all, process
from .rank_process import adopt_orphans

KILL_AGAIN_S, KILL_SELDOM_S = 0.05, 2.0


def go_on_below_a_guard() -> ProcessStat | None:
    """Fork: the child goes on, this process stays as its guard and never returns. Returns what the guard is.

    SIGTERM and what terminals send are ignored by both from here on: a guard goes when nothing is left, no sooner.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    guard = process(os.getpid())
    supervisor = os.fork()
    if supervisor:
        _stand_guard(supervisor)
    return guard


def _stand_guard(supervisor: int) -> NoReturn:
    try:
        os.waitpid(supervisor, 0)
        again_s = KILL_AGAIN_S
        while _is_something_left():
            with contextlib.suppress(OSError):  # a job may take its guard's descriptors away; it stays all the same
                kill_all(lambda: descendants(os.getpid()))
            time.sleep(again_s)
            again_s = min(2 * again_s, KILL_SELDOM_S)
    finally:
        os._exit(0)  # a forked copy of the supervisor must never go on as one


def _is_something_left() -> bool:
    """Whether any process below lives, once those that ended are put away."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
