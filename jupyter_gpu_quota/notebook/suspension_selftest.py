"""The self-test: a small process, the canary, is suspended and restored before any kernel is.

Suspension is used only if the canary's memory left the device and came back unchanged. The canary is a sibling of the
program that suspends it, as a kernel is, since some machines allow that only to parents. Run as a program, this file is
the canary.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = (sys.executable, "-I", "-S")
"""These programs use only the standard library, and start without site packages."""

MIB = 1 << 20
CANARY_MIB = 64
MIN_FREE_MIB = 1024
"""Free memory that a device needs: the canary's context takes more than half a GiB."""

LOCK_MS = 10_000
STEP_S = 60.0
"""Time limit of each step; the driver may have to initialise its device first."""

GONE_S = 5.0
PAUSE_S = 0.1
X86 = ("x86_64", "AMD64")


class SelfTestFailed(Exception):
    """The self-test failed; the message has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The result of the self-test. ``why`` is empty if it passed; ``devices`` are the visible ones."""

    passed: bool
    why: str = ""
    driver: str | None = None
    devices: tuple[str, ...] = ()


def self_test(variables: Mapping[str, str] = os.environ, step_s: float = STEP_S) -> SelfTest:
    """Suspend and restore a canary on the first visible device. It blocks, for a minute per step at most."""
    driver, devices = None, tuple[str, ...]()
    try:
        if platform.machine() not in X86:
            raise SelfTestFailed(f"the driver suspends processes on x86-64 only, and this is {platform.machine()}")
        before = run_program("held_memory", os.getpid(), variables, step_s)
        driver, devices = before["driver"], tuple(sorted(before["devices"]))
        if all(device["free_mib"] < MIN_FREE_MIB for device in before["devices"].values()):
            raise SelfTestFailed(f"no device has {MIN_FREE_MIB} MiB free for the canary")
        with Canary(variables, step_s) as canary:
            _suspend_and_restore(canary, variables, step_s)
    except SelfTestFailed as error:
        return SelfTest(passed=False, why=str(error), driver=driver, devices=devices)
    return SelfTest(passed=True, driver=driver, devices=devices)


def _suspend_and_restore(canary: Canary, variables: Mapping[str, str], step_s: float) -> None:
    """Raises SelfTestFailed if the canary's memory does not leave its device, or does not come back."""
    before = run_program("held_memory", canary.pid, variables, step_s)
    _check_state(run_program("checkpointing", "suspend", canary.pid, LOCK_MS, variables, step_s), "checkpointed")
    until = time.monotonic() + GONE_S
    while not _is_off_device(before, run_program("held_memory", canary.pid, variables, step_s)):
        if time.monotonic() > until:
            raise SelfTestFailed("the driver reports the canary as suspended, but its memory is still on the device")
        time.sleep(PAUSE_S)
    _check_state(run_program("checkpointing", "restore", canary.pid, variables, step_s), "running")
    canary.check()


def _check_state(result: Mapping[str, Any], wanted: str) -> None:
    if result["state"] != wanted:
        raise SelfTestFailed(result["why"] or f"the canary is {result['state']} instead of {wanted}")


def _is_off_device(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the canary's memory left: by the list of processes, or else by a device's used memory."""
    if any(device["listed"] for device in before["devices"].values()):
        return not any(device["listed"] for device in after["devices"].values())
    left = (device["used_mib"] - after["devices"].get(uuid, device)["used_mib"]
            for uuid, device in before["devices"].items())  # fmt: skip
    return any(mib >= CANARY_MIB for mib in left)


def run_program(program: str, *inputs: Any) -> dict[str, Any]:
    """The result that one of our programs prints; the last two inputs are its variables and time limit.

    Raises SelfTestFailed.
    """
    *arguments, variables, within_s = inputs
    command = (*PYTHON, str(HERE / f"{program}.py"), *map(str, arguments))
    try:
        done = subprocess.run(
            command, env=dict(variables), capture_output=True, timeout=within_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise SelfTestFailed(f"the driver did not answer within {within_s:.0f} s ({program} {arguments[0]})") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["without an error message"])[-1]
        raise SelfTestFailed(f"{program} {arguments[0]} ended with {done.returncode}: {last}") from None
    if program == "held_memory" and not answer["devices"]:
        raise SelfTestFailed(f"the devices' memory cannot be read: {answer['why'] or 'NVML lists none'}")
    return dict(answer)


class Canary:
    """A process with a known pattern on a device. Raises SelfTestFailed."""

    def __init__(self, variables: Mapping[str, str], step_s: float) -> None:
        self.step_s = step_s
        self.process = subprocess.Popen(
            (*PYTHON, str(Path(__file__))), env=dict(variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid

    def __enter__(self) -> Canary:
        try:
            if (line := self._read("opening a device")) != "ready":
                raise SelfTestFailed(f"the canary could not use a device: {line}")
        except SelfTestFailed:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def check(self) -> None:
        """Raise SelfTestFailed if its pattern has changed."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"check\n")
            self.process.stdin.flush()
        except OSError:
            raise SelfTestFailed("the canary did not survive") from None
        if (line := self._read("reading its memory again")) != "same":
            raise SelfTestFailed(f"the canary's memory came back changed: {line}")

    def _read(self, doing: str) -> str:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], self.step_s)[0]:
            raise SelfTestFailed(f"the canary still waits for the driver after {self.step_s:.0f} s of {doing}")
        line = self.process.stdout.readline().decode(errors="replace").strip()
        return line or f"it ended while {doing}"


# --- the canary ---------------------------------------------------------------------------------------------------
def main() -> None:
    """Allocate a pattern, print "ready", and for each input line print whether it is unchanged."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(error, flush=True)
        return
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    size, pattern = ctypes.c_size_t(CANARY_MIB * MIB), os.urandom(MIB) * CANARY_MIB
    read = ctypes.create_string_buffer(CANARY_MIB * MIB)
    steps: tuple[Callable[[], int], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        lambda: cuda.cuCtxSetCurrent(context),
        lambda: cuda.cuMemAlloc_v2(ctypes.byref(memory), size),
        lambda: cuda.cuMemcpyHtoD_v2(memory, pattern, size),
    )
    for step in steps:
        if code := step():
            print(f"the driver answers {code}", flush=True)
            return
    print("ready", flush=True)
    for _ in sys.stdin:
        code = cuda.cuMemcpyDtoH_v2(read, memory, size)
        result = "same" if read.raw == pattern else "it has other content"
        print(f"the driver answers {code}" if code else result, flush=True)


if __name__ == "__main__":
    main()
