"""Whether ranks fit on devices: an exact test, since a rank is part of one device or whole devices of one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from .model import WHOLE, Job, Notebook, Placement, State, by_device

Room = dict[str, int]
"""The free amount of each device, in milli."""


def empty_room(state: State, pool: str) -> Room:
    """The devices of a pool without any work."""
    return {one.id: WHOLE - one.foreign for one in state.healthy(pool)}


def take(room: Room, placements: Iterable[Placement]) -> None:
    """Subtract placements from a room, in place."""
    for one in placements:
        if one.device in room:
            room[one.device] -= one.gpu_milli


def give(room: Room, placements: Iterable[Placement]) -> None:
    for one in placements:
        if one.device in room:
            room[one.device] += one.gpu_milli


def free_now(state: State, pool: str) -> Room:
    """What no work has, and no claim has reserved; work that is being stopped still has its devices."""
    room = empty_room(state, pool)
    for placements in state.held.values():
        take(room, placements)
    for one in state.reserved.values():
        own = by_device(state.held.get(one.workload, ()))
        for part in one.placements:
            its = min(own[part.device], part.gpu_milli)  # where it still is, it takes no more
            own[part.device] -= its
            if part.device in room:
                room[part.device] -= part.gpu_milli - its
    return room


def free_later(state: State, pool: str, without: Iterable[str] = ()) -> Room:
    """What is free when all work that is being stopped has ended, reservations of others taken."""
    room = empty_room(state, pool)
    left_out = set(without)
    for workload, placements in state.held.items():
        if workload not in left_out and not _leaves(state, workload):
            take(room, placements)
    for one in state.reserved.values():
        if one.workload not in left_out:
            take(room, one.placements)
    return room


def _leaves(state: State, workload: str) -> bool:
    job = state.jobs.get(workload)
    return job is not None and job.leaves


def count_fitting(job: Job, room: Mapping[str, int], state: State) -> int:
    """How many ranks of a job fit into a room together."""
    allowed = [one for one in state.healthy(job.pool) if not job.gpu_models or one.model in job.gpu_models]
    if job.gpu_milli < WHOLE:
        return sum(max(0, room.get(one.id, 0)) // job.gpu_milli for one in allowed)
    whole: dict[str, int] = {}
    for one in allowed:
        whole[one.node] = whole.get(one.node, 0) + (room.get(one.id, 0) == WHOLE)
    return sum(count // (job.gpu_milli // WHOLE) for count in whole.values())


def fits(job: Job, room: Mapping[str, int], state: State, ranks: int | None = None) -> bool:
    """Whether a job surely fits; CPU and memory are not read, so one that requests them does not."""
    return not job.needs_host and count_fitting(job, room, state) >= (job.least if ranks is None else ranks)


def fits_empty(job: Job, state: State) -> bool:
    """Whether a job could start in an empty pool, as far as devices go."""
    return count_fitting(job, empty_room(state, job.pool), state) >= job.least


def place(job: Job, room: Room, state: State, ranks: int) -> bool:
    """Take room for ranks of a job, in place: the fullest device or node that fits first. False if that fails."""
    return all(_place_rank(job, room, state) for _ in range(ranks))


def _place_rank(job: Job, room: Room, state: State) -> bool:
    if job.gpu_milli < WHOLE:
        devices = [one.id for one in state.healthy(job.pool) if room.get(one.id, 0) >= job.gpu_milli]
        if devices:
            room[min(devices, key=lambda name: (room[name], name))] -= job.gpu_milli
        return bool(devices)
    need = job.gpu_milli // WHOLE
    nodes = {node: names for node, names in whole_devices(room, state, job.pool).items() if len(names) >= need}
    if nodes:
        names = min(nodes.values(), key=lambda some: (len(some), some))
        room.update(dict.fromkeys(names[:need], 0))
    return bool(nodes)


def whole_devices(room: Room, state: State, pool: str) -> dict[str, list[str]]:
    """The devices of each node that are wholly free."""
    found: dict[str, list[str]] = {}
    for one in state.healthy(pool):
        if room.get(one.id, 0) == WHOLE:
            found.setdefault(one.node, []).append(one.id)
    return found


# --- notebook quota -------------------------------------------------------------------------------------------------
def fits_beside_notebooks(job: Job, room: Room, state: State, ranks: int | None = None) -> bool:
    """Whether a job fits whichever devices the product keeps for notebook quota that is not booked.

    Devices with notebooks, lent slices or borrowers are left out; of the rest, every choice of as many devices as
    the unbooked quota can need.
    """
    quota = sum(one.of(job.pool).notebook for one in state.policy.projects.values())
    if not quota:
        return fits(job, room, state, ranks)
    used = used_by_notebooks(state, job.pool)
    rest = {name: free for name, free in room.items() if name not in used}
    kept = -(-quota // WHOLE) + 1
    candidates = [name for name, free in rest.items() if free > 0]
    chosen = combinations(candidates, min(kept, len(candidates)))
    return all(fits(job, {**rest, **dict.fromkeys(names, 0)}, state, ranks) for names in chosen)


def used_by_notebooks(state: State, pool: str) -> set[str]:
    """The devices with notebooks, lent slices or borrowers."""
    slices = {one.id: one for one in state.slices(pool)}
    found = {one.device for one in slices.values() if one.device}
    for workload, placements in state.held.items():
        job = state.jobs.get(workload)
        if workload in slices or (job is not None and job.borrower):
            found |= {one.device for one in placements}
    return found


def lent_milli(state: State, device: str) -> int:
    """The sum of the lent slices of a device."""
    return sum(one.gpu_milli for one in state.notebooks.values() if _is_lent(one, device))


def _is_lent(one: Notebook, device: str) -> bool:
    return one.state == "lent" and one.device == device
