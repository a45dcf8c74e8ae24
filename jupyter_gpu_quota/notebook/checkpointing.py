"""Moves the GPU state of a process to host memory and back, with the driver's checkpoint calls; a separate program.

``python checkpointing.py state|suspend|restore PID [LOCK_MS]`` performs one step and prints one line of JSON. A call
may hang or end its process, so it runs as a child with a time limit; afterwards ``state`` shows the progress. It uses
only the standard library, so that it starts quickly.

Source: NVIDIA, CUDA Driver API, "CUDA Checkpointing" (driver 570 and later), and the README of cuda-checkpoint.
"""

from __future__ import annotations

import ctypes
import json
import sys

LIBRARY = "libcuda.so.1"
STATES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")
"""CUprocessState, by its number."""

NOT_READY = 600
"""CUDA_ERROR_NOT_READY: submitted work did not end within the time limit of the lock."""

CODES = {
    1: "invalid value", 2: "out of memory", 3: "not initialized", 34: "this is a stub library", 100: "no device",
    101: "invalid device", 304: "an operating system call failed", 401: "illegal state", 500: "not found",
    600: "not ready", 800: "not permitted", 801: "not supported", 802: "system not ready", 999: "unknown error",
}  # fmt: skip
"""The meaning of CUresult, for the codes of these calls."""


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs. ``timeout_ms`` 0 would wait for ever."""

    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class CallFailed(Exception):
    """The driver refused; ``code`` is its CUresult, -1 if there is no such call."""

    def __init__(self, call: str, code: int, why: str = "") -> None:
        super().__init__(f"{call} failed: {why or CODES.get(code, 'an error')}" + (f" ({code})" if code > 0 else ""))
        self.call, self.code = call, code


class Driver:
    """The checkpoint calls. Raises CallFailed without a driver of version 570 or later."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CallFailed(LIBRARY, -1, f"it cannot be loaded ({error})") from error
        self.call("cuInit", ctypes.c_uint(0))

    def state(self, pid: int) -> str:
        """One of STATES."""
        found = ctypes.c_int(-1)
        self.call("cuCheckpointProcessGetState", ctypes.c_int(pid), ctypes.byref(found))
        return STATES[found.value] if 0 <= found.value < len(STATES) else f"state {found.value}"

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises CallFailed."""
        function = getattr(self.library, name, None)
        if function is None:
            raise CallFailed(name, -1, "the driver is older than 570 and has no such call")
        code = function(*arguments)
        if code:
            raise CallFailed(name, code)


def suspend(driver: Driver, pid: int, lock_ms: int) -> None:
    """Suspend a process, also after an interrupted attempt.

    The lock blocks further GPU calls and waits for submitted work; after ``lock_ms`` the process is unlocked again.
    """
    state = driver.state(pid)
    if state == "running":
        lock = LockArgs(timeout_ms=lock_ms)
        driver.call("cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(lock))
        state = driver.state(pid)
    if state == "locked":
        driver.call("cuCheckpointProcessCheckpoint", ctypes.c_int(pid), None)


def restore(driver: Driver, pid: int) -> None:
    """Restore a process on the same devices, also after an interrupted attempt."""
    state = driver.state(pid)
    if state == "checkpointed":
        driver.call("cuCheckpointProcessRestore", ctypes.c_int(pid), None)
        state = driver.state(pid)
    if state == "locked":
        driver.call("cuCheckpointProcessUnlock", ctypes.c_int(pid), None)


def result(step: str, pid: int, lock_ms: int) -> dict[str, object]:
    """The printed result: the ``state`` that was read back, None if unknown, and the ``why`` of a failure."""
    why, code, state = "", 0, None
    try:
        driver = Driver()
    except CallFailed as error:
        return {"state": None, "why": str(error), "code": error.code}
    try:
        if step == "suspend":
            suspend(driver, pid, lock_ms)
        elif step == "restore":
            restore(driver, pid)
    except CallFailed as error:
        why, code = str(error), error.code
    try:
        state = driver.state(pid)
    except CallFailed as error:
        why, code = why or str(error), code or error.code
    return {"state": state, "why": why, "code": code}


if __name__ == "__main__":
    print(json.dumps(result(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10_000)))
