"""Moves the GPU state of a process into host memory and back, by the driver's checkpoint calls; a program of its own.

``python checkpointing.py state|suspend|restore PID [LOCK_MS]`` takes one step and prints one line of JSON. Any call may
hang or end its process, so whoever asks runs this as a child and ends it when it takes too long; after that ``state``
says how far it came. It needs nothing but the standard library, so that it starts in a moment.

Source: NVIDIA, CUDA Driver API, "CUDA Checkpointing" (driver 570 and later), and the README of cuda-checkpoint.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable

LIBRARY = "libcuda.so.1"
STATES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")
"""CUprocessState, by its number."""

NOT_READY = 600
"""CUDA_ERROR_NOT_READY: work that was already submitted did not end within the time-out of the lock."""

CODES = {
    1: "invalid value", 2: "out of memory", 3: "not initialized", 34: "this is a stub library", 100: "no device",
    101: "invalid device", 304: "an operating system call failed", 401: "illegal state", 500: "not found",
    600: "not ready", 800: "not permitted", 801: "not supported", 802: "system not ready", 999: "unknown error",
}  # fmt: skip
"""What CUresult says, for the codes that these calls are documented or known to answer."""


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs. ``timeout_ms`` 0 would wait for ever."""

    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class CallFailed(Exception):
    """The driver refused; ``code`` is its CUresult, -1 where there is no such call."""

    def __init__(self, call: str, code: int, why: str = "") -> None:
        super().__init__(f"{call} answers {why or CODES.get(code, 'an error')}" + (f" ({code})" if code > 0 else ""))
        self.call, self.code = call, code


class Driver:
    """The checkpoint calls. Raises CallFailed where there is no driver, or an older one than 570."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CallFailed(LIBRARY, -1, f"that it cannot be loaded ({error})") from error
        self._call("cuInit", ctypes.c_uint(0))

    def state(self, pid: int) -> str:
        """One of STATES."""
        found = ctypes.c_int(-1)
        self._call("cuCheckpointProcessGetState", ctypes.c_int(pid), ctypes.byref(found))
        return STATES[found.value] if 0 <= found.value < len(STATES) else f"state {found.value}"

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Block further GPU calls of a process, and wait for its work to end. It runs on where that takes too long."""
        args = LockArgs(timeout_ms=timeout_ms)
        self._call("cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(args))

    def checkpoint(self, pid: int) -> None:
        """Move what a locked process has on its devices into host memory, and let go of the devices."""
        self._call("cuCheckpointProcessCheckpoint", ctypes.c_int(pid), None)

    def restore(self, pid: int) -> None:
        """Move it back onto the same devices; the process is locked after that."""
        self._call("cuCheckpointProcessRestore", ctypes.c_int(pid), None)

    def unlock(self, pid: int) -> None:
        self._call("cuCheckpointProcessUnlock", ctypes.c_int(pid), None)

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise CallFailed(name, -1, "nothing: this driver has no such call, it is older than 570")
        code = function(*arguments)
        if code:
            raise CallFailed(name, code)


def suspend(driver: Driver, pid: int, lock_ms: int) -> None:
    """From wherever an earlier try was left."""
    state = driver.state(pid)
    if state == "running":
        driver.lock(pid, lock_ms)
        state = driver.state(pid)
    if state == "locked":
        driver.checkpoint(pid)


def restore(driver: Driver, pid: int, lock_ms: int) -> None:
    """From wherever an earlier try was left. ``lock_ms`` is of no use here."""
    state = driver.state(pid)
    if state == "checkpointed":
        driver.restore(pid)
        state = driver.state(pid)
    if state == "locked":
        driver.unlock(pid)


def look(driver: Driver, pid: int, lock_ms: int) -> None:
    """Only the state."""


STEPS: dict[str, Callable[[Driver, int, int], None]] = {"state": look, "suspend": suspend, "restore": restore}


def taken(step: str, pid: int, lock_ms: int) -> dict[str, object]:
    """What is printed: the ``state`` that was read back, None where it could not be, and the ``why`` of a failure."""
    why, code, state = "", 0, None
    try:
        driver = Driver()
    except CallFailed as error:
        return {"state": None, "why": str(error), "code": error.code}
    try:
        STEPS[step](driver, pid, lock_ms)
    except CallFailed as error:
        why, code = str(error), error.code
    try:
        state = driver.state(pid)
    except CallFailed as error:
        why, code = why or str(error), code or error.code
    return {"state": state, "why": why, "code": code}


if __name__ == "__main__":
    print(json.dumps(taken(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10_000)))
