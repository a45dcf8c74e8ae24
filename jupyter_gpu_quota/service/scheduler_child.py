"""The scheduler's process as the web door's child: started, watched, started again, ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import sys
from collections.abc import Sequence

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "jupyter_gpu_quota", "controller")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
STEADY_AFTER_S = 30.0
END_WITHIN_S = 5.0
PR_SET_PDEATHSIG = 1


class SchedulerChild:
    """Keeps one scheduler running. It holds the child's standard input open: where that closes, the child ends."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def keep(self) -> None:
        """Run until :meth:`end`; one that dies is started again, after a pause that grows while it keeps dying."""
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while not self._ending:
            started = loop.time()
            await self._run_once()
            if self._told_to_end():
                return
            pause_s = FIRST_PAUSE_S if loop.time() - started > STEADY_AFTER_S else min(LONGEST_PAUSE_S, pause_s * 2)
            log.error("the scheduler ended; it is started again in %.1f s, jobs run on", pause_s)
            await asyncio.sleep(pause_s)

    def _told_to_end(self) -> bool:
        return self._ending

    async def _run_once(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, preexec_fn=_end_with_parent
            )
        except OSError as error:
            log.error("the scheduler cannot be started: %s", error)
            return
        status = await self._process.wait()
        log.info("the scheduler (process %d) ended with status %d", self._process.pid, status)

    async def end(self) -> None:
        """End the child: its input closes, then SIGTERM, then SIGKILL after a bound."""
        self._ending = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _end_with_parent() -> None:
    """A second string: the kernel ends the child where the door dies between two of its lines."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
