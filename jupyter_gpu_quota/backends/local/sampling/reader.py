"""The reader process: reads all devices whenever it is asked to, by one line on its standard input.

It is a process of its own because a call into the driver's library may hang for ever, or end the process; and because
a library that no longer fits the driver can only be left. Run as
``python -m jupyter_gpu_quota.backends.local.sampling.reader``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from .reading import Reading

if TYPE_CHECKING:
    from .nvml_session import Session

PROBE = b"probe\n"
PR_SET_PDEATHSIG = 1


class Readings:
    """Readings one after the other, from one session for as long as the driver stays the same."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def take(self, *, probing: bool = False) -> Reading:
        """One reading; one without devices says why."""
        try:
            from .nvml_session import NoGpu, Session, Unreadable, driver_loaded
        except ImportError as error:
            return Reading(absent=f"nvidia-ml-py is not installed ({error})")
        try:
            if self._session is not None and self._session.loaded != driver_loaded():
                self._leave()
            self._session = self._session or Session()
            return self._session.read(probing=probing)
        except NoGpu as error:
            return Reading(absent=str(error))
        except Unreadable as error:
            return Reading(trouble=str(error))

    def _leave(self) -> None:
        session, self._session = self._session, None
        with contextlib.suppress(Exception):  # NVML of a driver that is gone; the next session begins anew anyway
            assert session is not None
            session.close()


def main() -> int:
    """Answer until the input ends. After a reading that had to be given up it ends: the next one starts anew."""
    end_with_parent(os.getppid())
    readings = Readings()
    while line := sys.stdin.buffer.readline():
        reading = readings.take(probing=line == PROBE)
        sys.stdout.buffer.write(reading.to_line())
        sys.stdout.buffer.flush()
        if reading.trouble is not None:
            return 1
    return 0


def end_with_parent(parent: int) -> None:
    """End when the process that asks ends, even while a call hangs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
