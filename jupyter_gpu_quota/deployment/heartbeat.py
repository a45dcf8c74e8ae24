"""The heart of a kept process: while its main loop turns, one byte a second goes to whoever keeps it.

A process that is frozen inside a transaction keeps the database locked for everybody, so that nothing in the database
can tell of it. A pipe can: the keeper hears that the beats have stopped, and ends it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

EVERY_S = 1.0
LONGEST_TURN_S = 60.0
"""One turn may take long (many starts at once, a driver that wakes up); after this the loop hangs, and beats stop."""


class Heart:
    """Beats in a thread of its own, so that one long turn is no death; ``turned`` is called at every turn.

    Takes the writing end of a pipe; None is a heart that nobody listens to.
    """

    def __init__(self, fd: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd, self._clock = fd, clock
        self._turned_at = clock()
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)
            threading.Thread(target=self._beat_on, name="heart", daemon=True).start()

    def turned(self) -> None:
        """The main loop has come round."""
        self._turned_at = self._clock()

    def _beat_on(self) -> None:
        while True:
            self.beat()
            time.sleep(EVERY_S)

    def beat(self) -> bool:
        """One beat, unless the loop hangs; returns whether it was given. Nobody listening is no fault."""
        if self._fd is None or self._clock() - self._turned_at > LONGEST_TURN_S:
            return False
        with contextlib.suppress(OSError):
            os.write(self._fd, b".")
        return True
