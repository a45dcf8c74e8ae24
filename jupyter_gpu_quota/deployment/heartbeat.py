"""The heartbeat of a supervised process: while its main loop runs, it sends one byte a second to its supervisor.

A process that is frozen inside a transaction keeps the database locked, so the database cannot report it. A pipe can:
the supervisor sees that the heartbeats have stopped, and kills the process. A file that is touched with each heartbeat
is for a liveness probe, which sees a supervisor that hangs too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

EVERY_S = 1.0
MAX_TURN_S = 60.0
"""After this time the main loop counts as hung, and the heartbeats stop.

A turn may take long: many jobs start at once, or a driver initialises.
"""


class Heartbeat:
    """Sends heartbeats from its own thread, so a long turn of the main loop does not stop them.

    The main loop calls ``note_turn`` at every turn. Takes the writing end of a pipe; None: without a supervisor.
    """

    def __init__(
        self, fd: int | None, clock: Callable[[], float] = time.monotonic, *, file: Path | None = None
    ) -> None:
        self._fd, self._clock, self._file = fd, clock, file
        self._turn_at = clock()
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)
            threading.Thread(target=self._send_repeatedly, name="heartbeat", daemon=True).start()

    def note_turn(self) -> None:
        """Note that the main loop began another turn."""
        self._turn_at = self._clock()

    def _send_repeatedly(self) -> None:
        while True:
            self.send()
            time.sleep(EVERY_S)

    def send(self) -> bool:
        """Send one heartbeat, unless the main loop hangs; returns whether it was sent. A closed pipe is ignored."""
        if self._fd is None or self._clock() - self._turn_at > MAX_TURN_S:
            return False
        with contextlib.suppress(OSError):
            os.write(self._fd, b".")
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.touch(mode=0o600)
        return True
