"""Readings of devices: from NVML (pynvml is imported here only), or simulated from the CPU use of their holders.

What cannot be read is None, never 0. A simulated reading says that it is one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .core.model import Allocation, Device, Node
from .executors.process_tree import process
from .store.protocol import SampleRow

log = logging.getLogger(__name__)

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
KNOWN, UNKNOWN = 1000, 0

Holders = Mapping[Device, Sequence[Allocation]]
"""Each device with the allocations on it; a device that nobody holds has none."""


class Sampler(Protocol):
    """Reads every device once."""

    def sample(self, holders: Holders, pids: Mapping[str, frozenset[int]], *, now: int) -> list[SampleRow]:
        """One row per device. ``pids`` are live processes by workload; a workload that is missing is unknown."""


class SimulatedSampler:
    """Utilisation of simulated devices: one busy core of a holder's processes is a busy device.

    A holder whose processes are not known, or were never read before, is unknown; so is then its device.
    """

    def __init__(self) -> None:
        self._read_at: int | None = None
        self._ticks: dict[int, tuple[int, int]] = {}

    def sample(self, holders: Holders, pids: Mapping[str, frozenset[int]], *, now: int) -> list[SampleRow]:
        """One row per simulated device."""
        before, self._ticks = self._ticks, dict(_cpu_ticks(pids))
        elapsed_ms = None if self._read_at is None else now - self._read_at
        self._read_at = now
        use = {workload: self._percent(found, before, elapsed_ms) for workload, found in pids.items()}
        return [_simulated_row(device, held, use, now) for device, held in holders.items() if device.simulated]

    def _percent(
        self, pids: Iterable[int], before: Mapping[int, tuple[int, int]], elapsed_ms: int | None
    ) -> int | None:
        """Percent of one core since the last reading; a process that is new counts from its start."""
        read = [pid for pid in pids if pid in self._ticks]
        known = any(pid in before and before[pid][0] == self._ticks[pid][0] for pid in read)
        if not elapsed_ms or elapsed_ms < 0 or not known:
            return None
        used = sum(self._ticks[pid][1] - _earlier(before, pid, self._ticks[pid][0]) for pid in read)
        return min(100, round(used * 100_000 / (TICKS_PER_S * elapsed_ms)))


def _earlier(before: Mapping[int, tuple[int, int]], pid: int, started: int) -> int:
    """The ticks this same process had at the last reading; none if it is another one by now."""
    known = before.get(pid)
    return known[1] if known is not None and known[0] == started else 0


def _cpu_ticks(pids: Mapping[str, frozenset[int]]) -> Iterator[tuple[int, tuple[int, int]]]:
    for pid in frozenset().union(*pids.values()):
        found = process(pid)
        if found is not None:
            yield pid, (found.started, found.cpu_ticks)


def _simulated_row(device: Device, held: Sequence[Allocation], use: Mapping[str, int | None], now: int) -> SampleRow:
    by_workload = {allocation.workload: use.get(allocation.workload) for allocation in held}
    read = [percent for percent in by_workload.values() if percent is not None]
    whole = len(read) == len(by_workload)
    return SampleRow(
        node=device.node,
        device=device.id,
        at=now,
        utilisation_percent=min(100, sum(read)) if whole else None,
        memory_used_mib=None,
        coverage_permille=KNOWN if whole else UNKNOWN,
        simulated=True,
        workloads=by_workload,
    )


class NvmlSampler:
    """Utilisation and memory of real devices. Several holders share one reading, so none of them gets its own."""

    def sample(self, holders: Holders, pids: Mapping[str, frozenset[int]], *, now: int) -> list[SampleRow]:
        """One row per real device, with None for what NVML does not tell."""
        with nvml() as library:
            return [_real_row(library, device, held, now) for device, held in holders.items() if not device.simulated]


def _real_row(library: Any, device: Device, held: Sequence[Allocation], now: int) -> SampleRow:
    handle = _told(library, "nvmlDeviceGetHandleByUUID", device.uuid)
    rates = _told(library, "nvmlDeviceGetUtilizationRates", handle)
    memory = _told(library, "nvmlDeviceGetMemoryInfo", handle)
    workloads = {allocation.workload for allocation in held}
    percent = None if rates is None else int(rates.gpu)
    return SampleRow(
        node=device.node,
        device=device.id,
        at=now,
        utilisation_percent=percent,
        memory_used_mib=None if memory is None else int(memory.used) // MIB,
        coverage_permille=UNKNOWN if percent is None else KNOWN,
        simulated=False,
        workloads={workload: percent if len(workloads) == 1 else None for workload in sorted(workloads)},
    )


def _told(library: Any, call: str, *arguments: Any) -> Any:
    """What one NVML call answers; None for any error, and for a question about what is already unknown."""
    if library is None or None in arguments:
        return None
    try:
        return getattr(library, call)(*arguments)
    except library.NVMLError as error:
        log.debug("%s is unknown: %s", call, error)
        return None


@contextmanager
def nvml() -> Iterator[Any]:
    """The NVML library between its start and its end; None, told in the log, where it cannot be had."""
    try:
        import pynvml
    except ImportError:
        log.info("nvidia-ml-py is not installed, so no GPU is looked for")
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("NVML finds no GPU on this machine: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def open_sampler(simulated_devices: Sequence[Mapping[str, Any]]) -> Sampler:
    """The sampler that belongs to these settings: simulated where devices are."""
    return SimulatedSampler() if simulated_devices else NvmlSampler()


# --- what there is ------------------------------------------------------------------------------------------------
def inventory(node: str, simulated_devices: Sequence[Mapping[str, Any]]) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
    """This machine, and its devices: the simulated ones of the settings if there are any, else the real ones."""
    machine = Node(
        id=node,
        name=node,
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
    )
    devices = simulated(node, simulated_devices) if simulated_devices else real_devices(node)
    return (machine,), tuple(devices)


def simulated(node: str, settings: Sequence[Mapping[str, Any]]) -> list[Device]:
    """Simulated devices, numbered through. ``settings``: ``[{"model", "memory_mib", "count"}]``."""
    kinds = [kind for kind in settings for _ in range(int(kind.get("count", 1)))]
    return [
        Device(
            id=f"{node}-sim-{index}",
            node=node,
            index=index,
            model=str(kind["model"]),
            memory_mib=int(kind["memory_mib"]),
            pool=None,
            uuid=f"{node}-sim-{index}",  # as on real devices, whose id is their UUID: people see one name
            simulated=True,
        )
        for index, kind in enumerate(kinds)
    ]


def real_devices(node: str) -> list[Device]:
    """The GPUs that NVML names; one whose UUID, model or memory it does not tell cannot be given out."""
    with nvml() as library:
        count = _told(library, "nvmlDeviceGetCount") or 0
        found = (_real_device(library, node, index) for index in range(count))
        return [device for device in found if device is not None]


def _real_device(library: Any, node: str, index: int) -> Device | None:
    handle = _told(library, "nvmlDeviceGetHandleByIndex", index)
    uuid = _told(library, "nvmlDeviceGetUUID", handle)
    model = _told(library, "nvmlDeviceGetName", handle)
    memory = _told(library, "nvmlDeviceGetMemoryInfo", handle)
    if uuid is None or model is None or memory is None:
        log.warning("GPU %d of this machine is left out: NVML does not tell its UUID, model and memory", index)
        return None
    uuid = _text(uuid)
    return Device(
        id=uuid, node=node, index=index, model=_text(model), memory_mib=int(memory.total) // MIB, pool=None, uuid=uuid
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
