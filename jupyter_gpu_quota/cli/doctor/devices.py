"""``doctor``'s checks of GPUs: the devices, their readable figures, the available enforcement."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from ...backends.local.enforcement.cgroup import Cgroups
from ...backends.local.enforcement.mechanisms import MECHANISMS, Machine
from ...backends.local.sampling.machine import probe
from ...backends.local.sampling.reader_client import NoReading
from ...backends.local.sampling.reading import FIRST_READING, DeviceReading, Reading
from ...core.amounts import counted
from ...settings import GPUQuota
from .hub_settings import UNKNOWN, KnownSettings
from .probes import Ability, Result, ok, skip, warn

READABLE = {
    "memory": "memory_used_mib",
    "utilisation": "percent",
    "processes": "processes",
    "use per process": "activity",
    "temperature": "temperature_c",
    "power": "power_w",
    "memory errors": "ecc",
    "fatal events (XID)": "xids",
    "recovery after a fault": "recovery",
}
"""Readable figures by name, and the field of a reading whose reason explains a missing one."""


def gpus(known: KnownSettings) -> Result:
    """The devices of the scheduler; real ones are read once, in a separate process."""
    if known.config.simulated_devices:
        count = sum(int(str(kind.get("count", 1))) for kind in known.config.simulated_devices)
        return warn(
            "gpus", counted(count, "simulated device"), "remove simulated_devices from the settings to use real ones"
        )
    reading = probe()
    if known.complete or isinstance(reading, NoReading) or reading.devices:
        return gpus_of(reading, known.config)
    return skip(
        "gpus", f"no GPU here ({_absence_text(reading)}); it is unknown whether devices are simulated: {UNKNOWN}"
    )


def _absence_text(reading: Reading) -> str:
    return reading.absent or "; ".join(reading.notes) or "NVML lists none"


def gpus_of(reading: Reading | NoReading, settings: GPUQuota) -> Result:
    """The result for a reading."""
    if isinstance(reading, NoReading):
        advice = "run nvidia-smi for the cause; until then no new work starts here, and all use is unknown"
        return warn("gpus", f"the devices cannot be read: {reading.why}", advice)
    if not reading.devices:
        advice = "install the NVIDIA driver, or set c.GPUQuota.simulated_devices to test without a GPU"
        return warn("gpus", f"no GPU: {_absence_text(reading)}", advice)
    names = ", ".join(f"{device.model} ({device.memory_mib} MiB)" for device in reading.devices)
    faults = [f"{device.uuid}: {device.trouble}" for device in reading.devices if device.trouble]
    found = "; ".join([f"{names}; driver {reading.driver}", *reading.notes, *faults])
    advice = "run nvidia-smi for the cause; no work starts on a device that is left out or unhealthy"
    result = warn("gpus", found, advice) if reading.notes or faults else ok("gpus", found)
    return replace(result, abilities=tuple(abilities(reading, settings)))


def abilities(reading: Reading, settings: GPUQuota) -> Iterator[Ability]:
    """Each readable figure and each enforcement mechanism, once for all devices with the same answer."""
    for what, figure in READABLE.items():
        yield from _group_by_reason("read", what, reading, partial(_why_unread, figure))
    lacking = Cgroups(settings.state_dir, within=settings.cgroup).why_no_limits
    machine = Machine(driver=reading.driver, why_no_cgroups=lacking, root=os.geteuid() == 0, mps=settings.mps)
    for each in MECHANISMS:
        yield from _group_by_reason("enforce", each.name, reading, partial(each.probe, machine))


def _group_by_reason(
    kind: Literal["read", "enforce"], what: str, reading: Reading, why: Callable[[DeviceReading], str]
) -> Iterator[Ability]:
    groups = dict[str, list[str]]()
    for device in reading.devices:
        groups.setdefault(why(device), []).append(device.uuid)
    for why_not, devices in groups.items():
        yield Ability(kind=kind, what=what, devices=tuple(devices), why_not=why_not)


def _why_unread(figure: str, device: DeviceReading) -> str:
    why = device.why.get(figure, "")
    if why == FIRST_READING:  # the next reading will have it
        return ""
    if figure == "activity" and device.mps:
        return "its processes share the device by MPS, which has no figures per process"
    if figure != "activity" or device.parent is None:
        return why
    if _why_unread("percent", device):
        return f"{why}, and this one has no metrics: it is idle only while no process is on it"
    return f"{why}; the metrics of the instance show whether it is idle"


def table(found: Sequence[Ability]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Columns and rows of the printed table."""
    everywhere = {device for each in found for device in each.devices}
    rows = [
        (
            "can be read" if each.kind == "read" else "could enforce",
            each.what,
            "all" if everywhere <= set(each.devices) else ", ".join(each.devices),
            "yes" if not each.why_not else f"no: {each.why_not}",
        )
        for each in found
    ]
    return ("", "WHAT", "DEVICES", "AVAILABLE"), rows
