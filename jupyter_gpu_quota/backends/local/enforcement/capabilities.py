"""Probes how shares of this machine's devices can be enforced, and keeps the answer for a while."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ....core.enforcement import EnforcementOffer
from ....core.model import Device
from ...protocol import SIMULATED, Capabilities
from ..sampling.machine import probe
from ..sampling.reader_client import Silence
from ..sampling.reading import DeviceReading, Reading
from .cgroup import Cgroups
from .labels import offer
from .protocol import Machine

PROBE_EVERY_S = 600.0


class CapabilityProbe:
    """Asks the driver, at most every ten minutes. ``clock`` is in seconds, ``now`` in milliseconds since 1970.

    ``mps`` are the pipe directories of MPS daemons by project. Threads may share it.
    """

    def __init__(
        self, cgroups: Cgroups, mps: Mapping[str, str], ask: Callable[[], Reading | Silence] = probe,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:  # fmt: skip
        self._cgroups, self.mps, self._ask, self._clock, self._now = cgroups, mps, ask, clock, now
        self._known: tuple[float, Reading] | None = None
        self._read_at = 0
        self._turn = threading.Lock()

    def of(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """The best enforcement on each device; ``read_at`` is now where nothing had to be read, or could be."""
        told = self._told() if any(not device.simulated for device in devices) else None
        offers = tuple(self._offer(device, told, gpu_milli, project) for device in devices)
        return Capabilities(offers=offers, read_at=self._read_at if isinstance(told, Reading) else self._now())

    def _offer(
        self, device: Device, told: Reading | Silence | None, gpu_milli: int, project: str | None
    ) -> EnforcementOffer:
        if device.simulated:
            return EnforcementOffer(device=device.id, why=SIMULATED)
        found = _reading_of(device, told)
        if isinstance(found, str):
            return EnforcementOffer(device=device.id, why=found, unsure=True)
        assert isinstance(told, Reading)
        no_cgroups, root = self._cgroups.why_no_limits, os.geteuid() == 0
        machine = Machine(driver=told.driver, no_cgroups=no_cgroups, root=root, mps=self.mps)
        return offer(found, machine, gpu_milli, project or "", notebook=project is None)

    def _told(self) -> Reading | Silence:
        with self._turn:
            if self._known is None or self._clock() - self._known[0] >= PROBE_EVERY_S:
                told = self._ask()
                if isinstance(told, Silence):
                    return told
                self._known, self._read_at = (self._clock(), told), self._now()
            return self._known[1]


def _reading_of(device: Device, told: Reading | Silence | None) -> DeviceReading | str:
    """The reading of a device, or why there is none."""
    if not isinstance(told, Reading):
        return "its devices cannot be read" if told is None else f"its devices cannot be read: {told.why}"
    found = next((each for each in told.devices if each.uuid == device.uuid), None)
    return found or told.absent or "NVML does not name it"
