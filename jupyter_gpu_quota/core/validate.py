"""The invariants of a snapshot, which hold at every instant, whatever was decided. Promises P1 and P12.

A violation is a typed finding; the simulator, soak tests and tests call :func:`violations`, and so may a controller.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .lifecycle import HOLDS_GPU
from .model import WHOLE_DEVICE, Job, Notebook, NotebookState, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOverGpu:
    """A device whose allocations add to more than one device (P1); foreign use is observed and no part of it."""

    device: str
    allocated_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOverMemory:
    """A device whose allocations add to more memory than it has (P1)."""

    device: str
    allocated_mib: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownDevice:
    """An allocation on a device that is not in the snapshot."""

    allocation: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOwner:
    """An allocation whose workload is not in the snapshot, or is in a state that holds no device (P12)."""

    allocation: str
    workload: str
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRanks:
    """A workload that holds devices for fewer or other ranks than it runs with: gangs are whole (P12)."""

    workload: str
    state: str
    ranks: int
    held: int


Violation = DeviceOverGpu | DeviceOverMemory | UnknownDevice | NoOwner | WrongRanks


def violations(snapshot: Snapshot) -> tuple[Violation, ...]:
    """Everything in a snapshot that contradicts an invariant, in the order of its rows; empty for a sound one."""
    return (*_overfull(snapshot), *_owners(snapshot), *_gangs(snapshot))


def _overfull(snapshot: Snapshot) -> Iterator[Violation]:
    milli, memory = Counter[str](), Counter[str]()
    known = {device.id for device in snapshot.devices}
    for one in snapshot.allocations:
        milli[one.device] += one.gpu_milli
        memory[one.device] += one.memory_mib
        if one.device not in known:
            yield UnknownDevice(allocation=one.id, device=one.device)
    for device in snapshot.devices:
        if milli[device.id] > WHOLE_DEVICE:
            yield DeviceOverGpu(device=device.id, allocated_milli=milli[device.id])
        if memory[device.id] > device.memory_mib:
            yield DeviceOverMemory(device=device.id, allocated_mib=memory[device.id], memory_mib=device.memory_mib)


def _owners(snapshot: Snapshot) -> Iterator[Violation]:
    every: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    work = {one.id: one for one in every}
    for one in snapshot.allocations:
        owner = work.get(one.workload)
        if owner is None or not _holds_devices(owner):
            state = None if owner is None else str(owner.state)
            yield NoOwner(allocation=one.id, workload=one.workload, state=state)


def _gangs(snapshot: Snapshot) -> Iterator[Violation]:
    held: dict[str, set[int]] = defaultdict(set)
    for one in snapshot.allocations:
        held[one.workload].add(one.rank)
    every: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    for work in every:
        if _holds_devices(work):
            ranks = 1 if isinstance(work, Notebook) else work.held_ranks or work.ranks
            if held[work.id] != set(range(ranks)):
                yield WrongRanks(workload=work.id, state=str(work.state), ranks=ranks, held=len(held[work.id]))


def _holds_devices(work: Job | Notebook) -> bool:
    if isinstance(work, Notebook):
        return work.state is NotebookState.BOOKED
    return work.state in HOLDS_GPU
