"""One kept process: started, listened to, started again after a growing pause, ended within a bound."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from .pid_file import Process, marks_of, process_of

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
STEADY_AFTER_S = 30.0
SILENT_AT_MOST_S = 9.0
"""Three leases of the longest kind. A process that is frozen inside a transaction locks the database for everybody."""

FIRST_BEAT_WITHIN_S = 120.0
"""Importing takes seconds, on a busy machine many; the heart beats from there on. Until then any movement counts."""

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Kept:
    """Keeps one process running. Times are instants of one monotonic clock, given by the caller.

    ``command`` gets ``--heart N`` behind it: the descriptor it beats on. It holds the process's standard input open:
    where that closes, the process ends. ``shared`` are descriptors that it inherits.
    """

    def __init__(self, name: str, command: Sequence[str], shared: Sequence[int] = ()) -> None:
        self.name, self.command, self.shared = name, command, shared
        self.process: subprocess.Popen[bytes] | None = None
        self.heart: int | None = None
        self.identity: Process | None = None
        self._start_at = self._started_at = float("-inf")
        self._patience_ends = float("inf")
        self._starting_until = float("-inf")
        self._marks: tuple[str, ...] | None = None
        self._pause_s = FIRST_PAUSE_S

    def tend(self, now: float) -> bool:
        """Do what is due: reap it, start it, end it where it is silent. Returns whether another process runs now."""
        if self.process is not None and self.process.poll() is not None:
            self._ended(now)
        if self.process is not None and now >= self._patience_ends and not self._is_starting(now):
            log.error("the %s, process %d, does not move any more; it is killed", self.name, self.process.pid)
            self._patience_ends = float("inf")
            self.process.kill()
        if self.process is None and now >= self._start_at:
            return self._start(now)
        return False

    def due(self) -> float:
        """When to tend it next, if nothing is heard before."""
        return self._start_at if self.process is None else self._patience_ends

    def hear(self, now: float) -> None:
        """Take the beats that came; the heart's end is the process's."""
        beats = b""
        if self.heart is not None:
            with contextlib.suppress(BlockingIOError):
                beats = os.read(self.heart, 4096)
                if not beats:
                    self._let_go()
        if beats:
            self._starting_until = now
            self.forgive(now)

    def forgive(self, now: float) -> None:
        """Count its silence from now on."""
        if self._patience_ends < float("inf"):
            self._patience_ends = now + SILENT_AT_MOST_S

    def _is_starting(self, now: float) -> bool:
        """Whether it is on its way to its first beat: there is time left, and it did something since the last look.

        So one that is stopped is found at the second look; one that gets little of a loaded machine still gets some.
        """
        assert self.process is not None
        before, self._marks = self._marks, marks_of(self.process.pid)
        if now >= self._starting_until or (self._marks is not None and self._marks == before):
            return False
        self._patience_ends = now + SILENT_AT_MOST_S
        return True

    def _start(self, now: float) -> bool:
        self.heart, beating = os.pipe()
        os.set_blocking(self.heart, False)
        try:
            self.process = subprocess.Popen(
                [*self.command, "--heart", str(beating)],
                stdin=subprocess.PIPE,
                pass_fds=(beating, *self.shared),
                preexec_fn=_ending_with(os.getpid()),  # noqa: PLW1509 - the keeper has one thread
            )
        except OSError as error:
            log.error("the %s cannot be started: %s", self.name, error)
            self._started_at = now
            self._rest(now)
            return False
        finally:
            os.close(beating)
        self.identity = process_of(self.process.pid)
        self._started_at, self._patience_ends = now, now + SILENT_AT_MOST_S
        self._starting_until, self._marks = now + FIRST_BEAT_WITHIN_S, None
        return True

    def _ended(self, now: float) -> None:
        assert self.process is not None
        log.error("the %s, process %d, ended with status %s", self.name, self.process.pid, self.process.returncode)
        self._close_input()
        self.process = self.identity = None
        self._let_go()
        self._rest(now)

    def _rest(self, now: float) -> None:
        if now - self._started_at > STEADY_AFTER_S:
            self._pause_s = FIRST_PAUSE_S
        self._start_at = now + self._pause_s
        log.error("the %s is started again in %.1f s; jobs run on", self.name, self._pause_s)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _let_go(self) -> None:
        if self.heart is not None:
            os.close(self.heart)
            self.heart = None

    def _close_input(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    # --- the end ------------------------------------------------------------------------------------------------------
    def ask_to_end(self) -> None:
        """Its input closes, and it gets SIGTERM."""
        self._close_input()
        if self.process is not None:
            self.process.terminate()

    def end_by(self, within_s: float) -> None:
        """Wait for its end for so long, then SIGKILL."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            log.error("the %s, process %d, does not end by itself; it is killed", self.name, self.process.pid)
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)


def _ending_with(keeper: int) -> Callable[[], None]:
    """A second string beside the closed input: the kernel ends the child where the keeper dies between two lines."""

    def arrange() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != keeper:  # it died before we asked
            os._exit(1)

    return arrange
