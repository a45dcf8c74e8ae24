"""Real devices, their health and their use, from the readings of the reader process.

A figure that cannot be read is None with its reason, never 0; a device that was not read is neither idle nor broken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from ....core.facts import DeviceFact
from ....core.model import WHOLE_DEVICE, Allocation, Device, Health
from ....core.samples import KNOWN, UNKNOWN, WORKLOADS, DeviceSample
from ...protocol import DeviceUsers, Inventory
from ..host.servers import Server, Servers
from .device_shares import Owners, Shares, shares_of
from .node import machine, workloads_that_lent
from .reader_client import NoReading, Reader
from .reading import DeviceReading, Reading
from .xids import fatal

log = logging.getLogger(__name__)

FRESH_S = 15.0
FOREIGN_STEP = 10
"""Foreign use is rounded up to such steps, because each reported change may change the plan."""

UNLISTED = "NVML does not list this device, or could not read it; the log of the service has the reason then"


class NvmlSampler:
    """Samples of real devices. A fatal event of a device is reported until the store has it.

    ``servers`` has the servers of notebooks as the hub recorded them; where they are complete, the variables of other
    processes are not trusted. None: no server is recorded, and variables are trusted.
    """

    def __init__(self, reader: Reader | None = None, servers: Servers | None = None) -> None:
        self._reader = reader or Reader()
        self._servers, self._known = servers, dict[str, Server]()
        self._forgeries: dict[str, str] = {}
        self._seen: Reading | None = None
        self._fatal: dict[str, str] = {}
        self._stored: dict[str, str] = {}
        self._facts: list[DeviceFact] = []

    def close(self) -> None:
        """End the reader process."""
        self._reader.close()

    def reader_pid(self) -> int | None:
        """The reader process; None while there is none."""
        return self._reader.pid

    def probe(self) -> Reading | NoReading:
        """A reading with the capabilities of each device. It waits."""
        return self._reader.probe()

    def inventory(self, node: str) -> Inventory | None:
        """This machine, with the devices that NVML lists; none where there is no driver."""
        reading = self._reader.latest(FRESH_S)
        if not isinstance(reading, Reading):
            return None
        self._note(reading)
        return Inventory((machine(node),), tuple(_device(node, found) for found in reading.devices))

    def facts(self) -> Sequence[DeviceFact]:
        """Foreign use and broken devices of the last sample that the store does not have yet."""
        return self._facts

    def sample(self, users: DeviceUsers, pids: Mapping[str, frozenset[int]], *, now: int) -> list[DeviceSample] | None:
        """One row per real device."""
        reading = self._reader.take()
        if reading is None:
            return None
        self._facts = []
        real = {device: users_of for device, users_of in users.items() if not device.simulated}
        if isinstance(reading, NoReading):
            return [_unread(device, users_of, reading.why, now) for device, users_of in real.items()]
        self._note(reading)
        found = {each.uuid: each for each in reading.devices}
        workloads = {part.workload for users_of in real.values() for part in users_of}
        processes = [process for each in reading.devices for process in each.processes or ()]
        strict = self._servers is not None and self._servers.is_complete
        owners = Owners(pids, workloads, processes, servers=self._servers_of(workloads - pids.keys()), strict=strict)
        return [
            self._row(device, users_of, found[device.uuid or ""], owners, now)
            if device.uuid in found
            else _unread(device, users_of, reading.absent or UNLISTED, now)
            for device, users_of in real.items()
        ]

    def _servers_of(self, notebooks: Iterable[str]) -> Mapping[str, Server]:
        """The recorded servers; a notebook has the same server for as long as it has a slice."""
        if self._servers is not None:
            found = {name: self._known.get(name) or self._servers.of(name) for name in notebooks}
            self._known = {name: server for name, server in found.items() if server is not None}
        return self._known

    def _row(
        self, device: Device, users: Sequence[Allocation], found: DeviceReading, owners: Owners, now: int
    ) -> DeviceSample:
        shares = shares_of(found, sorted({part.workload for part in users}), owners, workloads_that_lent(users))
        self._facts += [*self._changes(device, found, shares), *self._faults(device, found)]
        if shares.forged and shares.forged != self._forgeries.get(device.id):
            log.warning("device %s: %s; its use is foreign", device.id, shares.forged)
        self._forgeries[device.id] = shares.forged
        return _row(device, found, shares, now)

    # --- health and foreign use -------------------------------------------------------------------------------------
    def _note(self, reading: Reading) -> None:
        """Remember the events of a reading, once."""
        if reading is self._seen:
            return
        if self._seen is not None and self._seen.loaded != reading.loaded:
            self._fatal.clear()
            self._stored.clear()
        for uuid, xid in reading.xids:
            log.warning("device %s reports XID %d%s", uuid, xid, "" if fatal(xid) else ", which is not fatal")
            if (trouble := fatal(xid)) is not None:
                self._fatal[uuid] = trouble
                self._stored = {device: of for device, of in self._stored.items() if of != uuid}
        for note in set(reading.notes) - set(self._seen.notes if self._seen else ()):
            log.warning("%s", note)
        self._seen = reading

    def _changes(self, device: Device, found: DeviceReading, shares: Shares) -> list[DeviceFact]:
        """Facts that the store does not have yet. The inventory reports a device that is healthy again."""
        trouble = found.trouble if device.health is Health.HEALTHY else None
        milli = _foreign_milli(shares, found.memory_mib, device.foreign_milli)
        foreign = None if milli == device.foreign_milli else milli
        if trouble is None and foreign is None:
            return []
        health = str(Health.UNHEALTHY) if trouble else None
        return [DeviceFact(device=device.id, health=health, trouble=trouble, foreign_milli=foreign)]

    def _faults(self, device: Device, found: DeviceReading) -> list[DeviceFact]:
        """A fatal event of a device, or of the device of an instance, until the store has it.

        For an unhealthy device it reports the driver that is loaded now: a fault under an earlier one is over.
        """
        assert self._seen is not None, "a device was found in a reading"
        uuid, loaded = found.parent or found.uuid, self._seen.loaded
        fault = self._fatal.get(uuid)
        if fault is not None and device.trouble == fault:
            self._stored[device.id] = uuid
        if fault is not None and device.id not in self._stored:
            health = str(Health.UNHEALTHY) if device.health is Health.HEALTHY else None
            return [DeviceFact(device=device.id, health=health, trouble=fault, fault=fault, loaded=loaded)]
        is_unhealthy = device.health is Health.UNHEALTHY and found.trouble is None
        return [DeviceFact(device=device.id, loaded=loaded)] if is_unhealthy else []


def _foreign_milli(shares: Shares, memory_mib: int, before: int) -> int:
    """Foreign memory as a part of a device. While it is unknown, it is as before, within its bounds."""
    most = WHOLE_DEVICE if shares.foreign_most_mib is None else _milli(shares.foreign_most_mib, memory_mib)
    return max(_milli(shares.foreign_least_mib, memory_mib), min(before, most))


def _milli(mib: int, memory_mib: int) -> int:
    """Foreign memory as a part of a device."""
    steps = -(-mib * WHOLE_DEVICE // (memory_mib * FOREIGN_STEP))
    return min(WHOLE_DEVICE, steps * FOREIGN_STEP)


def _device(node: str, found: DeviceReading) -> Device:
    return Device(
        id=found.uuid, node=node, index=found.index, model=found.model, memory_mib=found.memory_mib, pool=None,
        uuid=found.uuid, health=Health.UNHEALTHY if found.trouble else Health.HEALTHY, trouble=found.trouble,
    )  # fmt: skip


# --- rows -----------------------------------------------------------------------------------------------------------
SHOWN = ("utilisation_percent", "memory_used_mib")


def _row(device: Device, found: DeviceReading, shares: Shares, now: int) -> DeviceSample:
    own = {
        "utilisation_percent": found.why.get("percent"), "memory_used_mib": found.why.get("memory_used_mib"),
        WORKLOADS: found.why.get(WORKLOADS),
    }  # fmt: skip
    why = {figure: text for figure, text in own.items() if text is not None} | shares.why
    is_read = found.percent is not None or (found.parent is not None and found.processes is not None)
    is_known = None not in shares.percent.values() if shares.percent else is_read
    return DeviceSample(
        node=device.node, device=device.id, at=now, simulated=False, utilisation_percent=found.percent,
        memory_used_mib=found.memory_used_mib, coverage_permille=KNOWN if is_known else UNKNOWN,
        workloads=shares.percent, workload_memory_mib=shares.memory_mib, processes=shares.processes,
        foreign_mib=shares.foreign_mib, temperature_c=found.temperature_c, power_w=found.power_w, why=why,
    )  # fmt: skip


def _unread(device: Device, users: Sequence[Allocation], why: str, now: int) -> DeviceSample:
    workloads = sorted({part.workload for part in users})
    return DeviceSample(
        node=device.node, device=device.id, at=now, utilisation_percent=None, memory_used_mib=None,
        coverage_permille=UNKNOWN, simulated=False, workloads=dict.fromkeys(workloads),
        workload_memory_mib=dict.fromkeys(workloads), why=dict.fromkeys((*SHOWN, *workloads), why),
    )  # fmt: skip
