"""One reading of one device: its use, by workload and process. None is unknown, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KNOWN, UNKNOWN = 1000, 0
"""Coverage of one reading, in permille of the readings that were expected."""

AGENT = "agent"
"""The key of the reason, in ``why``, for which no agent of the node read the device."""

WORKLOADS = "workloads"
"""The key of the reason, in ``why``, for which the agent of the node knows the workload of no process."""

SILENT_MS = 30_000
"""A node whose agent sent nothing for so long has unknown samples."""

Place = tuple[str, int, int]
"""A process where it runs: its pid namespace ("" where it is not known), its id there, its start in clock ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """The use of one device by one process of a workload since the previous reading; None is unknown.

    ``handle`` is the backend's own name for it, such as a process id. ``used_at``: until when it did at the latest.
    ``places`` are it and its parents, nearest first, as their own namespace knows them; empty where it is not shown.
    """

    handle: str
    memory_mib: int | None
    percent: int | None
    used_at: int | None = None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; None is unknown. ``coverage_permille`` is the part of the expected readings seen.

    ``workloads`` is the percentage that each workload used, ``workload_memory_mib`` the memory it had; ``foreign_mib``
    is the memory of processes of no workload. ``processes`` has those of each workload of which all are known; a
    workload that is missing there may have others. They are kept with the newest reading only. ``why`` has a sentence
    for each figure, and for each workload, that is unknown.
    """

    node: str
    device: str
    at: int
    utilisation_percent: int | None
    memory_used_mib: int | None
    coverage_permille: int | None
    simulated: bool
    workloads: Mapping[str, int | None] = field(default_factory=dict)
    workload_memory_mib: Mapping[str, int | None] = field(default_factory=dict)
    processes: Mapping[str, tuple[ProcessUse, ...]] = field(default_factory=dict)
    foreign_mib: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_stand_in(self) -> bool:
        """Whether it stands for the sample that the agent of the node did not send."""
        return AGENT in self.why

    @property
    def shows_workloads(self) -> bool:
        """Whether the use of a workload can be known while it uses the device."""
        return WORKLOADS not in self.why

    def is_needed_after(self, newest: DeviceSample | None) -> bool:
        """Whether it says more than the newest sample of the device: a stand-in does only where the agent is silent."""
        is_fresh = newest is not None and not newest.is_stand_in and abs(self.at - newest.at) < SILENT_MS
        return not (self.is_stand_in and is_fresh)
