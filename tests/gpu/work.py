"""Real work on a real GPU with nothing but the driver: ``python work.py MIB BUSY`` holds memory, and fills it if busy.

It says "ready" once it holds what it should, and runs until it is killed.
"""

from __future__ import annotations

import ctypes
import sys
import time


def main() -> None:
    mib, busy = int(sys.argv[1]), sys.argv[2] == "1"
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for found in (
        cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)),
    ):  # fmt: skip
        if found:
            sys.exit(f"the driver answers {found}")
    print("ready", flush=True)
    while True:
        if busy:
            cuda.cuMemsetD32_v2(memory, ctypes.c_uint(1), ctypes.c_size_t((mib << 20) // 4))
            cuda.cuCtxSynchronize()
        else:
            time.sleep(1)


if __name__ == "__main__":
    main()
