"""The process that sets and reads the driver's memory limits of cgroups once.

It is a separate process because a call into the driver's library may hang, or end the process. It reads a JSON list of
``LimitRequest`` from standard input and answers a list of ``LimitAnswer``, in the same order.
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


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Set the limit of one cgroup on one device, if the request has one, then read it back. NVML is running."""
    import pynvml

    from .nvml_session import PERMANENT_ERRORS

    if not hasattr(pynvml, "c_nvmlSetMemoryLimits_v1_t"):
        return {"why": "this nvidia-ml-py has no memory limits; they came with 13.615", "is_known": True}
    group = os.fsencode(request["group"])
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(request["device"])
        if request["mib"] is not None:
            limit = request["mib"] * MIB
            wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=group, softLimit=limit, hardLimit=limit or NO_LIMIT)
            pynvml.nvmlDeviceSetMemoryLimits_v1(device, wanted)
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=group)
        pynvml.nvmlDeviceGetMemoryLimits_v1(device, found)
    except pynvml.NVMLError as error:
        return {"why": f"NVML: {error}", "is_known": error.value in PERMANENT_ERRORS}
    soft, hard = _mib(found.softLimit), _mib(found.hardLimit)
    if soft is None or hard is None:
        return {"why": "the driver reports no limit", "is_known": True}
    if soft != hard:
        return {"why": f"the driver reports a soft limit of {soft} MiB and a hard one of {hard} MiB", "is_known": True}
    return {"limit_mib": hard, "is_known": True}


def _mib(size: int) -> int | None:
    """MiB; None for no limit, and for a size that is not whole MiB, which this service never sets."""
    return None if size == NO_LIMIT or size % MIB else int(size) // MIB


def main() -> int:
    """Answer once; where NVML cannot be used each answer gives the reason."""
    end_with_parent(os.getppid())
    requests = json.load(sys.stdin)
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError as error:
        answers = [{"why": f"nvidia-ml-py is not installed ({error})", "is_known": True}] * len(requests)
    except pynvml.NVMLError as error:
        answers = [{"why": f"NVML cannot be started: {error}"}] * len(requests)
    else:
        answers = list(map(answer, requests))
    sys.stdout.write(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
