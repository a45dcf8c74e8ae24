"""An unsaturated job on a real GPU with nothing but the driver: ``python load.py STEPS``: short work, then host work.

It prints the seconds that its steps took, the start of CUDA left out: that is "ready", after which it waits for a line.
"""

from __future__ import annotations

import ctypes
import sys
import time

MIB = 256
HOST_S = 0.004
"""What each step does elsewhere, as data loading or an optimizer on the host would."""


def main() -> None:
    steps = int(sys.argv[1])
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for found in (
        cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(MIB << 20)),
    ):  # fmt: skip
        if found:
            sys.exit(f"the driver answers {found}")
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for step in range(steps):
        cuda.cuMemsetD32_v2(memory, ctypes.c_uint(step), ctypes.c_size_t((MIB << 20) // 4))
        cuda.cuCtxSynchronize()
        time.sleep(HOST_S)
    print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main()
