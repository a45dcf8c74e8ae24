"""Opens the sampler of this machine, and reads its devices once for callers that can wait."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.model import Device
from ..host.servers import Servers
from .nvml_sampler import NvmlSampler
from .reader_client import NoReading, Reader
from .reading import Reading
from .simulated import SimulatedSampler

MachineSampler = NvmlSampler | SimulatedSampler


def open_sampler(
    simulated_devices: Sequence[Mapping[str, Any]], state_dir: str | os.PathLike[str] | None = None
) -> MachineSampler:
    """The sampler for simulated devices, or for the real ones where there are none. Close it when done.

    The hub records the servers of notebooks in ``state_dir``.
    """
    servers = None if state_dir is None else Servers(state_dir)
    return SimulatedSampler(simulated_devices) if simulated_devices else NvmlSampler(servers=servers)


class Probe:
    """Reads the real devices and their capabilities. It waits; with a working driver a few seconds at most.

    The reader process ends after each call. While one that was killed hangs in the kernel no other one is started.
    """

    def __init__(self, reader: Reader | None = None) -> None:
        self._reader = reader or Reader()

    def __call__(self) -> Reading | NoReading:
        """One reading, or why there is none."""
        try:
            return self._reader.probe()
        finally:
            self._reader.close()


def probe() -> Reading | NoReading:
    """Read the real devices and their capabilities once, as ``Probe`` does."""
    return Probe()()


def devices_here(node: str, simulated_devices: Sequence[Mapping[str, Any]]) -> tuple[Device, ...]:
    """The devices of this machine; none where they cannot be read. It waits like ``probe``."""
    sampler = open_sampler(simulated_devices)
    try:
        if isinstance(sampler, NvmlSampler):
            sampler.probe()
        found = sampler.inventory(node)
    finally:
        sampler.close()
    return () if found is None else found[1]
