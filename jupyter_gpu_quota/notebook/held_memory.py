"""The memory of the devices and of one process on them, by NVML; a separate program.

``python held_memory.py PID`` prints one line of JSON. It uses ctypes, because a notebook server may lack nvidia-ml-py;
slices are lent by the service's own readings. Source: nvml.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator

LIBRARY = "libnvidia-ml.so.1"
MIB = 1 << 20
MAX_PROCESSES = 1024
"""Processes of one device that are read."""


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint),
    ]  # fmt: skip


class NvmlUnreadable(Exception):
    """NVML cannot be read; the message has the cause."""


class Nvml:
    """NVML, initialised. Raises NvmlUnreadable."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlUnreadable(f"{LIBRARY} cannot be loaded ({error})") from error
        self.call("nvmlInitWithFlags", ctypes.c_uint(0))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of NVML. Raises NvmlUnreadable."""
        function = getattr(self.library, name, None)
        if function is None:
            raise NvmlUnreadable(f"this driver's NVML has no {name}")
        code = function(*arguments)
        if code:
            raise NvmlUnreadable(f"{name} failed with {code}")

    def text(self, name: str, size: int, *arguments: object) -> str:
        """A text of at most ``size`` bytes, such as the driver's version. Raises NvmlUnreadable."""
        text = ctypes.create_string_buffer(size)
        self.call(name, *arguments, text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def devices(self) -> Iterator[ctypes.c_void_p]:
        """The handles of all devices. Raises NvmlUnreadable."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            yield handle


def read(pid: int) -> dict[str, object]:
    """The driver, and ``devices`` by UUID; ``why`` of a failure.

    A device has its used and free memory in MiB, and whether it lists the process; in a pid namespace NVML lists none.
    """
    try:
        nvml, devices = Nvml(), {}
        for device in nvml.devices():
            memory, count, found = Memory(), ctypes.c_uint(MAX_PROCESSES), (Process * MAX_PROCESSES)()
            nvml.call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
            nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), found)
            listed = any(found[at].pid == pid for at in range(min(count.value, MAX_PROCESSES)))
            figures = {"used_mib": memory.used // MIB, "free_mib": memory.free // MIB, "listed": listed}
            devices[nvml.text("nvmlDeviceGetUUID", 96, device)] = figures
        return {"driver": nvml.text("nvmlSystemGetDriverVersion", 80), "devices": devices, "why": ""}
    except NvmlUnreadable as error:
        return {"driver": None, "devices": {}, "why": str(error)}


if __name__ == "__main__":
    print(json.dumps(read(int(sys.argv[1]))))
