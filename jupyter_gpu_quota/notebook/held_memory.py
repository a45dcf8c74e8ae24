"""What NVML says of the devices and of one process on them; a program of its own, like its neighbours.

``python held_memory.py PID`` prints one line of JSON. It is read through ctypes, as a person's server need not have
nvidia-ml-py; the readings by which slices are lent are the service's own. Source: nvml.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator

LIBRARY = "libnvidia-ml.so.1"
MIB = 1 << 20
MOST = 1024
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


class Unread(Exception):
    """NVML does not tell; the message says why."""


class Nvml:
    """NVML between its start and the end of this program. Raises Unread."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise Unread(f"{LIBRARY} cannot be loaded ({error})") from error
        self._call("nvmlInitWithFlags", ctypes.c_uint(0))

    def driver(self) -> str:
        text = ctypes.create_string_buffer(80)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def devices(self) -> Iterator[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            yield handle

    def uuid(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", device, text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def memory(self, device: ctypes.c_void_p) -> Memory:
        found = Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(found))
        return found

    def lists(self, device: ctypes.c_void_p, pid: int) -> bool:
        """Whether a process computes on a device. In a container with pids of its own none is ever found."""
        count, found = ctypes.c_uint(MOST), (Process * MOST)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), found)
        return any(found[i].pid == pid for i in range(min(count.value, MOST)))

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise Unread(f"this driver's NVML has no {name}")
        code = function(*arguments)
        if code:
            raise Unread(f"{name} answers {code}")


def read(pid: int) -> dict[str, object]:
    """``devices``: by UUID its memory, used and free in MiB, and whether it lists the process; ``why`` of a failure."""
    try:
        nvml = Nvml()
        devices = {}
        for device in nvml.devices():
            memory = nvml.memory(device)
            facts = {"used_mib": memory.used // MIB, "free_mib": memory.free // MIB}
            devices[nvml.uuid(device)] = {**facts, "listed": nvml.lists(device, pid)}
        return {"driver": nvml.driver(), "devices": devices, "why": ""}
    except Unread as error:
        return {"driver": None, "devices": {}, "why": str(error)}


if __name__ == "__main__":
    print(json.dumps(read(int(sys.argv[1]))))
