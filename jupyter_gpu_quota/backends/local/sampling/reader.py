"""The reader process: it reads all devices once for each line on its standard input.

It is a separate process because a call into the driver's library may hang or end the process, and because a library
that no longer fits the driver cannot be unloaded.
Run as ``python -m jupyter_gpu_quota.backends.local.sampling.reader``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from ..host.processes import die_with_parent
from .reading import Reading

if TYPE_CHECKING:
    from .nvml_session import Session

PROBE = b"probe\n"


class Readings:
    """Takes readings from one NVML session, and from a new one after the driver was loaded again."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def take(self, *, probing: bool = False) -> Reading:
        """One reading; one without devices has the reason."""
        try:
            from .nvml_session import NoGpu, Session, Unreadable, driver_loaded
        except ImportError as error:
            return Reading(devices=(), absent=f"nvidia-ml-py is not installed ({error})")
        try:
            if self._session is not None and self._session.loaded != driver_loaded():
                session, self._session = self._session, None
                with contextlib.suppress(Exception):  # the driver of that session is no longer loaded
                    session.close()
            self._session = self._session or Session()
            return self._session.read(probing=probing)
        except NoGpu as error:
            return Reading(devices=(), absent=str(error))
        except Unreadable as error:
            return Reading(devices=(), failure=str(error))


def main() -> int:
    """Answer until the input ends, or a reading fails."""
    end_with_parent(os.getppid())
    readings = Readings()
    while line := sys.stdin.buffer.readline():
        reading = readings.take(probing=line == PROBE)
        sys.stdout.buffer.write(reading.to_line())
        sys.stdout.buffer.flush()
        if reading.failure is not None:
            return 1
    return 0


def end_with_parent(parent: int) -> None:
    """End when the parent process ends, even while a call hangs."""
    if not die_with_parent(parent, signal.SIGKILL):
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
