"""P1: no device carries more than it has, and every placement has the shape of its workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..model import WHOLE, Job, Placement, State, total
from ..places import lent_milli
from ..steps import Action, Step

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    yield from _devices(step.after)
    yield from _foreign(step)
    yield from _reservations(step.after)
    yield from _lent(step)
    for action in step.giving():
        yield from _shape(step.before, action)


def _devices(state: State) -> Found:
    milli, mib = _sums(part for one in state.held.values() for part in one)
    for device, amount in milli.items():
        memory = state.devices[device].memory_mib
        if amount > WHOLE or mib[device] > memory:
            yield "P1", f"device {device} carries {amount} of {WHOLE} milli, {mib[device]} of {memory} MiB"


def _foreign(step: Step) -> Found:
    """R13: foreign use may come to a device that has work; no work is placed beside more of it than there is room."""
    before, _ = _sums(part for one in step.before.held.values() for part in one)
    after, _ = _sums(part for one in step.after.held.values() for part in one)
    for device, amount in after.items():
        capacity = WHOLE - step.before.devices[device].foreign
        if amount > max(capacity, before.get(device, 0)):
            yield "P1", f"device {device} carries {amount} milli; {capacity} are left beside foreign use"


def _sums(parts: Iterable[Placement]) -> tuple[dict[str, int], dict[str, int]]:
    milli: dict[str, int] = {}
    mib: dict[str, int] = {}
    for one in parts:
        milli[one.device] = milli.get(one.device, 0) + one.gpu_milli
        mib[one.device] = mib.get(one.device, 0) + one.memory_mib
    return milli, mib


def _reservations(state: State) -> Found:
    """R25: what stays and what is reserved fit side by side."""
    stays = [part for name, parts in state.held.items() if not _leaves(state, name) for part in parts]
    kept = [part for one in state.reserved.values() for part in one.placements]
    milli, _ = _sums([*stays, *kept])
    for device in sorted({one.device for one in kept}):
        if milli[device] > WHOLE:
            yield "R25", f"device {device}: running work and reservations come to {milli[device]} milli"


def _leaves(state: State, workload: str) -> bool:
    return workload in state.jobs and state.jobs[workload].leaves


def _lent(step: Step) -> Found:
    """R61: only borrowers are placed on the lent part of a device."""
    for device in sorted({one.device for one in step.after.notebooks.values() if one.device}):
        others = _without_borrowers(step.after, device)
        was = _without_borrowers(step.before, device) + lent_milli(step.before, device)
        if others + lent_milli(step.after, device) > max(WHOLE, was):
            yield "R61", f"device {device}: {others} milli without borrowers beside lent slices"


def _without_borrowers(state: State, device: str) -> int:
    """What slices and jobs that do not borrow have of a device."""
    held = [parts for name, parts in state.held.items() if not (name in state.jobs and state.jobs[name].borrower)]
    return sum(part.gpu_milli for parts in held for part in parts if part.device == device)


def _shape(state: State, action: Action) -> Found:
    job = state.jobs.get(action.workload)
    if job is None:
        asked, ranks = state.notebooks[action.workload].gpu_milli, range(1, 2)
    else:
        asked, ranks = job.gpu_milli, range(job.least, job.ranks + 1)
    by_rank: dict[int, list[Placement]] = {}
    for one in action.placements:
        by_rank.setdefault(one.rank, []).append(one)
    if len(by_rank) not in ranks or set(by_rank) != set(range(len(by_rank))):
        yield "R9", f"{action.workload} gets ranks {sorted(by_rank)}; it runs with {ranks.start} to {ranks.stop - 1}"
    for rank, parts in by_rank.items():
        if total(parts) != asked or not _on_one_node(state, parts, job):
            yield "R72", f"{action.workload}, rank {rank}: {[(one.device, one.gpu_milli) for one in parts]} for {asked}"


def _on_one_node(state: State, parts: list[Placement], job: Job | None) -> bool:
    """Part of one device, or different whole devices of one node, healthy, in the pool, of the right model."""
    devices = [state.devices[one.device] for one in parts]
    pool = job.pool if job is not None else devices[0].pool
    right = all(one.healthy and one.pool == pool and _model(one.model, job) for one in devices)
    whole = len(parts) == 1 or all(one.gpu_milli == WHOLE for one in parts)
    return (
        right and whole and len({one.node for one in devices}) == 1 and len({one.id for one in devices}) == len(parts)
    )


def _model(model: str, job: Job | None) -> bool:
    return job is None or not job.gpu_models or model in job.gpu_models
