"""The sample of a simulated device, from the use of its workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.model import Allocation, Device
from ..core.samples import KNOWN, UNKNOWN, DeviceSample

NO_MEMORY = "a simulated device has no memory"


def simulated_sample(
    device: Device, users: Sequence[Allocation], use: Mapping[str, int | None], unknown: str, now: int
) -> DeviceSample:
    """A sample of a device with these allocations. ``use`` is in percent, by workload.

    ``unknown`` is the reason for a use of None; the device is unknown where one of its workloads is.
    """
    by_workload = {part.workload: use.get(part.workload) for part in users if part.gpu_milli}
    known = [percent for percent in by_workload.values() if percent is not None]
    is_known = len(known) == len(by_workload)
    why = {"memory_used_mib": NO_MEMORY, **{name: unknown for name, percent in by_workload.items() if percent is None}}
    if not is_known:
        why["utilisation_percent"] = unknown
    return DeviceSample(
        node=device.node, device=device.id, at=now, utilisation_percent=min(100, sum(known)) if is_known else None,
        memory_used_mib=None, coverage_permille=KNOWN if is_known else UNKNOWN, simulated=True, workloads=by_workload,
        why=why,
    )  # fmt: skip
