"""Simulated devices of the settings; their use is the CPU use of the processes of their workloads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....core.facts import DeviceFact
from ....core.model import Device
from ....core.samples import DeviceSample
from ...protocol import DeviceUsers, Inventory
from ...simulated_samples import simulated_sample
from ..host.processes import process
from .node import machine

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

UNSEEN = "its processes are not known, or have only just started"
MIN_AGE_MS = 500
"""A younger process has used too few ticks."""


class SimulatedSampler:
    """Utilisation of simulated devices: a workload that keeps one core busy keeps its device busy.

    The use of a workload whose processes are not known, or have only just started, is unknown, as is its device's.
    ``settings``: ``[{"model", "memory_mib", "count"}]``; ``uptime_ms``: the clock of the starts of processes.
    """

    def __init__(self, settings: Sequence[Mapping[str, Any]] = (), uptime_ms: Callable[[], int] | None = None) -> None:
        self._settings, self._uptime_ms = settings, uptime_ms or _uptime_ms
        self._read_at: int | None = None
        self._ticks: dict[int, tuple[int, int]] = {}

    def inventory(self, node: str) -> Inventory:
        """This machine, with the devices of the settings."""
        return Inventory((machine(node),), tuple(simulated(node, self._settings)))

    def facts(self) -> Sequence[DeviceFact]:
        """Nothing: simulated devices do not break, and have no foreign use."""
        return ()

    def close(self) -> None:
        """Nothing to release."""

    def sample(self, users: DeviceUsers, pids: Mapping[str, frozenset[int]], *, now: int) -> list[DeviceSample]:
        """One row per simulated device."""
        found = {pid: process(pid) for pid in frozenset().union(*pids.values())}
        before, self._ticks = self._ticks, {pid: (one.started, one.cpu_ticks) for pid, one in found.items() if one}
        elapsed_ms = None if self._read_at is None else now - self._read_at
        self._read_at = now
        use = {workload: self._percent(own, before, elapsed_ms) for workload, own in pids.items()}
        return [
            simulated_sample(device, users_of, use, UNSEEN, now)
            for device, users_of in users.items()
            if device.simulated
        ]

    def _percent(
        self, pids: Iterable[int], before: Mapping[int, tuple[int, int]], elapsed_ms: int | None
    ) -> int | None:
        """Percent of one core since the last reading; a new process counts from its start."""
        read = [pid for pid in pids if pid in self._ticks]
        known = any(pid in before and before[pid][0] == self._ticks[pid][0] for pid in read)
        spent_ms = elapsed_ms if known else self._age_ms(read, elapsed_ms)
        if not spent_ms or spent_ms < 0:
            return None
        used = 0
        for pid in read:
            started, ticks = self._ticks[pid]
            was_started, earlier = before.get(pid, (started, 0))
            used += ticks - (earlier if was_started == started else 0)
        return min(100, round(used * 100_000 / (TICKS_PER_S * spent_ms)))

    def _age_ms(self, pids: Sequence[int], elapsed_ms: int | None) -> int | None:
        """The age of the oldest of these processes, if all started since the last reading and long enough ago."""
        if not pids or elapsed_ms is None:
            return None
        oldest_ms = min(self._ticks[pid][0] for pid in pids) * 1000 // TICKS_PER_S
        age_ms = self._uptime_ms() - oldest_ms
        return age_ms if MIN_AGE_MS <= age_ms <= elapsed_ms else None


def _uptime_ms() -> int:
    """Time since the machine started, with time asleep, as in /proc."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def simulated(node: str, settings: Sequence[Mapping[str, Any]]) -> list[Device]:
    """Simulated devices, numbered through. ``settings``: ``[{"model", "memory_mib", "count"}]``."""
    kinds = [kind for kind in settings for _ in range(int(kind.get("count", 1)))]
    return [
        Device(
            id=f"{node}-sim-{index}", node=node, index=index, model=str(kind["model"]), pool=None, simulated=True,
            memory_mib=int(kind["memory_mib"]),
            uuid=f"{node}-sim-{index}",  # the id, as for real devices, so that there is one name
        )
        for index, kind in enumerate(kinds)
    ]  # fmt: skip
