"""The sampler of this machine, and one look at its devices for who can wait for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.model import Device
from ..host.servers import Servers
from .nvml_sampler import NvmlSampler
from .protocol import MachineSampler
from .reader_client import Silence
from .reading import Reading
from .simulated import SimulatedSampler


def open_sampler(
    simulated_devices: Sequence[Mapping[str, Any]], state_dir: str | os.PathLike[str] | None = None
) -> MachineSampler:
    """The sampler that belongs to these settings: simulated where devices are. Close it when done.

    ``state_dir`` is where the hub records the servers of notebooks.
    """
    servers = None if state_dir is None else Servers(state_dir)
    return SimulatedSampler(simulated_devices) if simulated_devices else NvmlSampler(servers=servers)


def probe() -> Reading | Silence:
    """Read the real devices and what they are able to. It waits, some seconds at most where the driver is well."""
    sampler = NvmlSampler()
    try:
        return sampler.probe()
    finally:
        sampler.close()


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
