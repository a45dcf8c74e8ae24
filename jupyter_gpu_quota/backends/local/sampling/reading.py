"""One reading of all devices of a machine: values, or None with the reason.

It crosses a pipe as one line of JSON. An impossible figure (4000 percent, more memory used than there is) is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from ....core.samples import Place

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MIB = 1 << 20
MAX_MEMORY_MIB = 16 << 20
"""16 TiB: no device has as much."""

FIRST_READING = "a MIG instance is measured between two readings, and this is the first"

MAX_TEMPERATURE_C, MAX_POWER_W = 200, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that uses a device. ``percent`` is the use of its busiest engine since the previous reading.

    ``used_us``: the latest possible end of its use, in microseconds since 1970 UTC; None: unknown. ``lineage`` is the
    process and its parents up to the first one, each with its start in clock ticks; it is empty where /proc does not
    show the process. ``namespace`` is the pid namespace of all of them, "" where it cannot be read; if they are in
    several, ``places`` has each with its namespace and its number there. ``claim`` is the workload that its variables,
    or those of a parent, name. ``hidden``: its workload is unknown, because its variables cannot be read.
    ``inner_pid`` is its number in its own container. ``graphics_only``: it is listed as a graphics process only.
    """

    pid: int
    memory_mib: int | None
    percent: int | None
    used_us: int | None = None
    lineage: tuple[tuple[int, int], ...] = ()
    namespace: str = ""
    places: tuple[Place, ...] = ()
    claim: str | None = None
    hidden: bool = False
    cgroup: str | None = None
    inner_pid: int | None = None
    graphics_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device, or one MIG instance, whose physical device is then ``parent``.

    ``percent`` of a device is that of a short time before the reading; of an instance, of all the time since the
    previous reading. ``processes`` None: unknown. ``unlisted_mib`` is the used memory of the device that NVML
    attributes to no process; ``unlisted`` are processes that used it since the previous reading and are not listed.
    ``activity_failed``: the use of each process could not be read this time, though the device may have it.
    ``trouble``: the device reports that it cannot be used. ``why`` has the reason of each figure that is None,
    ``unavailable`` that of each capability that was probed, empty where the device has it; ``unprobed`` are those of
    them, and "processes", whose answer may be another one later.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    memory_used_mib: int | None = None
    percent: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unlisted_mib: int | None = None
    unlisted: tuple[int, ...] = ()
    activity_failed: bool = False
    parent: str | None = None
    mps: bool = False
    trouble: str | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    unprobed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All devices at one instant. ``absent``: why this machine has no GPU. ``failure``: why no device could be read.

    ``loaded`` changes when the driver is loaded again. ``xids`` are events since the previous reading, by device.
    ``notes`` are the reasons of devices that were left out.
    """

    devices: tuple[DeviceReading, ...]
    driver: str | None = None
    loaded: str = ""
    xids: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    absent: str | None = None
    failure: str | None = None

    def to_line(self) -> bytes:
        """One line of JSON."""
        return json.dumps(_plain(self), default=_plain, separators=(",", ":")).encode() + b"\n"


def _plain(value: Reading | DeviceReading | GpuProcess) -> dict[str, Any]:
    """The fields of a value; json calls this again for nested values."""
    return {name: getattr(value, name) for name in value.__slots__}


def reading_of(line: bytes) -> Reading:
    """The reading in a line. Raises ValueError for any other line."""
    return _adapter().validate_json(line)


@cache
def _adapter() -> TypeAdapter[Reading]:
    from pydantic import TypeAdapter  # the reader process only writes readings, and does not load it

    return TypeAdapter(Reading)


def impossible(figure: str, value: int, memory_mib: int) -> str | None:
    """Why a figure of a device with this memory is impossible; None if it is possible."""
    most = {
        "percent": 100, "memory_used_mib": memory_mib, "memory_mib": MAX_MEMORY_MIB, "temperature_c": MAX_TEMPERATURE_C,
        "power_w": MAX_POWER_W,
    }[figure]  # fmt: skip
    return None if 0 <= value <= most else f"NVML reports {value}, which is impossible"
