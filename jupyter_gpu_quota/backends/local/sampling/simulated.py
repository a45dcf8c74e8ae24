"""Simulated devices: those of the settings, used as much as the processes that hold them use the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ....core.facts import DeviceFact
from ....core.model import Allocation, Device
from ....core.samples import KNOWN, UNKNOWN, DeviceSample
from ...protocol import DeviceUsers, Inventory
from ..host.processes import process
from .protocol import machine

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

UNSEEN = "its processes are not known, or have only just begun"
SHORTEST_MS = 500
"""A process that is younger has used too few ticks to tell."""
NO_MEMORY = "a simulated device has no memory"


class SimulatedSampler:
    """Utilisation of simulated devices: one busy core of a holder's processes is a busy device.

    A holder whose processes are not known, or have only just begun, is unknown; so is then its device.
    ``settings``: ``[{"model", "memory_mib", "count"}]``; ``uptime_ms``: the clock that starts of processes are of.
    """

    def __init__(self, settings: Sequence[Mapping[str, Any]] = (), uptime_ms: Callable[[], int] | None = None) -> None:
        self._settings, self._uptime_ms = settings, uptime_ms or _uptime_ms
        self._read_at: int | None = None
        self._ticks: dict[int, tuple[int, int]] = {}

    def inventory(self, node: str) -> Inventory:
        """This machine, with the devices of the settings."""
        return (machine(node),), tuple(simulated(node, self._settings))

    def facts(self) -> Sequence[DeviceFact]:
        """Nothing: simulated devices do not break, and nobody else uses them."""
        return ()

    def close(self) -> None:
        """Nothing to let go of."""

    def sample(self, users: DeviceUsers, pids: Mapping[str, frozenset[int]], *, now: int) -> list[DeviceSample]:
        """One row per simulated device."""
        before, self._ticks = self._ticks, dict(_cpu_ticks(pids))
        elapsed_ms = None if self._read_at is None else now - self._read_at
        self._read_at = now
        use = {workload: self._percent(found, before, elapsed_ms) for workload, found in pids.items()}
        return [_simulated_row(device, held, use, now) for device, held in users.items() if device.simulated]

    def _percent(
        self, pids: Iterable[int], before: Mapping[int, tuple[int, int]], elapsed_ms: int | None
    ) -> int | None:
        """Percent of one core since the last reading; what is new counts from its start."""
        read = [pid for pid in pids if pid in self._ticks]
        known = any(pid in before and before[pid][0] == self._ticks[pid][0] for pid in read)
        spent_ms = elapsed_ms if known else self._age_ms(read, elapsed_ms)
        if not spent_ms or spent_ms < 0:
            return None
        used = sum(self._ticks[pid][1] - _earlier(before, pid, self._ticks[pid][0]) for pid in read)
        return min(100, round(used * 100_000 / (TICKS_PER_S * spent_ms)))

    def _age_ms(self, pids: Sequence[int], elapsed_ms: int | None) -> int | None:
        """How old the oldest of these processes is, if all began since the last reading and long enough ago."""
        if not pids or elapsed_ms is None:
            return None
        oldest_ms = min(self._ticks[pid][0] for pid in pids) * 1000 // TICKS_PER_S
        age_ms = self._uptime_ms() - oldest_ms
        return age_ms if SHORTEST_MS <= age_ms <= elapsed_ms else None


def _uptime_ms() -> int:
    """Since the machine started, sleep included, as /proc counts."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _earlier(before: Mapping[int, tuple[int, int]], pid: int, started: int) -> int:
    """The ticks this same process had at the last reading; none if it is another one by now."""
    known = before.get(pid)
    return known[1] if known is not None and known[0] == started else 0


def _cpu_ticks(pids: Mapping[str, frozenset[int]]) -> Iterator[tuple[int, tuple[int, int]]]:
    for pid in frozenset().union(*pids.values()):
        found = process(pid)
        if found is not None:
            yield pid, (found.started, found.cpu_ticks)


def _simulated_row(device: Device, held: Sequence[Allocation], use: Mapping[str, int | None], now: int) -> DeviceSample:
    by_workload = {part.workload: use.get(part.workload) for part in held if part.gpu_milli}
    read = [percent for percent in by_workload.values() if percent is not None]
    whole = len(read) == len(by_workload)
    unseen = {workload: UNSEEN for workload, percent in by_workload.items() if percent is None}
    return DeviceSample(
        node=device.node,
        device=device.id,
        at=now,
        utilisation_percent=min(100, sum(read)) if whole else None,
        memory_used_mib=None,
        coverage_permille=KNOWN if whole else UNKNOWN,
        simulated=True,
        workloads=by_workload,
        why={"memory_used_mib": NO_MEMORY, **({} if whole else {"utilisation_percent": UNSEEN}), **unseen},
    )


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
