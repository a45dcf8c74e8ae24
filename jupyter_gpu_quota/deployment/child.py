"""One supervised process: start it, watch its heartbeats, restart it after a growing pause, stop it in bounded time."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from ..backends.local.host.processes import dies_with, process
from .pid_file import Process, process_of

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
STEADY_AFTER_S = 30.0
SILENT_AT_MOST_S = 9.0
"""Three of the longest leases. A process that is frozen inside a transaction locks the database for all others."""

FIRST_HEARTBEAT_WITHIN_S = 120.0
"""Imports take seconds, on a busy machine many; heartbeats begin after them. Until then, any activity counts."""


class ChildProcess:
    """Keeps one process running. Times are instants of one monotonic clock, given by the caller.

    ``--heartbeat N`` is appended to ``command``: the descriptor for heartbeats. This object holds the standard input
    of the process open; the process ends when it closes. ``shared`` are descriptors that the process inherits.
    """

    def __init__(self, name: str, command: Sequence[str], shared: Sequence[int] = ()) -> None:
        self.name, self.command, self.shared = name, command, shared
        self.process: subprocess.Popen[bytes] | None = None
        self.heartbeat: int | None = None
        self.identity: Process | None = None
        self._start_at = self._started_at = float("-inf")
        self._patience_ends = float("inf")
        self._starting_until = float("-inf")
        self._activity: tuple[int, int] | None = None
        self._pause_s = FIRST_PAUSE_S

    def tend(self, now: float) -> bool:
        """Do what is due: reap, start, or kill the process. Returns whether a new process was started."""
        if self.process is not None and self.process.poll() is not None:
            self._ended(now)
        if self.process is not None and now >= self._patience_ends and not self._is_starting(now):
            log.error("the %s (process %d) sends no heartbeat and is killed", self.name, self.process.pid)
            self._patience_ends = float("inf")
            self.process.kill()
        if self.process is None and now >= self._start_at:
            return self._start(now)
        return False

    def due(self) -> float:
        """When to call ``tend`` next, unless a heartbeat or a signal comes before."""
        return self._start_at if self.process is None else self._patience_ends

    def hear(self, now: float) -> None:
        """Read the heartbeats that arrived. A closed pipe means that the process ended."""
        received = b""
        if self.heartbeat is not None:
            with contextlib.suppress(BlockingIOError):
                received = os.read(self.heartbeat, 4096)
                if not received:
                    self._close_heartbeat()
        if received:
            self._starting_until = now
            self.forgive(now)

    def forgive(self, now: float) -> None:
        """Restart the timeout of its heartbeats at this instant."""
        if self._patience_ends < float("inf"):
            self._patience_ends = now + SILENT_AT_MOST_S

    def _is_starting(self, now: float) -> bool:
        """Whether it may still reach its first heartbeat: there is time left, and it was active since the last check.

        The second check finds a stopped process. A process on a loaded machine is slow but active.
        """
        assert self.process is not None
        before, self._activity = self._activity, activity_of(self.process.pid)
        if now >= self._starting_until or (self._activity is not None and self._activity == before):
            return False
        self._patience_ends = now + SILENT_AT_MOST_S
        return True

    def _start(self, now: float) -> bool:
        self.heartbeat, beating = os.pipe()
        os.set_blocking(self.heartbeat, False)
        try:
            self.process = subprocess.Popen(
                [*self.command, "--heartbeat", str(beating)],
                stdin=subprocess.PIPE,
                pass_fds=(beating, *self.shared),
                preexec_fn=_ending_with(os.getpid()),  # noqa: PLW1509 - the supervisor has one thread
            )
        except OSError as error:
            log.error("the %s could not be started: %s", self.name, error)
            self._started_at = now
            self._rest(now)
            return False
        finally:
            os.close(beating)
        self.identity = process_of(self.process.pid)
        self._started_at, self._patience_ends = now, now + SILENT_AT_MOST_S
        self._starting_until, self._activity = now + FIRST_HEARTBEAT_WITHIN_S, None
        return True

    def _ended(self, now: float) -> None:
        assert self.process is not None
        log.error("the %s (process %d) ended with status %s", self.name, self.process.pid, self.process.returncode)
        self._close_input()
        self.process = self.identity = None
        self._close_heartbeat()
        self._rest(now)

    def _rest(self, now: float) -> None:
        if now - self._started_at > STEADY_AFTER_S:
            self._pause_s = FIRST_PAUSE_S
        self._start_at = now + self._pause_s
        log.error("the %s is restarted in %.1f s; running jobs are not affected", self.name, self._pause_s)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _close_heartbeat(self) -> None:
        if self.heartbeat is not None:
            os.close(self.heartbeat)
            self.heartbeat = None

    def _close_input(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    # --- the end ------------------------------------------------------------------------------------------------------
    def ask_to_end(self) -> None:
        """Close its standard input and send SIGTERM."""
        self._close_input()
        if self.process is not None:
            self.process.terminate()

    def end_by(self, within_s: float) -> None:
        """Wait at most this long for its end, then send SIGKILL."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            log.error("the %s (process %d) did not stop in time and is killed", self.name, self.process.pid)
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)


def activity_of(pid: int) -> tuple[int, int] | None:
    """Counters that grow while a process is active: page faults and CPU time. None while it waits for a disk."""
    found = process(pid)
    return None if found is None or found.state == "D" else (found.faults, found.cpu_ticks)


def _ending_with(supervisor: int) -> Callable[[], None]:
    """Let the kernel stop the child when the supervisor dies, even before the child reads its standard input."""

    def arrange() -> None:
        if not dies_with(supervisor, signal.SIGTERM):
            os._exit(1)

    return arrange
