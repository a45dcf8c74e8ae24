"""Starts the reader process and receives its readings. A reader that does not answer in time is killed.

Only ``probe`` waits; every other call returns at once, and its caller calls again at the next tick. While a killed
reader hangs in the kernel no other one is started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .reader import PROBE
from .reading import Reading, reading_of

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota.backends.local.sampling.reader")
READ = b"read\n"

FIRST_TIMEOUT_S, TIMEOUT_S = 30.0, 5.0
"""The timeouts of the first reading of a process, for which the driver may have to wake devices, and of the others."""

RETRY_AFTER_S = 10.0
"""How long after a failed reading the next one starts."""

MAX_ANSWER_BYTES = 8 << 20
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class NoReading:
    """A reading failed, and why."""

    why: str


class Reader:
    """Requests and receives readings; it is thread-safe. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] = COMMAND,
        first_timeout_s: float = FIRST_TIMEOUT_S,
        timeout_s: float = TIMEOUT_S,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        self._clock, self._command = clock, tuple(command)
        self._first_timeout_s, self._timeout_s, self._retry_after_s = first_timeout_s, timeout_s, retry_after_s
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._deadline: float | None = None
        self._retry_at = float("-inf")
        self._newest: tuple[float, Reading] | None = None
        self._untaken: Reading | NoReading | None = None
        self._failure: NoReading | None = None
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The reader process; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def take(self) -> Reading | NoReading | None:
        """The next reading, once. None: the devices are being read."""
        with self._lock:
            self._receive()
            if self._untaken is not None:
                taken, self._untaken = self._untaken, None
                return taken
            return None if self._request(READ) else self._failure

    def latest(self, max_age_s: float) -> Reading | NoReading | None:
        """The newest reading, taken or not, if it is young enough; None: the devices are being read."""
        with self._lock:
            self._receive()
            if self._newest is not None and self._clock() - self._newest[0] <= max_age_s:
                return self._newest[1]
            return None if self._request(READ) else self._failure

    def probe(self) -> Reading | NoReading:
        """A reading with the capabilities of each device. It waits, as long as a first reading may take."""
        with self._lock:
            if not self._request(PROBE):
                return self._failure or NoReading("the devices are being read by another process")
            while self._deadline is not None:
                if self._process is not None and self._process.stdout is not None:
                    select.select([self._process.stdout], [], [], POLL_S)
                self._receive()
            taken, self._untaken = self._untaken, None
            assert taken is not None, "a reading that is complete has succeeded or failed"
            return taken

    def close(self) -> None:
        """End the reader."""
        with self._lock:
            self._kill()
            self._deadline = None

    # --- requests -------------------------------------------------------------------------------------------------
    def _request(self, kind: bytes) -> bool:
        """Start a reading unless one is in progress. Returns whether one is now."""
        now = self._clock()
        if self._deadline is not None or now < self._retry_at or self._is_stuck():
            return self._deadline is not None
        is_first = self._newest is None or self._process is None
        try:
            process = self._process or subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            self._fail(f"the reader of the devices cannot be started: {error}")
            return False
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._deadline = now + (self._first_timeout_s if is_first else self._timeout_s)
        self._process, self._received = process, b""
        try:
            process.stdin.write(kind)
        except OSError:
            self._fail("the reader of the devices has ended")
        return self._deadline is not None

    def _is_stuck(self) -> bool:
        """Whether a reader that was killed still exists."""
        if self._killed is not None and self._killed.poll() is not None:
            self._killed = None
        return self._killed is not None

    # --- answers --------------------------------------------------------------------------------------------------
    def _receive(self) -> None:
        self._is_stuck()
        if self._deadline is None:
            return
        assert self._process is not None and self._process.stdout is not None
        ended = False
        with contextlib.suppress(BlockingIOError):
            while not ended and len(self._received) <= MAX_ANSWER_BYTES:
                part = os.read(self._process.stdout.fileno(), 1 << 20)
                self._received += part
                ended = not part
        if len(self._received) > MAX_ANSWER_BYTES:
            self._fail("the reader of the devices answers without end")
        elif self._received.endswith(b"\n"):
            self._accept(self._received)
        elif ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
            code = self._process.returncode
            how = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
            self._fail(f"the reader of the devices ended in the middle of a reading ({how})")
        elif self._clock() >= self._deadline:
            self._fail("the driver's library does not answer")

    def _accept(self, line: bytes) -> None:
        try:
            reading = reading_of(line)
        except ValueError:
            self._fail("the answer of the reader of the devices is invalid")
            return
        if reading.failure is not None:
            self._fail(reading.failure)
            return
        if self._failure is not None:
            log.info("the devices can be read again")
        self._newest, self._untaken, self._failure = (self._clock(), reading), reading, None
        self._deadline, self._received = None, b""

    def _fail(self, why: str) -> None:
        if self._failure is None or self._failure.why != why:  # logged once, not at every reading
            log.warning("the devices cannot be read, so their use is unknown: %s", why)
        self._failure = self._untaken = NoReading(why)
        self._newest = self._deadline = None
        self._retry_at = self._clock() + self._retry_after_s
        self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        self._killed = process if process.poll() is None else None
