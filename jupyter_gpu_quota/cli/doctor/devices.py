"""What ``doctor`` finds of the GPUs: which there are, what can be read of each, what could hold shares of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from ...backends.local.enforcement.cgroup import Cgroups
from ...backends.local.enforcement.labels import MECHANISMS
from ...backends.local.enforcement.protocol import Machine
from ...backends.local.sampling.machine import probe
from ...backends.local.sampling.reader_client import Silence
from ...backends.local.sampling.reading import DeviceReading, Reading
from ...settings import GPUQuota
from .hub_settings import UNKNOWN, Known
from .probes import Ability, Finding, ok, skip, warn

READ = {
    "memory": "memory_used_mib",
    "utilisation": "percent",
    "processes": "processes",
    "use per process": "activity",
    "temperature": "temperature_c",
    "power": "power_w",
    "memory errors": "ecc",
    "fatal events (XID)": "xids",
    "what the driver wants after a fault": "recovery",
}
"""What can be read, and the figure whose reason says why not."""


def gpus(known: Known) -> Finding:
    """The devices that would be given out; the real ones are read once, in a process of its own."""
    if known.config.simulated_devices:
        count = sum(int(str(kind.get("count", 1))) for kind in known.config.simulated_devices)
        return warn("gpus", f"{count} simulated devices", "take simulated_devices out of the settings to use real ones")
    told = probe()
    if known.whole or isinstance(told, Silence) or told.devices:
        return gpus_of(told, known.config)
    return skip("gpus", f"no GPU here ({_absence(told)}); whether devices are simulated is not known: {UNKNOWN}")


def _absence(told: Reading) -> str:
    return told.absent or "; ".join(told.notes) or "NVML names none"


def gpus_of(told: Reading | Silence, settings: GPUQuota) -> Finding:
    """What a reading says there is."""
    if isinstance(told, Silence):
        advice = "see what nvidia-smi says; until then nothing new is started here, and all use is unknown"
        return warn("gpus", f"the devices cannot be read: {told.why}", advice)
    if not told.devices:
        advice = "install the NVIDIA driver, or set c.GPUQuota.simulated_devices to try the queue without a GPU"
        return warn("gpus", f"no GPU: {_absence(told)}", advice)
    names = ", ".join(f"{device.model} ({device.memory_mib} MiB)" for device in told.devices)
    return replace(ok("gpus", f"{names}; driver {told.driver}"), abilities=tuple(abilities(told, settings)))


def abilities(told: Reading, settings: GPUQuota) -> Iterator[Ability]:
    """Each thing once for all devices that answer alike."""
    for what, figure in READ.items():
        yield from _grouped("read", what, told, partial(_why_unread, figure))
    for what, why in _mechanisms(told.driver, settings).items():
        yield from _grouped("hold", what, told, why)


def _grouped(
    kind: Literal["read", "hold"], what: str, told: Reading, why: Callable[[DeviceReading], str]
) -> Iterator[Ability]:
    groups = dict[str, list[str]]()
    for device in told.devices:
        groups.setdefault(why(device), []).append(device.uuid)
    for why_not, devices in groups.items():
        yield Ability(kind=kind, what=what, devices=tuple(devices), why_not=why_not)


def _why_unread(figure: str, device: DeviceReading) -> str:
    if figure == "activity" and device.mps:
        return "its processes share the device by MPS, which tells no figures of theirs"
    return device.why.get(figure, "")


def _mechanisms(driver: str | None, settings: GPUQuota) -> Mapping[str, Callable[[DeviceReading], str]]:
    """What could hold a share to its part, strongest first."""
    lacking = Cgroups(settings.state_dir, within=settings.cgroup).why_no_limits
    machine = Machine(driver=driver, no_cgroups=lacking, root=os.geteuid() == 0, mps=settings.mps)
    return {each.name: partial(each.probe, machine=machine) for each in MECHANISMS}


def table(found: Sequence[Ability]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Columns and rows of the table as it is printed."""
    everywhere = {device for each in found for device in each.devices}
    rows = [
        (
            "can be read" if each.kind == "read" else "could hold a share",
            each.what,
            "all" if everywhere <= set(each.devices) else ", ".join(each.devices),
            "yes" if not each.why_not else f"no: {each.why_not}",
        )
        for each in found
    ]
    return ("", "WHAT", "DEVICES", "AVAILABLE"), rows
