"""Suspends idle kernels instead of shutting them down, and restores each before its next cell. Opt-in, experimental.

A suspended kernel has its GPU memory in host memory; its GPU calls wait. The driver reports the state of its process,
so that a restarted server finds it again. After a failed or slow step the kernel is shut down and the reason is
reported; no kernel is left with GPU calls that wait for ever.

phase       meaning                                                   next
SUSPENDING  its memory is being moved to the host                     SUSPENDED; removed if it is in use; lost
SUSPENDED   it uses no GPU memory; the slice may be lent              WAKING with its next message
WAKING      it waits for its slice, then its memory is moved back     removed when it runs; SUSPENDED; lost
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from .checkpointing import NOT_READY
from .host_memory import available_mib
from .kernel_watch import started_of
from .open_requests import OpenRequests
from .service import monotonic_ms
from .slice_requests import NoGpuNow, SliceRequester
from .suspension_selftest import HERE, LOCK_MS, PYTHON, SelfTest, self_test

DEVICES = "CUDA_VISIBLE_DEVICES"
S_PER_GIB = 2.0
"""Time of a step for each GiB that it moves, in addition to ``step_s``."""

MEMORY_WAIT_S, POLL_S = 10.0, 0.2
"""Longest wait for memory that a borrower has just released, and the pause between two readings."""

STILL_HELD_MS = 60_000
"""A suspended kernel that still uses GPU memory after this time, by the readings, is shut down."""

RETRY_MS = 30_000
"""The pause before a new attempt to restore a kernel that is in use."""

SPARE_MIB = 64
RESTARTED = "The cell was not run: its kernel ended or was restarted while it waited. Run it again if needed."


class Phase(StrEnum):
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    WAKING = "waking"


class RestoreFailed(Exception):
    """A kernel was not restored; the message has the reason and advice. It is lost, or still suspended."""


@dataclass(slots=True, eq=False)
class SuspendedKernel:
    """A suspended kernel, or one in transition. ``since``: its begin; ``mark``: a value that every use changes.

    ``started``: start of its process, which identifies it with its pid. ``memory_mib``: its GPU memory, 0 if unknown.
    ``task`` is its newest task, and after ``retry_at`` another may begin; ``is_needed``: a message waits for it;
    ``loss``: why it was shut down.
    """

    kernel: str
    pid: int
    since: int
    mark: object
    memory_mib: int
    started: int | None
    phase: Phase = Phase.SUSPENDING
    task: asyncio.Task[Any] | None = None
    is_needed: bool = False
    loss: str = ""
    retry_at: int = 0


@dataclass(slots=True)
class Suspension:
    """The suspended kernels of one server. ``report`` is called with (kernel, state, message) for its user.

    ``wait_at_most_s``: longest wait for the slice; ``step_s``: time limit of a step of the driver. ``test`` is the
    self-test; ``room`` is the available host memory in MiB.
    """

    server: Any
    requests: SliceRequester
    report: Callable[[str, str, str], object]
    wait_at_most_s: float = 120.0
    step_s: float = 60.0
    clock: Callable[[], int] = monotonic_ms
    test: Callable[[], SelfTest] = self_test
    room: Callable[[], int | None] = available_mib
    kernel_requests: OpenRequests = field(default_factory=lambda: OpenRequests(None))
    tested: SelfTest | None = None
    kernels: dict[str, SuspendedKernel] = field(default_factory=dict)
    testing: asyncio.Task[None] | None = None
    wakes: set[asyncio.Task[None]] = field(default_factory=set)

    # --- the self-test --------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Begin the self-test, once, and find kernels that an earlier server suspended."""
        if self.testing is None:
            self.testing = asyncio.create_task(self._run_self_test())

    async def _run_self_test(self) -> None:
        try:
            await self._find_suspended()
            self.tested = await asyncio.to_thread(self.test)
        except Exception as error:
            self.server.log.exception("jupyter_gpu_quota: the self-test of suspending kernels failed")
            self.tested = SelfTest(passed=False, why=f"it failed: {error!r}")
        if self.tested.passed:
            self.server.log.info("jupyter_gpu_quota: kernels can be suspended here (driver %s)", self.tested.driver)
        else:
            self.server.log.warning("jupyter_gpu_quota: no kernel is suspended here: %s", self.tested.why)

    @property
    def state(self) -> str:
        """The state in a report: off, testing, ready or unavailable."""
        if self.testing is None:
            return "off"
        if self.tested is None:
            return "testing"
        return "ready" if self.tested.passed else "unavailable"

    async def _find_suspended(self) -> None:
        """Find kernels that the driver reports as suspended, by an earlier server."""
        for kernel in self.server.kernel_manager.list_kernel_ids():
            pid = self._pid_of(kernel)
            if kernel in self.kernels or pid is None:
                continue
            result = await _run("checkpointing", "state", pid, within_s=self.step_s)
            if result["state"] in ("locked", "checkpointed"):
                self.kernels[kernel] = self._suspending(kernel, pid, 0)
                self.kernels[kernel].phase = Phase.SUSPENDED

    # --- suspending -----------------------------------------------------------------------------------------------
    def suspend(self, kernel: str, memory_mib: int) -> str:
        """Begin to suspend an idle kernel with ``memory_mib`` on the GPU; why not, or "" if it began."""
        known = self.kernels.get(kernel)
        if known is not None:
            late = known.phase is Phase.SUSPENDED and self.clock() - known.since >= STILL_HELD_MS
            return "it is suspended, but by the readings it still uses the GPU" if late else ""
        pid = self._pid_of(kernel)
        if pid is None:
            return "it has no process here"
        if why := self._why_not(pid, memory_mib):
            return why
        suspended = self.kernels[kernel] = self._suspending(kernel, pid, memory_mib)
        suspended.task = asyncio.create_task(self._suspend(suspended))
        return ""

    def _suspending(self, kernel: str, pid: int, memory_mib: int) -> SuspendedKernel:
        return SuspendedKernel(kernel, pid, self.clock(), self._activity_mark(kernel), memory_mib, started_of(pid))

    def _why_not(self, pid: int, needed_mib: int) -> str:
        if self.tested is None or not self.tested.passed:
            return f"the self-test failed: {self.tested.why}" if self.tested else "the self-test is not finished"
        if "," in (device_of(pid) or ""):
            return "it has more than one device"
        room = self.room()
        if room is None:
            return "the available host memory is unknown"
        room -= sum(each.memory_mib for each in self.kernels.values() if each.phase is Phase.SUSPENDING)
        return f"it needs {needed_mib} MiB of host memory, and {room} MiB are available" if needed_mib > room else ""

    async def _suspend(self, suspended: SuspendedKernel) -> None:
        """Suspend a kernel; after any error it is shut down rather than left in transition."""
        try:
            await self._move_to_host(suspended)
        except Exception as error:
            self.server.log.exception("jupyter_gpu_quota: kernel %s could not be suspended", suspended.kernel)
            if suspended.phase is Phase.SUSPENDING and not suspended.loss:
                await self._shut_down(suspended, f"It could not be suspended: {error!r}.")

    async def _move_to_host(self, suspended: SuspendedKernel) -> None:
        read = await _run("held_memory", suspended.pid, within_s=self.step_s)
        driver = read.get("driver")
        if self.tested is None or driver != self.tested.driver:
            is_now = f"but {driver}" if driver else f"or is unknown ({read['why']})"
            await self._shut_down_unless_used(
                suspended, f"The driver is not the one that passed the self-test, {is_now}."
            )
            return
        result = await _run("checkpointing", "suspend", suspended.pid, LOCK_MS, within_s=self._within_s(suspended))
        if not self._is_current(suspended):
            self._forget(suspended)
            return
        if result["state"] == "checkpointed":
            suspended.phase, suspended.since = Phase.SUSPENDED, self.clock()
            self.report(
                suspended.kernel, "suspended", "Its variables are kept. It gets its GPU back with its next cell."
            )
        elif result["state"] == "running" and result["code"] == NOT_READY:
            self._forget(suspended)
            self.report(suspended.kernel, "left_alone", "It still uses its GPU, so it was not suspended.")
        elif result["state"] == "running":
            await self._shut_down_unless_used(suspended, f"It could not be suspended: {result['why']}.")
        else:
            await self._shut_down(suspended, f"It could not be suspended: {result['why'] or result['state']}.")

    async def _shut_down_unless_used(self, suspended: SuspendedKernel, why: str) -> None:
        """Shut down a kernel that still runs, unless it is in use again."""
        if suspended.is_needed or self._is_used(suspended):
            self._forget(suspended)
            self.report(suspended.kernel, "left_alone", f"It is in use again, so it was not suspended. {why}")
        else:
            await self._shut_down(suspended, why)

    # --- waking ---------------------------------------------------------------------------------------------------
    def is_suspended(self, kernel: str) -> bool:
        """Whether a message to this kernel must wait until it is restored."""
        suspended = self.kernels.get(kernel)
        return suspended is not None and self._is_current(suspended)

    async def wake(self, kernel: str) -> None:
        """Restore a kernel, after its slice has no borrower any more. Raises RestoreFailed."""
        suspended = self.kernels.get(kernel) if self.is_suspended(kernel) else None
        while suspended is not None and not suspended.loss and self._is_current(suspended):
            suspended.is_needed = True
            if suspended.phase is Phase.SUSPENDED:
                suspended.phase = Phase.WAKING
                suspended.task = asyncio.create_task(self._restore_with_slice(suspended))
                suspended.task.add_done_callback(self._log_fault)
            assert suspended.task is not None
            await asyncio.shield(suspended.task)
        if suspended is not None and suspended.loss:
            raise RestoreFailed(suspended.loss)
        if suspended is not None and not self._is_same_process(suspended):
            raise RestoreFailed(RESTARTED)

    def _log_fault(self, restoring: asyncio.Task[None]) -> None:
        """Log an unexpected error of a restore: after an interrupt nobody waits for its result."""
        error = None if restoring.cancelled() else restoring.exception()
        if error is not None and not isinstance(error, RestoreFailed):
            self.server.log.error("jupyter_gpu_quota: a kernel could not be restored", exc_info=error)

    async def _restore_with_slice(self, suspended: SuspendedKernel) -> None:
        """Wait for the slice and restore a kernel. Raises RestoreFailed if it stays suspended."""
        try:
            found = await self.requests.request(suspended.kernel, self.wait_at_most_s, starts=False)
            if self._is_current(suspended):
                await self._restore(suspended, found)
        except NoGpuNow as error:
            raise RestoreFailed(f"The cell was not run. {error.why} The kernel stays suspended with its variables; "
                           "run the cell again later.") from error  # fmt: skip
        finally:
            if suspended.phase is Phase.WAKING:
                suspended.phase, suspended.mark = Phase.SUSPENDED, self._activity_mark(suspended.kernel)
                suspended.retry_at = self.clock() + RETRY_MS

    async def _restore(self, suspended: SuspendedKernel, found: Mapping[str, str]) -> None:
        own, now = device_of(suspended.pid), found.get(DEVICES)
        if own and now and own != now:
            raise NoGpuNow(f"Its slice is on another device now ({now}), and it can be restored only on its own "
                           f"({own}): restart it to continue without its variables.")  # fmt: skip
        if why := await self._why_no_memory(suspended, own):
            raise NoGpuNow(why)
        result = await _run("checkpointing", "restore", suspended.pid, within_s=self._within_s(suspended))
        if not self._is_current(suspended):
            return
        if result["state"] == "running":
            self._forget(suspended)
            self.report(suspended.kernel, "restored", "It has its GPU and its variables again.")
        else:
            await self._shut_down(suspended, f"It could not be restored: {result['why'] or result['state']}.")

    async def _why_no_memory(self, suspended: SuspendedKernel, device: str | None) -> str:
        """Why its device lacks the memory; "" if it has it, or if the device is unknown."""
        until = self.clock() + MEMORY_WAIT_S * 1000
        while True:
            result = await _run("held_memory", suspended.pid, within_s=self.step_s)
            devices = result.get("devices") or {}
            mine = devices.get(device) or (next(iter(devices.values())) if len(devices) == 1 else None)
            if mine is None or mine["free_mib"] >= suspended.memory_mib - SPARE_MIB:
                return ""
            if self.clock() >= until:
                return f"Its device has {mine['free_mib']} MiB free, and it needs {suspended.memory_mib} MiB."
            await asyncio.sleep(POLL_S)

    # --- watching -------------------------------------------------------------------------------------------------
    def check_kernels(self) -> None:
        """Remove kernels that are gone, and restore those that another client uses."""
        for suspended in list(self.kernels.values()):
            if not self._is_current(suspended):
                self._forget(suspended)
            elif suspended.phase is Phase.SUSPENDED and self._is_used(suspended):
                suspended.retry_at = self.clock() + RETRY_MS
                self.wakes.add(task := asyncio.create_task(self._restore_used(suspended.kernel)))
                task.add_done_callback(self.wakes.discard)

    def _is_current(self, suspended: SuspendedKernel) -> bool:
        """Whether a kernel is still this suspended process."""
        return self.kernels.get(suspended.kernel) is suspended and self._is_same_process(suspended)

    def _is_same_process(self, suspended: SuspendedKernel) -> bool:
        return self._pid_of(suspended.kernel) == suspended.pid and started_of(suspended.pid) == suspended.started

    def _is_used(self, suspended: SuspendedKernel) -> bool:
        """Whether it got a message; a busy one waits for its GPU, and is restored after ``retry_at``."""
        mark = self._activity_mark(suspended.kernel)
        return mark != suspended.mark or (mark[1] == "busy" and self.clock() >= suspended.retry_at)

    async def _restore_used(self, kernel: str) -> None:
        try:
            await self.wake(kernel)
        except RestoreFailed as error:
            if kernel in self.kernels:
                self.report(kernel, "suspended", str(error))

    def _forget(self, suspended: SuspendedKernel) -> None:
        if self.kernels.get(suspended.kernel) is suspended:
            del self.kernels[suspended.kernel]

    async def _shut_down(self, suspended: SuspendedKernel, why: str) -> None:
        """Shut down a kernel that can be neither suspended nor restored."""
        suspended.loss = f"{why} The kernel was shut down, and its variables are lost. Start it again to continue."
        self._forget(suspended)
        if self._is_same_process(suspended):
            await self.server.kernel_manager.shutdown_kernel(suspended.kernel, now=True)
        self.report(suspended.kernel, "lost", suspended.loss)

    def _within_s(self, suspended: SuspendedKernel) -> float:
        return self.step_s + S_PER_GIB * suspended.memory_mib / 1024

    def _pid_of(self, kernel: str) -> int | None:
        kernels = self.server.kernel_manager
        if kernel not in kernels:
            return None
        pid = getattr(getattr(kernels.get_kernel(kernel), "provisioner", None), "pid", None)
        return pid if isinstance(pid, int) and pid > 0 else None

    def _activity_mark(self, kernel: str) -> tuple[object, object]:
        """A value that changes with each message of a user or a cell."""
        known = self.server.kernel_manager
        return self.kernel_requests.activity(kernel, known.get_kernel(kernel) if kernel in known else None)


def device_of(pid: int) -> str | None:
    """CUDA_VISIBLE_DEVICES of a process; None if it is empty or unknown."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    found = dict(each.split("=", 1) for each in text.split("\0") if "=" in each)
    return found.get(DEVICES) or None


async def _run(program: str, *arguments: object, within_s: float) -> Mapping[str, Any]:
    """The result that one of our programs prints, or the cause of its failure."""
    command = (*PYTHON, str(HERE / f"{program}.py"), *map(str, arguments))
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        running = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=nothing)
    except OSError as error:
        return {"state": None, "why": f"the program that calls the driver cannot be started ({error})", "code": -1}
    try:
        answer, _ = await asyncio.wait_for(running.communicate(), within_s)
        return dict(json.loads(answer))
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            running.kill()
        why = f"the driver did not answer within {within_s:.0f} s"
    except ValueError:
        code = running.returncode or 0
        why = f"the program that calls the driver ended with {'signal' if code < 0 else 'exit status'} {abs(code)}"
    return {"state": None, "why": why, "code": -1}
