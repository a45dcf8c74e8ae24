"""The process that sets and reads the driver's memory limits of control groups: asked once, on its standard input.

It is a process of its own like the reader, because a call into the driver's library may hang, or end the process. It
takes a JSON list of ``{device, group, mib}`` and answers a list of ``{soft_mib, hard_mib, why}``, in the same order.
Run as ``python -m jupyter_gpu_quota.backends.local.sampling.limits_process``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from .reader import end_with_parent
from .reading import MIB

NO_LIMIT = (1 << 64) - 1


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Set what is to be set of one group on one device, then read it back. NVML is running."""
    import pynvml

    told: dict[str, Any] = {"soft_mib": None, "hard_mib": None, "why": ""}
    if not hasattr(pynvml, "c_nvmlSetMemoryLimits_v1_t"):
        return {**told, "why": "this nvidia-ml-py has no memory limits; they came with 13.615"}
    group = os.fsencode(asked["group"])
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(asked["device"])
        if asked["mib"] is not None:
            most = asked["mib"] * MIB
            wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=group, softLimit=most, hardLimit=most or NO_LIMIT)
            pynvml.nvmlDeviceSetMemoryLimits_v1(device, wanted)
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=group)
        pynvml.nvmlDeviceGetMemoryLimits_v1(device, found)
    except pynvml.NVMLError as error:
        return {**told, "why": f"NVML: {error}"}
    return {**told, "soft_mib": _mib(found.softLimit), "hard_mib": _mib(found.hardLimit)}


def _mib(size: int) -> int | None:
    """MiB; None for no limit, and for what is none of whole MiB and so none of ours."""
    return None if size == NO_LIMIT or size % MIB else int(size) // MIB


def main() -> int:
    """Answer once, in a form that says why where nothing can be told."""
    end_with_parent(os.getppid())
    asked = json.load(sys.stdin)
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError as error:
        why = f"nvidia-ml-py is not installed ({error})"
    except pynvml.NVMLError as error:
        why = f"NVML cannot be started: {error}"
    else:
        why = ""
    told = [{"soft_mib": None, "hard_mib": None, "why": why} if why else answer(each) for each in asked]
    sys.stdout.write(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
