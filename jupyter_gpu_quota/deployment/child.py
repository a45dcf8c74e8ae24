"""One supervised process: start it, check its heartbeats, restart it after a growing delay, stop it in bounded time."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from ..backends.local.host.processes import die_with_parent, process
from .pid_file import Process, process_of

log = logging.getLogger(__name__)

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
STABLE_AFTER_S = 30.0
HEARTBEAT_TIMEOUT_S = 9.0
"""Three times the longest lease. A process that is frozen inside a transaction blocks the database for all others."""

FIRST_HEARTBEAT_TIMEOUT_S = 120.0
"""Heartbeats begin after the imports, which take many seconds on a busy machine. Until then, any activity counts."""


class ChildProcess:
    """Keeps one process running. Times are instants of the caller's monotonic clock.

    ``--heartbeat N`` is appended to ``command``: the descriptor for heartbeats. This object holds the standard input
    of the process open; the process ends when it closes. ``shared`` are descriptors that the process inherits.
    """

    def __init__(self, name: str, command: Sequence[str], shared: Sequence[int] = ()) -> None:
        self.name, self.command, self.shared = name, command, shared
        self.process: subprocess.Popen[bytes] | None = None
        self.heartbeat: int | None = None
        self.identity: Process | None = None
        self._start_at = self._started_at = float("-inf")
        self._timeout_at = float("inf")
        self._starts_until = float("-inf")
        self._activity: tuple[int, int] | None = None
        self._pause_s = MIN_PAUSE_S

    def update(self, now: float) -> bool:
        """Reap, start or kill the process, where that is due. Returns whether a new process was started."""
        if self.process is not None and self.process.poll() is not None:
            self._note_exit(now)
        if self.process is not None and now >= self._timeout_at and not self._is_starting(now):
            log.error("the %s (process %d) sends no heartbeat and is killed", self.name, self.process.pid)
            self._timeout_at = float("inf")
            self.process.kill()
        if self.process is None and now >= self._start_at:
            return self._start(now)
        return False

    def due_at(self) -> float:
        """When to call ``update`` next, unless a heartbeat or a signal arrives before."""
        return self._start_at if self.process is None else self._timeout_at

    def read_heartbeats(self, now: float) -> None:
        """Read the heartbeats that arrived. A closed pipe means that the process ended."""
        received = b""
        if self.heartbeat is not None:
            with contextlib.suppress(BlockingIOError):
                received = os.read(self.heartbeat, 4096)
                if not received:
                    self._close_heartbeat()
        if received:
            self._starts_until = now
            self.restart_timeout(now)

    def restart_timeout(self, now: float) -> None:
        """Restart the heartbeat timeout at this instant."""
        if self._timeout_at < float("inf"):
            self._timeout_at = now + HEARTBEAT_TIMEOUT_S

    def _is_starting(self, now: float) -> bool:
        """Whether the process is still starting: its time is not up, and it was active since the last check.

        A stopped process is not active. A process on a loaded machine is slow but active.
        """
        assert self.process is not None
        before, self._activity = self._activity, activity_of(self.process.pid)
        if now >= self._starts_until or (self._activity is not None and self._activity == before):
            return False
        self._timeout_at = now + HEARTBEAT_TIMEOUT_S
        return True

    def _start(self, now: float) -> bool:
        self.heartbeat, beating = os.pipe()
        os.set_blocking(self.heartbeat, False)
        try:
            self.process = subprocess.Popen(
                [*self.command, "--heartbeat", str(beating)],
                stdin=subprocess.PIPE,
                pass_fds=(beating, *self.shared),
                preexec_fn=_stop_with_supervisor(os.getpid()),  # noqa: PLW1509 - the supervisor has one thread
            )
        except OSError as error:
            log.error("the %s could not be started: %s", self.name, error)
            self._started_at = now
            self._schedule_restart(now)
            return False
        finally:
            os.close(beating)
        self.identity = process_of(self.process.pid)
        self._started_at, self._timeout_at = now, now + HEARTBEAT_TIMEOUT_S
        self._starts_until, self._activity = now + FIRST_HEARTBEAT_TIMEOUT_S, None
        return True

    def _note_exit(self, now: float) -> None:
        assert self.process is not None
        log.error("the %s (process %d) ended with status %s", self.name, self.process.pid, self.process.returncode)
        self._close_input()
        self.process = self.identity = None
        self._close_heartbeat()
        self._schedule_restart(now)

    def _schedule_restart(self, now: float) -> None:
        if now - self._started_at > STABLE_AFTER_S:
            self._pause_s = MIN_PAUSE_S
        self._start_at = now + self._pause_s
        log.error("the %s is restarted in %.1f s; running jobs are not affected", self.name, self._pause_s)
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)

    def _close_heartbeat(self) -> None:
        if self.heartbeat is not None:
            os.close(self.heartbeat)
            self.heartbeat = None

    def _close_input(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    # --- the end ------------------------------------------------------------------------------------------------------
    def request_stop(self) -> None:
        """Close its standard input and send SIGTERM."""
        self._close_input()
        if self.process is not None:
            self.process.terminate()

    def stop_within(self, timeout_s: float) -> None:
        """Wait until the process ended, ``timeout_s`` at most, then send SIGKILL."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            log.error("the %s (process %d) did not stop in time and is killed", self.name, self.process.pid)
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)


def activity_of(pid: int) -> tuple[int, int] | None:
    """Counters that grow while a process is active: page faults and CPU time. None while it waits for a disk."""
    found = process(pid)
    return None if found is None or found.state == "D" else (found.faults, found.cpu_ticks)


def _stop_with_supervisor(supervisor: int) -> Callable[[], None]:
    """Have the kernel stop the child when the supervisor dies, even before the child reads its standard input."""

    def arrange() -> None:
        if not die_with_parent(supervisor, signal.SIGTERM):
            os._exit(1)

    return arrange
