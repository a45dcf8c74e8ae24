"""Real devices: what there is, how they are, and what is used of them, from the readings of the reader process.

What cannot be read is None with its reason, never 0; a device of which nothing is heard is neither idle nor broken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from ....core.facts import DeviceFact
from ....core.model import WHOLE_DEVICE, Allocation, Device, Health
from ....core.samples import KNOWN, UNKNOWN, DeviceSample
from ...protocol import DeviceUsers, Inventory
from ..host.servers import Server, Servers
from .device_shares import Owners, Shares, shares_of
from .protocol import away_of, machine
from .reader_client import Reader, Silence
from .reading import DeviceReading, Reading
from .xids import fatal

log = logging.getLogger(__name__)

FRESH_S = 15.0
FOREIGN_STEP = 10
"""Foreign use is told in steps, rounded up: every change of it may change the plan."""

UNNAMED = "NVML does not name this device"


class NvmlSampler:
    """Readings of real devices. What an event says of one is told until the store has it, which keeps it from then.

    ``servers`` has the servers of notebooks as the hub recorded them; root believes no variable of any other. None:
    nobody records them, and variables are believed.
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

    def probe(self) -> Reading | Silence:
        """A reading with what each device is able to. It waits for it."""
        return self._reader.probe()

    def inventory(self, node: str) -> Inventory | None:
        """This machine, with the devices that NVML names; none where there is no driver."""
        told = self._reader.latest(FRESH_S)
        if not isinstance(told, Reading):
            return None
        self._note(told)
        return (machine(node),), tuple(self._device(node, found) for found in told.devices)

    def facts(self) -> Sequence[DeviceFact]:
        """Foreign use, and devices that broke, as the last sample saw them and the store does not know yet."""
        return self._facts

    def sample(self, users: DeviceUsers, pids: Mapping[str, frozenset[int]], *, now: int) -> list[DeviceSample] | None:
        """One row per real device."""
        told = self._reader.take()
        if told is None:
            return None
        self._facts = []
        real = {device: held for device, held in users.items() if not device.simulated}
        if isinstance(told, Silence):
            return [_unread(device, held, told.why, now) for device, held in real.items()]
        self._note(told)
        found = {each.uuid: each for each in told.devices}
        workloads = {part.workload for held in real.values() for part in held}
        processes = [process for each in told.devices for process in each.processes or ()]
        strict = self._servers is not None and self._servers.are_all
        owners = Owners(pids, workloads, processes, servers=self._servers_of(workloads - pids.keys()), strict=strict)
        return [
            self._row(device, held, found.get(device.uuid or ""), owners, told.absent or UNNAMED, now)
            for device, held in real.items()
        ]

    def _servers_of(self, notebooks: Iterable[str]) -> Mapping[str, Server]:
        """The servers that are recorded; a notebook has one and the same for as long as it has a slice."""
        if self._servers is not None:
            found = {name: self._known.get(name) or self._servers.of(name) for name in notebooks}
            self._known = {name: server for name, server in found.items() if server is not None}
        return self._known

    def _row(
        self,
        device: Device,
        held: Sequence[Allocation],
        found: DeviceReading | None,
        owners: Owners,
        lacking: str,
        now: int,
    ) -> DeviceSample:
        if found is None:
            return _unread(device, held, lacking, now)
        shares = shares_of(found, sorted({part.workload for part in held}), owners, away_of(held))
        self._facts += [*self._news(device, found, shares), *self._faults(device, found)]
        self._tell_of_forgery(device, "" if shares.foreign_mib is None else shares.why.get("foreign", ""))
        return _row(device, found, shares, now)

    def _tell_of_forgery(self, device: Device, found: str) -> None:
        if found and found != self._forgeries.get(device.id):
            log.warning("device %s: %s; its use is foreign", device.id, found)
        self._forgeries[device.id] = found

    # --- health and foreign use -------------------------------------------------------------------------------------
    def _note(self, reading: Reading) -> None:
        """Remember the events of a reading; each reading is noted once."""
        if reading is self._seen:
            return
        if self._seen is not None and self._seen.loaded != reading.loaded:
            self._fatal.clear()
            self._stored.clear()
        for uuid, xid in reading.xids:
            log.warning("device %s tells of XID %d%s", uuid, xid, "" if fatal(xid) else ", which does not end it")
            if (trouble := fatal(xid)) is not None:
                self._fatal[uuid] = trouble
                self._stored = {device: of for device, of in self._stored.items() if of != uuid}
        for note in set(reading.notes) - set(self._seen.notes if self._seen else ()):
            log.warning("%s", note)
        self._seen = reading

    def _device(self, node: str, found: DeviceReading) -> Device:
        return Device(
            id=found.uuid,
            node=node,
            index=found.index,
            model=found.model,
            memory_mib=found.memory_mib,
            pool=None,
            uuid=found.uuid,
            health=Health.UNHEALTHY if found.trouble else Health.HEALTHY,
            trouble=found.trouble,
        )

    def _news(self, device: Device, found: DeviceReading, shares: Shares) -> list[DeviceFact]:
        """What the store does not know yet. That a device is well again is for the inventory to say."""
        trouble = found.trouble if device.health is Health.HEALTHY else None
        foreign = None if shares.foreign_mib is None else _milli(shares.foreign_mib, found.memory_mib)
        if foreign == device.foreign_milli:
            foreign = None
        if trouble is None and foreign is None:
            return []
        health = str(Health.UNHEALTHY) if trouble else None
        return [DeviceFact(device=device.id, health=health, trouble=trouble, foreign_milli=foreign)]

    def _faults(self, device: Device, found: DeviceReading) -> list[DeviceFact]:
        """An event that ended a device, until the store has it; an instance ends with its device.

        Of a device that is not well it is told under which driver it is seen now: a fault of an earlier one is over.
        """
        assert self._seen is not None, "a device was found in a reading"
        uuid, loaded = found.parent or found.uuid, self._seen.loaded
        fault = self._fatal.get(uuid)
        if fault is not None and device.trouble == fault:
            self._stored[device.id] = uuid
        if fault is not None and device.id not in self._stored:
            health = str(Health.UNHEALTHY) if device.health is Health.HEALTHY else None
            return [DeviceFact(device=device.id, health=health, trouble=fault, fault=fault, loaded=loaded)]
        is_unwell = device.health is Health.UNHEALTHY and found.trouble is None
        return [DeviceFact(device=device.id, loaded=loaded)] if is_unwell else []


