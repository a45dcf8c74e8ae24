"""Suspends idle kernels instead of shutting them down, and restores each before its next cell. Opt-in, experimental.

A suspended kernel lives on, with its GPU memory held by the driver in host memory; its GPU calls wait. It is known by
the driver's own word for its process, so that a server that starts anew finds it again. A step that fails or takes too
long ends with the kernel shut down and its person told why: a kernel is never left with calls that wait for ever.

phase       meaning                                                   goes on to
SUSPENDING  its memory is being moved into the host's                 SUSPENDED; forgotten where it is in use; lost
SUSPENDED   nothing of it is on the GPU; the slice may be lent        WAKING with its next message
WAKING      it waits for its slice, then its memory is moved back     forgotten when it runs; SUSPENDED; lost
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
from .host_memory import room_mib
from .kernel_watch import monotonic_ms, started_of
from .slice_requests import Asker, NoGpuNow
from .suspension_selftest import HERE, LOCK_MS, PYTHON, SelfTest, self_test

DEVICES = "CUDA_VISIBLE_DEVICES"
EACH_GIB_S = 2.0
"""How much longer than ``step_s`` a step may take for each GiB that it moves."""

ROOM_S, LOOK_S = 10.0, 0.2
"""How long a kernel waits for memory that its borrower has just given up."""

STILL_HELD_MS = 60_000
"""A suspended kernel whose GPU is still read as held after so long is shut down: the reading counts, not the driver."""

AGAIN_MS = 30_000
"""How long after a kernel that is in use could not be woken it is tried again."""

SPARE_MIB = 64
ANEW = "The cell was not run: its kernel ended or was restarted while it waited. Run it again where it is still wanted."


class Phase(StrEnum):
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    WAKING = "waking"


class NotWoken(Exception):
    """A kernel does not run on now; the message says why, and what to do. It is lost, or suspended as before."""


@dataclass(slots=True, eq=False)
class Away:
    """A kernel that is off its GPU, or on its way. ``at``: when that began; ``mark``: what a use of it changes.

    ``started``: when its process did, by which it is told from a later one with the same number.
    ``memory_mib``: what it brings back, 0 where that is not known. ``moving`` is the newest task that moves it, and
    after ``again_at`` another may; ``wanted``: somebody waits for it; ``lost``: why it was shut down.
    """

    kernel: str
    pid: int
    at: int
    mark: object
    memory_mib: int
    started: int | None
    phase: Phase = Phase.SUSPENDING
    moving: asyncio.Task[Any] | None = None
    wanted: bool = False
    lost: str = ""
    again_at: int = 0


@dataclass(slots=True)
class Suspension:
    """The kernels of one server. ``tell`` hears (kernel, state, message) of whatever its person should know.

    ``wait_at_most_s``: how long a kernel waits for its slice; ``step_s``: how long the driver may take for a step.
    ``test`` is the self-test; ``room`` says how much host memory is left.
    """

    server: Any
    asks: Asker
    tell: Callable[[str, str, str], object]
    wait_at_most_s: float = 120.0
    step_s: float = 60.0
    clock: Callable[[], int] = monotonic_ms
    test: Callable[[], SelfTest] = self_test
    room: Callable[[], int | None] = room_mib
    tested: SelfTest | None = None
    away: dict[str, Away] = field(default_factory=dict)
    testing: asyncio.Task[None] | None = None
    wakes: set[asyncio.Task[None]] = field(default_factory=set)

    # --- the self-test --------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Begin the self-test, once; and look for kernels that an earlier server of ours has suspended."""
        if self.testing is None:
            self.testing = asyncio.create_task(self._prepared())

    async def _prepared(self) -> None:
        try:
            await self._find()
            self.tested = await asyncio.to_thread(self.test)
        except Exception as error:
            self.server.log.exception("jupyter_gpu_quota: the self-test of suspending kernels broke off")
            self.tested = SelfTest(passed=False, why=f"it broke off: {error!r}")
        if self.tested.passed:
            self.server.log.info("jupyter_gpu_quota: kernels can be suspended here (driver %s)", self.tested.driver)
        else:
            self.server.log.warning("jupyter_gpu_quota: no kernel is suspended here: %s", self.tested.why)

    @property
    def state(self) -> str:
        """As it is reported: off, testing, ready or unavailable."""
        if self.testing is None:
            return "off"
        if self.tested is None:
            return "testing"
        return "ready" if self.tested.passed else "unavailable"

    async def _find(self) -> None:
        """Kernels that are suspended already, by the driver's word: not by ours, which ended with an earlier server."""
        for kernel in self.server.kernel_manager.list_kernel_ids():
            pid = self._pid_of(kernel)
            if kernel in self.away or pid is None:
                continue
            told = await _ran("checkpointing", "state", pid, within_s=self.step_s)
            if told["state"] in ("locked", "checkpointed"):
                self.away[kernel] = self._leaving(kernel, pid, 0)
                self.away[kernel].phase = Phase.SUSPENDED

    # --- suspending -----------------------------------------------------------------------------------------------
    def suspend(self, kernel: str, memory_mib: int) -> str:
        """Begin to suspend an idle kernel that holds so much; why that cannot be, "" where it is under way."""
        known = self.away.get(kernel)
        if known is not None:
            late = known.phase is Phase.SUSPENDED and self.clock() - known.at >= STILL_HELD_MS
            return "it is suspended, and its GPU is read as held all the same" if late else ""
        pid = self._pid_of(kernel)
        if pid is None:
            return "it has no process here"
        if why := self._why_not(pid, memory_mib):
            return why
        one = self.away[kernel] = self._leaving(kernel, pid, memory_mib)
        one.moving = asyncio.create_task(self._suspended_or_lost(one))
        return ""

    def _leaving(self, kernel: str, pid: int, memory_mib: int) -> Away:
        return Away(kernel, pid, self.clock(), self._mark_of(kernel), memory_mib, started_of(pid))

    def _why_not(self, pid: int, needed_mib: int) -> str:
        if self.tested is None or not self.tested.passed:
            return f"the self-test was not passed: {self.tested.why}" if self.tested else "the self-test is not over"
        if "," in (device_of(pid) or ""):
            return "it has more than one device"
        room = self.room()
        if room is None:
            return "nobody knows how much host memory is left"
        room -= sum(each.memory_mib for each in self.away.values() if each.phase is Phase.SUSPENDING)
        return f"it needs {needed_mib} MiB of host memory, and {room} MiB are left" if needed_mib > room else ""

    async def _suspended_or_lost(self, one: Away) -> None:
        """Whatever goes wrong here, a kernel is not left between being there and being suspended."""
        try:
            await self._suspended(one)
        except Exception as error:
            self.server.log.exception("jupyter_gpu_quota: kernel %s could not be suspended", one.kernel)
            if one.phase is Phase.SUSPENDING and not one.lost:
                await self._lose(one, f"It could not be suspended: {error!r}.")

    async def _suspended(self, one: Away) -> None:
        read = await _ran("held_memory", one.pid, within_s=self.step_s)
        driver = read.get("driver")
        if self.tested is None or driver != self.tested.driver:
            is_now = f"but {driver}" if driver else f"as far as can be told ({read['why']})"
            await self._lose_unless_used(one, f"The driver is not the one that passed the self-test, {is_now}.")
            return
        told = await _ran("checkpointing", "suspend", one.pid, LOCK_MS, within_s=self._within_s(one))
        if not self._is_there(one):
            self._forget(one)
            return
        if told["state"] == "checkpointed":
            one.phase, one.at = Phase.SUSPENDED, self.clock()
            self.tell(one.kernel, "suspended", "Its variables are kept. It gets its GPU back with its next cell.")
        elif told["state"] == "running" and told["code"] == NOT_READY:
            self._forget(one)
            self.tell(one.kernel, "left_alone", "It still works on its GPU, so it was not suspended.")
        elif told["state"] == "running":
            await self._lose_unless_used(one, f"It could not be suspended: {told['why']}.")
        else:
            await self._lose(one, f"It could not be suspended: {told['why'] or told['state']}.")

    async def _lose_unless_used(self, one: Away, why: str) -> None:
        """Of a kernel that still runs: whoever came back in time keeps it."""
        if one.wanted or self._is_used(one):
            self._forget(one)
            self.tell(one.kernel, "left_alone", f"It is in use again, so it was not suspended. {why}")
        else:
            await self._lose(one, why)

    # --- waking ---------------------------------------------------------------------------------------------------
    def holds(self, kernel: str) -> bool:
        """Whether a message to this kernel must wait for it to be woken."""
        one = self.away.get(kernel)
        return one is not None and self._is_there(one)

    async def wake(self, kernel: str) -> None:
        """Have a kernel run again: the borrower is gone before it is restored. Raises NotWoken."""
        one = self.away.get(kernel) if self.holds(kernel) else None
        while one is not None and not one.lost and self._is_there(one):
            one.wanted = True
            if one.phase is Phase.SUSPENDED:
                one.phase = Phase.WAKING
                one.moving = asyncio.create_task(self._woken(one))
            assert one.moving is not None
            await asyncio.shield(one.moving)
        if one is not None and one.lost:
            raise NotWoken(one.lost)
        if one is not None and not self._is_same_process(one):
            raise NotWoken(ANEW)

    async def _woken(self, one: Away) -> None:
        """Raises NotWoken where it stays as it is."""
        try:
            found = await self.asks.ask(one.kernel, self.wait_at_most_s, starts=False)
            if self._is_there(one):
                await self._restored(one, found)
        except NoGpuNow as error:
            raise NotWoken(f"The cell was not run. {error.why} The kernel is suspended and keeps its variables; "
                           "run the cell again when that has changed.") from error  # fmt: skip
        finally:
            if one.phase is Phase.WAKING:
                one.phase, one.mark = Phase.SUSPENDED, self._mark_of(one.kernel)
                one.again_at = self.clock() + AGAIN_MS

    async def _restored(self, one: Away, found: Mapping[str, str]) -> None:
        own, now = device_of(one.pid), found.get(DEVICES)
        if own and now and own != now:
            raise NoGpuNow(f"Its slice is on another device now ({now}), and it can come back on its own only ({own}): "
                           "restart it to go on without its variables.")  # fmt: skip
        if why := await self._no_room(one, own):
            raise NoGpuNow(why)
        told = await _ran("checkpointing", "restore", one.pid, within_s=self._within_s(one))
        if not self._is_there(one):
            return
        if told["state"] == "running":
            self._forget(one)
            self.tell(one.kernel, "restored", "It has its GPU and its variables again.")
        else:
            await self._lose(one, f"It could not be restored: {told['why'] or told['state']}.")

    async def _no_room(self, one: Away, device: str | None) -> str:
        """Why its device has no room for it; "" where it has, or where nobody can tell which it is."""
        until = self.clock() + ROOM_S * 1000
        while True:
            told = await _ran("held_memory", one.pid, within_s=self.step_s)
            devices = told.get("devices") or {}
            mine = devices.get(device) or (next(iter(devices.values())) if len(devices) == 1 else None)
            if mine is None or mine["free_mib"] >= one.memory_mib - SPARE_MIB:
                return ""
            if self.clock() >= until:
                return f"Its device has {mine['free_mib']} MiB free, and it needs {one.memory_mib} MiB."
            await asyncio.sleep(LOOK_S)

    # --- watching -------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Forget kernels that are gone, and wake those that were used by a way that does not wait for us."""
        for one in list(self.away.values()):
            if not self._is_there(one):
                self._forget(one)
            elif one.phase is Phase.SUSPENDED and self._is_used(one):
                one.again_at = self.clock() + AGAIN_MS
                self.wakes.add(task := asyncio.create_task(self._wake_quietly(one.kernel)))
                task.add_done_callback(self.wakes.discard)

    def _is_there(self, one: Away) -> bool:
        """Whether a kernel is still the process that it was."""
        return self.away.get(one.kernel) is one and self._is_same_process(one)

    def _is_same_process(self, one: Away) -> bool:
        return self._pid_of(one.kernel) == one.pid and started_of(one.pid) == one.started

    def _is_used(self, one: Away) -> bool:
        """Whether it got a message; one that is busy waits for its GPU, and so is tried again and again."""
        mark = self._mark_of(one.kernel)
        return mark != one.mark or (mark[1] == "busy" and self.clock() >= one.again_at)

    async def _wake_quietly(self, kernel: str) -> None:
        try:
            await self.wake(kernel)
        except NotWoken as error:
            if kernel in self.away:
                self.tell(kernel, "suspended", str(error))

    def _forget(self, one: Away) -> None:
        if self.away.get(one.kernel) is one:
            del self.away[one.kernel]

    async def _lose(self, one: Away, why: str) -> None:
        """Shut a kernel down that can neither stay nor come back."""
        one.lost = f"{why} The kernel was shut down, and its variables are lost. Start it again to go on."
        self._forget(one)
        if self._is_same_process(one):
            await self.server.kernel_manager.shutdown_kernel(one.kernel, now=True)
        self.tell(one.kernel, "lost", one.lost)

    def _within_s(self, one: Away) -> float:
        return self.step_s + EACH_GIB_S * one.memory_mib / 1024

    def _pid_of(self, kernel: str) -> int | None:
        kernels = self.server.kernel_manager
        if kernel not in kernels:
            return None
        pid = getattr(getattr(kernels.get_kernel(kernel), "provisioner", None), "pid", None)
        return pid if isinstance(pid, int) and pid > 0 else None

    def _mark_of(self, kernel: str) -> tuple[object, object]:
        """What changes with each message that a person or a cell causes."""
        known = self.server.kernel_manager
        found = known.get_kernel(kernel) if kernel in known else None
        return getattr(found, "last_activity", None), getattr(found, "execution_state", None)


def device_of(pid: int) -> str | None:
    """The devices that a process was started with, by its own variables; None where they do not say."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    found = dict(each.split("=", 1) for each in text.split("\0") if "=" in each)
    return found.get(DEVICES) or None


async def _ran(program: str, *told: object, within_s: float) -> Mapping[str, Any]:
    """What one of our programs prints; of one that hangs or dies, why."""
    command = (*PYTHON, str(HERE / f"{program}.py"), *map(str, told))
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        running = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=nothing)
    except OSError as error:
        return {"state": None, "why": f"the program that asks the driver cannot be started ({error})", "code": -1}
    try:
        answer, _ = await asyncio.wait_for(running.communicate(), within_s)
        return dict(json.loads(answer))
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):  # it ends just now
            running.kill()
        why = f"the driver did not answer within {within_s:.0f} s"
    except ValueError:
        why = f"the driver ended the program that asked it ({running.returncode})"
    return {"state": None, "why": why, "code": -1}
