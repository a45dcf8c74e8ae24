"""Waiting and measuring on a machine that may pause for seconds: only the time in which the test ran counts.

A test waits for another thread or process. The time in which the machine is frozen, or the test gets no processor, does
not count: the others did not run either.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0
"""The time-out for results that a working machine has at once; a test that passes does not wait for it."""
PAUSE_S, MAX_PAUSE_S = 0.01, 0.05
"""The interval of checks: at first, and after five seconds, so that the checks do not slow down the process."""
REFERENCE_S = 0.03
"""The CPU time of a million squares on the machine for which bounds of CPU time were set."""
TURN_AT_MOST_S = 1.0
WAKE_EVERY_S = 0.01
WAKE_AT_MOST_S = 0.05


def until(true: Callable[[], T | None], within_s: float = PATIENCE_S, what: str | Callable[[], object] = "it") -> T:
    """Call ``true`` until its result is true, and return that.

    :param within_s: seconds; a turn of the loop counts for one at most, however long it took by the clock.
    :param what: the name of what is waited for, or a function that describes the present state, called at a failure.
    :raises AssertionError: when the time is over.
    """
    patience = _Patience(within_s, what)
    while not (found := true()):
        time.sleep(patience.turn())
    return found


async def until_in_loop(
    true: Callable[[], T | None], within_s: float = PATIENCE_S, what: str | Callable[[], object] = "it"
) -> T:
    """As `until`, for what happens in the event loop that runs this."""
    patience = _Patience(within_s, what)
    while not (found := true()):
        await asyncio.sleep(patience.turn())
    return found


def stays(true: Callable[[], object], for_s: float) -> bool:
    """Whether something stays true, looked at again and again during seconds in which this process ran."""
    with Stopwatch() as watch:
        while watch.seconds < for_s:
            if not true():
                return False
            time.sleep(PAUSE_S)
    return True


def cpu_s(reference_s: float) -> float:
    """A bound of CPU time on this machine, for one on the reference machine: longer where this one is slower."""
    begun = time.process_time()
    sum(number * number for number in range(1_000_000))
    return reference_s * max(1.0, (time.process_time() - begun) / REFERENCE_S)


class _Patience:
    """How much of a wait is used up."""

    def __init__(self, within_s: float, what: str | Callable[[], object]) -> None:
        self._within_s, self._what = within_s, what
        self._used_s, self._turned = 0.0, time.monotonic()

    def turn(self) -> float:
        """Another turn was in vain; returns the pause before the next."""
        now = time.monotonic()
        self._used_s += min(now - self._turned, TURN_AT_MOST_S)
        self._turned = now
        if self._used_s >= self._within_s:
            found = self._what if isinstance(self._what, str) else f"it, but {self._what()}"
            raise AssertionError(f"in {self._within_s:g} s in which this process ran there was never {found}")
        return min(max(PAUSE_S, self._used_s / 100), MAX_PAUSE_S)


class Stopwatch:
    """Seconds in which this process ran since a ``with`` began; after its end they do not change.

    For assertions that a call did *not* take long. A thread wakes a hundred times a second and counts the time since,
    but never more than a twentieth of a second: so much is counted for a machine that is frozen for five seconds;
    ``lost_s`` is the rest. It counts too little, and never too much, where one call keeps the interpreter's lock.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, name="stopwatch", daemon=True)

    @property
    def lost_s(self) -> float:
        """Seconds that passed without being counted, such as those in which the machine was frozen."""
        return time.monotonic() - self._begun - self.seconds

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        seen = self._begun
        over = False
        while not over:
            over = self._over.wait(WAKE_EVERY_S)
            now = time.monotonic()
            self.seconds += min(now - seen, WAKE_AT_MOST_S)
            seen = now
