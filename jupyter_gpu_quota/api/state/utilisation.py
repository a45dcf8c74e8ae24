"""The use of allocations and devices by the newest readings; unknown with its reason where a reading lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...core.model import Device, Health
from ...core.samples import DeviceSample

MILLI_OF_PERCENT, WHOLE_MILLI = 10, 1000
STALE_MS = 60_000
"""An older reading does not count for the present."""

AHEAD_MS = 60_000
"""The clock of a sampler may be ahead by this; a reading with a later date does not count."""

NOT_READ = "it was not read yet"
NOT_ITS = "it began after the last reading"
NO_REASON = "no reason was given"


class Utilised(NamedTuple):
    """Used milli-GPU; None is unknown, with the reason ``why``."""

    milli: int | None
    why: str | None = None


NOTHING_HELD = Utilised(None, None)


def of_share(row: DeviceSample | None, workload: str, now: int) -> Utilised:
    """A workload's use of one device by its newest reading."""
    if row is not None and workload not in row.workloads:
        return Utilised(None, NOT_ITS)
    if (silent := _why_outdated(row, now)) is not None or row is None:
        return Utilised(None, silent or NOT_READ)
    percent = row.workloads[workload]
    if percent is None:
        return Utilised(None, row.why.get(workload, NO_REASON))
    return Utilised(min(WHOLE_MILLI, percent * MILLI_OF_PERCENT))


def memory_of_share(row: DeviceSample | None, workload: str, now: int) -> int | None:
    """A workload's use of one device's memory by its newest reading, in MiB; None is unknown."""
    return None if row is None or _why_outdated(row, now) else row.workload_memory_mib.get(workload)


def of_device(row: DeviceSample | None, now: int) -> Utilised:
    """The whole use of one device."""
    if (silent := _why_outdated(row, now)) is not None or row is None:
        return Utilised(None, silent or NOT_READ)
    if row.utilisation_percent is None:
        return Utilised(None, row.why.get("utilisation_percent", NO_REASON))
    return Utilised(row.utilisation_percent * MILLI_OF_PERCENT)


def of_devices(devices: Iterable[Device], samples: Mapping[str, DeviceSample], now: int) -> Utilised:
    """The use of the healthy devices."""
    healthy = [device for device in devices if device.health is Health.HEALTHY]
    return total_use([of_device(samples.get(device.id), now) for device in healthy], "devices")


def total_use(parts: Sequence[Utilised], what: str = "shares") -> Utilised:
    """The sum; unknown while any part is unknown."""
    reasons = [part.why or NO_REASON for part in parts if part.milli is None]
    if not reasons:
        return Utilised(sum(part.milli or 0 for part in parts))
    if len(parts) == 1:
        return Utilised(None, reasons[0])
    return Utilised(None, f"{len(reasons)} of {len(parts)} {what} have no reading: {reasons[0]}")


def _why_outdated(row: DeviceSample | None, now: int) -> str | None:
    if row is None:
        return NOT_READ
    if row.at - now > AHEAD_MS:
        return f"its reading is dated {(row.at - now) // 1000} seconds ahead of this machine's clock"
    return f"it was last read {(now - row.at) // 1000} seconds ago" if now - row.at > STALE_MS else None
