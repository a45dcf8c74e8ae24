"""Whether a snapshot and a policy can be true: the ranges of the numbers, and the relations between the records.

The invariants of allocations are those of :mod:`jupyter_gpu_quota.core.validate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, assert_never

from ..core.amounts import MAX_DEVICES, MAX_SECONDS
from ..core.lifecycle import FINAL, NOTEBOOK_FINAL
from ..core.model import (
    WHOLE_DEVICE,
    Allocation,
    Job,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Project,
    Snapshot,
    Window,
)
from ..core.validate import (
    DeviceOverGpu,
    DeviceOverMemory,
    NoOwner,
    UnknownDevice,
    Violation,
    WrongRanks,
    violations,
)
from ..messages.validation import number_text

MAX_AT = 7_258_118_400_000
"""The first millisecond of 2200."""

RANGES = {
    "now": (0, MAX_AT),
    "paused_at": (0, MAX_AT),
    "cpu_milli": (0, 1 << 40),
    "k_milli": (0, 10_000),
    "milli_s": (0, 10**18),
    "half_life_s": (1, MAX_SECONDS),
    "window_s": (1, MAX_SECONDS),
    "patience_s": (1, MAX_SECONDS),
    "priority": (0, 100),
    "weight": (0, 1_000_000),
    "max_pauses": (0, 1_000_000),
    "min_ranks": (1, 10**8),
    "held_ranks": (1, 10**8),
}
"""The smallest and the largest integer of a field."""

RANGES_OF_UNITS = {
    "_at": (0, MAX_AT),
    "_milli": (0, MAX_DEVICES * WHOLE_DEVICE),
    "_mib": (0, 1 << 40),
    "_s": (0, MAX_SECONDS),
    "ranks": (1, 10**8),
}
"""The same for other fields, by the end of the name."""

OTHER_RANGE = (0, 10**18)


# --- ranges -------------------------------------------------------------------------------------------------------
def out_of_range(value: object, place: str = "", name: str = "") -> Iterator[str]:
    """The integers outside their range, by their place; later checks may add and multiply the others."""
    for step, part in _parts(value):
        key = step if isinstance(step, str) else name
        here = f"{place}.{step}" if place else str(step)
        if isinstance(part, int):
            low, high = _range(key)
            if not low <= part <= high and not isinstance(part, bool):
                yield f"{here} is {number_text(part)}; it is from {low} to {high}"
        elif isinstance(part, tuple | Mapping) or is_dataclass(part):
            yield from out_of_range(part, here, key)


def _parts(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, tuple):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    kind: Any = type(value)
    return ((name, getattr(value, name)) for name in _names(kind))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@lru_cache(maxsize=1000)
def _range(name: str) -> tuple[int, int]:
    units = (found for unit, found in RANGES_OF_UNITS.items() if name.endswith(unit))
    return RANGES.get(name) or next(units, OTHER_RANGE)


# --- the snapshot ---------------------------------------------------------------------------------------------------
def contradictions(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    """A sentence for each record that contradicts another one or itself."""
    every: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    ids: dict[str, Iterable[str]] = {
        "node": [node.id for node in snapshot.nodes],
        "device": [device.id for device in snapshot.devices],
        "workload": [workload.id for workload in every],
        "allocation": [allocation.id for allocation in snapshot.allocations],
        "reservation of workload": [reservation.workload for reservation in snapshot.reservations],
        "pool": policy.pools,
        "project": [project.name for project in policy.projects],
        "department": [department.name for department in policy.departments],
    }
    for kind, names in ids.items():
        for name, count in sorted(Counter(names).items()):
            if count > 1:
                yield f"{kind} {name} is listed {count} times; it may be listed once"
    yield from _demand(snapshot)
    yield from _devices(snapshot, policy)
    for job in snapshot.jobs:
        yield from _job(job)
    for notebook in snapshot.notebooks:
        yield from _notebook(notebook)
    yield from _allocations(snapshot)
    yield from _policy(policy)


def _demand(snapshot: Snapshot) -> Iterator[str]:
    for at, row in enumerate(snapshot.demand):
        if (row.gpu_milli and not _is_amount(row.gpu_milli)) or row.count < 1:
            yield (
                f"demand {at} is {row.count} times {row.gpu_milli} milli, {row.cpu_milli} milli of CPU and"
                f" {row.memory_mib} MiB; a count is 1 or more, and an amount part of a device or whole devices"
            )


def _devices(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    nodes = {node.id for node in snapshot.nodes}
    for device in snapshot.devices:
        if device.node not in nodes:
            yield f"device {device.id} is on node {device.node}, which is not among the nodes"
        if device.pool is not None and device.pool not in policy.pools:
            yield f"device {device.id} is in pool {device.pool}, which the policy does not have"
        if device.memory_mib < 1 or device.foreign_milli > WHOLE_DEVICE:
            yield f"device {device.id} has {device.memory_mib} MiB and {device.foreign_milli} milli of foreign use"


def _job(job: Job) -> Iterator[str]:
    if job.state in FINAL:
        yield f"job {job.id} is {job.state}; an ended job is not part of a snapshot"
    if not _is_amount(job.gpu_milli):
        yield f"job {job.id} requests {job.ranks} x {job.gpu_milli} milli; a rank has part of a device or whole devices"
    if job.min_ranks is not None and job.min_ranks > job.ranks:
        yield f"job {job.id} runs with {job.min_ranks} to {job.ranks} ranks; its minimum is from 1 to all of them"
    if job.held_ranks is not None and not job.least_ranks <= job.held_ranks <= job.ranks:
        yield f"job {job.id} has {job.held_ranks} ranks, and runs with {job.least_ranks} to {job.ranks}"
    if job.time_limit_s < 1:
        yield f"job {job.id} has a time limit of {job.time_limit_s} s"


def _notebook(notebook: Notebook) -> Iterator[str]:
    if notebook.state in NOTEBOOK_FINAL:
        yield f"notebook {notebook.id} is {notebook.state}; an ended slice is not part of a snapshot"
    lent = notebook.state is NotebookState.LENT
    if lent != (notebook.device is not None) or lent != (notebook.lent_at is not None):
        yield (
            f"notebook {notebook.id} is {notebook.state}, lent since {notebook.lent_at} from device"
            f" {notebook.device}; a lent slice has both, and every other slice has neither"
        )
    if not 1 <= notebook.gpu_milli <= WHOLE_DEVICE:
        yield f"notebook {notebook.id} requests {notebook.gpu_milli} milli; a slice has 1 to {WHOLE_DEVICE}"


def _is_amount(milli: int) -> bool:
    return 1 <= milli <= WHOLE_DEVICE or (milli > 0 and milli % WHOLE_DEVICE == 0)


def _allocations(snapshot: Snapshot) -> Iterator[str]:
    every: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    workloads = {workload.id: workload for workload in every}
    devices = {device.id for device in snapshot.devices}
    for allocation in snapshot.allocations:
        yield from _share(f"allocation {allocation.id}", allocation, workloads.get(allocation.workload))
    yield from map(_sentence, violations(snapshot))
    for reservation in snapshot.reservations:
        if reservation.workload not in workloads:
            yield f"a reservation is for {reservation.workload}, which is not among the workloads"
        name = f"the reservation of {reservation.workload}"
        for placement in reservation.placements:
            if placement.device not in devices:
                yield f"{name} is on device {placement.device}, which is not among the devices"
            yield from _share(name, placement, workloads.get(reservation.workload))


def _share(name: str, part: Allocation | Placement, owner: Job | Notebook | None) -> Iterator[str]:
    ranks = owner.ranks if isinstance(owner, Job) else 1
    if not 1 <= part.gpu_milli <= WHOLE_DEVICE:
        yield f"{name} has {part.gpu_milli} milli and {part.memory_mib} MiB of one device"
    if owner is not None and part.rank >= ranks:
        yield f"{name} is of rank {part.rank}; its workload has {ranks}, counted from 0"


def _sentence(violation: Violation) -> str:
    match violation:
        case DeviceOverGpu(device=device, allocated_milli=milli):
            return f"device {device}: its allocations add up to {milli} milli of {WHOLE_DEVICE}"
        case DeviceOverMemory(device=device, allocated_mib=mib, memory_mib=memory_mib):
            return f"device {device}: its allocations add up to {mib} MiB of {memory_mib}"
        case UnknownDevice(allocation=allocation, device=device):
            return f"allocation {allocation} is on device {device}, which is not among the devices"
        case NoOwner(allocation=allocation, workload=workload, state=None):
            return f"allocation {allocation} is of {workload}, which is not among the workloads"
        case NoOwner(allocation=allocation, workload=workload, state=state):
            return f"allocation {allocation} is of {workload}, which is {state} and has no devices"
        case WrongRanks(workload=workload, state=state, ranks=ranks, held=held):
            return f"{workload} is {state}, and {held} of its {ranks} ranks have devices"
        case _:
            assert_never(violation)


# --- the policy -----------------------------------------------------------------------------------------------------
def _policy(policy: Policy) -> Iterator[str]:
    if policy.within_project not in ("users_in_turn", "first_come"):
        yield f"policy: within_project is {policy.within_project}; it can be users_in_turn or first_come"
    owners = {
        **{f"project {project.name}": project.amounts for project in policy.projects},
        **{f"department {department.name}": department.amounts for department in policy.departments},
    }
    for owner, by_pool in owners.items():
        for pool, amounts in by_pool.items():
            if pool not in policy.pools:
                yield f"{owner} has amounts in pool {pool}, which the policy does not have"
            quotas = amounts.notebook_milli + amounts.training_milli
            if amounts.limit_milli is not None and amounts.limit_milli < quotas:
                yield f"{owner} has a limit of {amounts.limit_milli} milli in pool {pool}, below its quotas of {quotas}"
    for project in policy.projects:
        yield from _department_of(project, policy)
    for window in policy.windows:
        yield from _window(window, policy, owners)


def _department_of(project: Project, policy: Policy) -> Iterator[str]:
    if project.department is None and policy.departments:
        yield f"project {project.name} is in no department; if there are departments, every project is in one"
    elif project.department is not None and project.department not in {row.name for row in policy.departments}:
        yield f"project {project.name} is in department {project.department}, which the policy does not have"


def _window(window: Window, policy: Policy, owners: Mapping[str, object]) -> Iterator[str]:
    if window.ends_at <= window.begins_at:
        yield f"window {window.name} ends at {window.ends_at}, not after its begin at {window.begins_at}"
    for change in window.changes:
        owner = f"{'department' if change.department else 'project'} {change.owner}"
        if owner not in owners:
            yield f"window {window.name} changes {owner}, which the policy does not have"
        if change.pool not in policy.pools:
            yield f"window {window.name} changes amounts in pool {change.pool}, which the policy does not have"