def _milli(mib: int, memory_mib: int) -> int:
    """The part of a device that foreign memory is."""
    steps = -(-mib * WHOLE_DEVICE // (memory_mib * FOREIGN_STEP))
    return min(WHOLE_DEVICE, steps * FOREIGN_STEP)


# --- rows -----------------------------------------------------------------------------------------------------------
SHOWN = ("utilisation_percent", "memory_used_mib")


def _row(device: Device, found: DeviceReading, shares: Shares, now: int) -> DeviceSample:
    own = {"utilisation_percent": found.why.get("percent"), "memory_used_mib": found.why.get("memory_used_mib")}
    why = {figure: text for figure, text in own.items() if text is not None} | shares.why
    judged = list(shares.percent.values()) or [found.percent if found.parent is None else 0]
    return DeviceSample(
        node=device.node,
        device=device.id,
        at=now,
        utilisation_percent=found.percent,
        memory_used_mib=found.memory_used_mib,
        coverage_permille=UNKNOWN if None in judged else KNOWN,
        simulated=False,
        workloads=shares.percent,
        workload_memory_mib=shares.memory_mib,
        processes=shares.processes,
        foreign_mib=shares.foreign_mib,
        temperature_c=found.temperature_c,
        power_w=found.power_w,
        why=why,
    )


def _unread(device: Device, held: Sequence[Allocation], why: str, now: int) -> DeviceSample:
    workloads = sorted({part.workload for part in held})
    return DeviceSample(
        node=device.node,
        device=device.id,
        at=now,
        utilisation_percent=None,
        memory_used_mib=None,
        coverage_permille=UNKNOWN,
        simulated=False,
        workloads=dict.fromkeys(workloads),
        workload_memory_mib=dict.fromkeys(workloads),
        why=dict.fromkeys((*SHOWN, *workloads), why),
    )
