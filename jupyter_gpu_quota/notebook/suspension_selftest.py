"""The self-test: a small process of our own is suspended and restored before any kernel is.

Only where its memory was seen to leave the device, to come back, and to hold what it held, is suspension used. The
canary is a sibling of the program that acts on it, as a kernel is: a machine that lets only parents do so is found out.
Run as a program, this file is the canary.
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
"""These programs need nothing but the standard library, and start without looking for anything else."""

MIB = 1 << 20
CANARY_MIB = 64
LEAST_FREE_MIB = 1024
"""What must be free of a device: the canary's context takes half a GiB and more of it."""

LOCK_MS = 10_000
STEP_S = 60.0
"""How long each step of the self-test may take: a canary is small, but a driver may have to wake its device first."""

GONE_S = 5.0
PAUSE_S = 0.1
X86 = ("x86_64", "AMD64")


class Failed(Exception):
    """The self-test was not passed; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What came of the self-test. ``why`` is empty where it was passed; ``devices`` are those that were seen."""

    passed: bool
    why: str = ""
    driver: str | None = None
    devices: tuple[str, ...] = ()


def self_test(variables: Mapping[str, str] = os.environ, step_s: float = STEP_S) -> SelfTest:
    """Suspend and restore a canary on the first device that these variables show. It waits, a minute a step at most."""
    driver, devices = None, tuple[str, ...]()
    try:
        if platform.machine() not in X86:
            raise Failed(f"the driver suspends processes on x86-64 only, and this is {platform.machine()}")
        before = ran("held_memory", os.getpid(), variables, step_s)
        driver, devices = before["driver"], tuple(sorted(before["devices"]))
        if all(device["free_mib"] < LEAST_FREE_MIB for device in before["devices"].values()):
            raise Failed(f"no device has {LEAST_FREE_MIB} MiB free for the canary")
        with Canary(variables, step_s) as canary:
            _there_and_back(canary, variables, step_s)
    except Failed as error:
        return SelfTest(passed=False, why=str(error), driver=driver, devices=devices)
    return SelfTest(passed=True, driver=driver, devices=devices)


def _there_and_back(canary: Canary, variables: Mapping[str, str], step_s: float) -> None:
    before = ran("held_memory", canary.pid, variables, step_s)
    _in_state(ran("checkpointing", "suspend", canary.pid, LOCK_MS, variables, step_s), "checkpointed")
    until = time.monotonic() + GONE_S
    while not _has_left(before, ran("held_memory", canary.pid, variables, step_s)):
        if time.monotonic() > until:
            raise Failed("the driver says that it suspended the canary, whose memory is still on the device")
        time.sleep(PAUSE_S)
    _in_state(ran("checkpointing", "restore", canary.pid, variables, step_s), "running")
    canary.check()


def _in_state(told: Mapping[str, Any], wanted: str) -> None:
    if told["state"] != wanted:
        raise Failed(told["why"] or f"the canary is {told['state']} where it should be {wanted}")


def _has_left(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """By the list of processes; where that does not show ours, by the memory of a device."""
    if any(device["listed"] for device in before["devices"].values()):
        return not any(device["listed"] for device in after["devices"].values())
    left = (device["used_mib"] - after["devices"].get(uuid, device)["used_mib"]
            for uuid, device in before["devices"].items())  # fmt: skip
    return any(mib >= CANARY_MIB for mib in left)


def ran(program: str, *told: Any) -> dict[str, Any]:
    """What one of our programs prints; the last two values are its variables and its time-out. Raises Failed."""
    *arguments, variables, within_s = told
    command = (*PYTHON, str(HERE / f"{program}.py"), *map(str, arguments))
    try:
        done = subprocess.run(
            command, env=dict(variables), capture_output=True, timeout=within_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"the driver did not answer within {within_s:.0f} s ({program} {arguments[0]})") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise Failed(f"{program} {arguments[0]} ended with {done.returncode}: {_last(done.stderr)}") from None
    if program == "held_memory" and not answer["devices"]:
        raise Failed(f"what is on the devices cannot be read: {answer['why'] or 'NVML names none'}")
    return dict(answer)


def _last(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"


class Canary:
    """A process that holds a known pattern on a device. Raises Failed."""

    def __init__(self, variables: Mapping[str, str], step_s: float) -> None:
        self.step_s = step_s
        self.process = subprocess.Popen(
            (*PYTHON, str(Path(__file__))), env=dict(variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid

    def __enter__(self) -> Canary:
        try:
            if (told := self._heard("opening a device")) != "ready":
                raise Failed(f"the canary could not be put on a device: {told}")
        except Failed:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def check(self) -> None:
        """Whether its pattern is what it was."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"check\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed("the canary did not survive") from None
        if (told := self._heard("reading its memory again")) != "same":
            raise Failed(f"the canary's memory came back changed: {told}")

    def _heard(self, doing: str) -> str:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], self.step_s)[0]:
            raise Failed(f"the canary still waits for the driver after {self.step_s:.0f} s of {doing}")
        line = self.process.stdout.readline().decode(errors="replace").strip()
        return line or f"it ended while {doing}"


# --- the canary ---------------------------------------------------------------------------------------------------
def main() -> None:
    """Hold a pattern, say "ready", and for each line that is read say whether it is still the same."""
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
        told = "same" if read.raw == pattern else "it holds something else"
        print(f"the driver answers {code}" if code else told, flush=True)


if __name__ == "__main__":
    main()
