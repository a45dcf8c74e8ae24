"""One reading of all devices of a machine, as the reader process tells it: values, or None and why.

It crosses a pipe as one line of JSON. A figure that cannot be (4000 percent, more memory used than there is) is
unknown like one that was not told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....core.samples import Place

MIB = 1 << 20
MOST_MIB = 16 << 20
"""16 TiB: no device has as much."""

HOTTEST_C, MOST_W = 200, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that uses a device. ``percent`` is its busiest engine since the reading before.

    ``used_us``: until when it did at the latest, in microseconds since 1970 UTC; None where that is not told.
    ``lineage`` is itself and its parents up to the first process, each with its start in clock ticks; it is empty
    where /proc does not show the process. ``namespace`` is that of them all, "" where it may not be looked up; where
    they are of several, ``places`` has each with its namespace and its number there. ``claim`` is the workload that its
    variables, or those of a parent, name. ``hidden``: whose it is cannot be told, because its variables cannot be read.
    ``inner_pid`` is its number in its own container.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device, or one MIG instance, whose physical device is then ``parent``.

    ``held_mib`` is the memory that processes hold by NVML's account of the device, the driver's own not counted.
    ``processes`` None: not told. ``trouble``: the device itself says that it cannot be used. ``why`` has a sentence
    for each figure that is None; ``able`` one for each thing that was probed, empty where it can be had.
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
    held_mib: int | None = None
    parent: str | None = None
    mps: bool = False
    trouble: str | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    able: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All devices at one moment. ``absent``: there is no GPU here, and why.

    ``trouble``: nothing could be read, and why. ``loaded`` is another text after the driver was loaded anew. ``xids``
    are events since the reading before, by device. ``notes`` are of devices that had to be left out.
    """

    devices: tuple[DeviceReading, ...] = ()
    driver: str | None = None
    loaded: str = ""
    xids: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    absent: str | None = None
    trouble: str | None = None

    def to_line(self) -> bytes:
        """One line of JSON."""
        return json.dumps(_plain(self), default=_plain, separators=(",", ":")).encode() + b"\n"


def _plain(value: Reading | DeviceReading | GpuProcess) -> dict[str, Any]:
    """The fields of a value as they are: json asks again for those within."""
    return {name: getattr(value, name) for name in value.__slots__}


def reading_of(line: bytes) -> Reading:
    """The reading that a line tells. Raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    raw = json.loads(line)
    if not isinstance(raw, dict):
        raise TypeError(f"a reading is an object, not {type(raw).__name__}")
    devices = tuple(map(_device, raw.pop("devices")))
    xids = tuple((str(uuid), int(xid)) for uuid, xid in raw.pop("xids"))
    return Reading(devices=devices, xids=xids, notes=tuple(raw.pop("notes")), **raw)


def _device(raw: dict[str, Any]) -> DeviceReading:
    processes = raw.pop("processes")
    return DeviceReading(processes=None if processes is None else tuple(map(_process, processes)), **raw)


def _process(raw: dict[str, Any]) -> GpuProcess:
    lineage = tuple((int(pid), int(started)) for pid, started in raw.pop("lineage"))
    places = tuple((str(space), int(pid), int(started)) for space, pid, started in raw.pop("places"))
    return GpuProcess(lineage=lineage, places=places, **raw)


def cannot_be(figure: str, value: int, memory_mib: int) -> str | None:
    """Why a figure of a device of so much memory cannot be true; None if it can."""
    most = {
        "percent": 100, "memory_used_mib": memory_mib, "memory_mib": MOST_MIB, "temperature_c": HOTTEST_C,
        "power_w": MOST_W,
    }[figure]  # fmt: skip
    return None if 0 <= value <= most else f"NVML tells {value}, which cannot be"
