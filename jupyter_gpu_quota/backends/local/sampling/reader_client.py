"""The reader process as this process sees it: asked for a reading, listened to, given up when it does not answer.

Nothing here waits, but ``probe``: whoever asks looks again at the next tick. A reader that hangs is killed; one that
cannot be killed, because it hangs in the kernel, is left alone, and no other is started beside it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .reader import PROBE
from .reading import Reading, reading_of

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota.backends.local.sampling.reader")
READ = b"read\n"

FIRST_S, TURN_S = 30.0, 5.0
"""How long a reading may take: the first of a new reader, for which the driver may have to wake devices; the others."""

AGAIN_S = 10.0
"""How long after a reading that failed the next is tried."""

MOST_BYTES = 8 << 20
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Silence:
    """No reading, and why."""

    why: str


class Reader:
    """Asks for readings. ``clock`` is steady, in seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] = COMMAND,
        first_s: float = FIRST_S,
        turn_s: float = TURN_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self._clock, self._command = clock, tuple(command)
        self._first_s, self._turn_s, self._again_s = first_s, turn_s, again_s
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._until: float | None = None
        self._again_at = float("-inf")
        self._newest: tuple[float, Reading] | None = None
        self._taken = True
        self._failed: Silence | None = None
        self.silence: Silence | None = None

    @property
    def pid(self) -> int | None:
        """The reader process; None while there is none."""
        return None if self._process is None else self._process.pid

    def take(self) -> Reading | Silence | None:
        """The next reading, once. None: the devices are being read, look again at the next tick."""
        self._listen()
        if not self._taken and self._newest is not None:
            self._taken = True
            return self._newest[1]
        if self._until is not None:
            return None
        if self._failed is not None:
            failed, self._failed = self._failed, None
            return failed
        return None if self._ask(READ) else self.silence

    def latest(self, max_age_s: float) -> Reading | Silence | None:
        """The newest reading, whoever took it, if it is young enough; None: the devices are being read."""
        self._listen()
        if self._newest is not None and self._clock() - self._newest[0] <= max_age_s:
            return self._newest[1]
        if self._until is not None:
            return None
        return None if self._ask(READ) else self.silence

    def probe(self) -> Reading | Silence:
        """A reading with what each device is able to. It waits for it, as long as a first reading may take."""
        if not self._ask(PROBE):
            return self.silence or Silence("the devices are being read by another")
        while self._until is not None:
            if self._process is not None and self._process.stdout is not None:
                select.select([self._process.stdout], [], [], LOOK_S)
            self._listen()
        if not self._taken and self._newest is not None:
            self._taken = True
            return self._newest[1]
        assert self._failed is not None, "what is not under way any more was answered or has failed"
        return self._failed

    def close(self) -> None:
        """End the reader."""
        self._give_up()

    # --- asking ---------------------------------------------------------------------------------------------------
    def _ask(self, what: bytes) -> bool:
        """Whether a reading is under way now."""
        now = self._clock()
        if self._until is not None or now < self._again_at or self._is_stuck():
            return self._until is not None
        process = self._process or self._begin()
        if process is None:
            return False
        self._until = now + (self._turn_s if self._newest is not None and self._process else self._first_s)
        self._process, self._heard = process, b""
        try:
            assert process.stdin is not None
            process.stdin.write(what)
        except OSError:
            self._fail("the reader of the devices has ended")
        return self._until is not None

    def _begin(self) -> subprocess.Popen[bytes] | None:
        try:
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            self._fail(f"the reader of the devices cannot be started: {error}")
            return None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def _is_stuck(self) -> bool:
        """Whether a reader that was killed is still there."""
        if self._given_up is not None and self._given_up.poll() is not None:
            self._given_up = None
        return self._given_up is not None

    # --- listening ------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        self._is_stuck()
        if self._until is None:
            return
        assert self._process is not None and self._process.stdout is not None
        ended = False
        while not ended and len(self._heard) <= MOST_BYTES:
            if (part := _received(self._process.stdout.fileno())) is None:
                break
            self._heard += part
            ended = not part
        if len(self._heard) > MOST_BYTES:
            self._fail("the reader of the devices answers without end")
        elif self._heard.endswith(b"\n"):
            self._understand(self._heard)
        elif ended:
            self._fail(f"the reader of the devices ended in the middle of a reading ({self._how_it_ended()})")
        elif self._clock() >= self._until:
            self._fail("the driver's library does not answer")

    def _understand(self, line: bytes) -> None:
        try:
            reading = reading_of(line)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self._fail("the reader of the devices answers what cannot be understood")
            return
        if reading.trouble is not None:
            self._fail(reading.trouble)
            return
        if self.silence is not None:
            log.info("the devices can be read again")
        self._newest, self._taken, self._until = (self._clock(), reading), False, None
        self.silence = self._failed = None

    def _fail(self, why: str) -> None:
        if self.silence is None or self.silence.why != why:  # said once, not at every reading
            log.warning("the devices cannot be read, so their use is unknown: %s", why)
        self.silence = self._failed = Silence(why)
        self._newest, self._taken, self._until = None, True, None
        self._again_at = self._clock() + self._again_s
        self._give_up()

    def _how_it_ended(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LOOK_S)
        code = self._process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"

    def _give_up(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
        self._given_up = process if process.poll() is None else None


def _received(descriptor: int) -> bytes | None:
    """What can be read at once; empty at the end, None where nothing came yet."""
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return None
