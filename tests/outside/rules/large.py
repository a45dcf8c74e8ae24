"""P10 for pools with more work than the search of all sets reads: one legal set of pauses is tried on each node."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import WHOLE, Job, State
from ..places import Room, give
from ..shares import notebooks_milli
from ..steps import Ledger, Step
from .search import Option, Part, legal_cost, makes_room, may_be_touched


def set_on_a_node(step: Step, job: Job, room: Room, ledger: Ledger) -> Option | None:
    """A legal set of pauses for a claim of one rank of a checked shape (R3), or None."""
    if job.least != 1 or job.ranks != 1 or not is_checked(step, job):
        return None
    for node in sorted({one.node for one in step.before.healthy(job.pool)}):
        for parts in _sets(step, job, room, node):
            if makes_room(parts, job, room, step.before) and (cost := legal_cost(step, job, parts, ledger)):
                return Option(cost, parts)
    return None


def is_checked(step: Step, job: Job) -> bool:
    """Whether a rank surely has a checked shape: it fits on its largest node with all other guarantees there."""
    state, pool = step.before, job.pool
    sizes: dict[str, int] = {}
    for one in state.healthy(pool):
        sizes[one.node] = sizes.get(one.node, 0) + 1
    projects = state.policy.projects.items()
    others = sum(-(-one.of(pool).training // WHOLE) for name, one in projects if name != job.project)
    slices = sum(-(-max(one.of(pool).notebook, notebooks_milli(name, state, pool)) // WHOLE) for name, one in projects)
    return -(-job.gpu_milli // WHOLE) <= max(sizes.values(), default=0) - others - slices


def _sets(step: Step, job: Job, room: Room, node: str) -> Iterator[tuple[Part, ...]]:
    """Two sets of a node: devices with the fewest victims first, and those of one project after the other."""
    state, need = step.before, -(-job.gpu_milli // WHOLE)
    work = {one.id: _holders(state, one.id) for one in state.healthy(job.pool) if one.node == node}
    within = {name for name in state.policy.projects if not _is_above(step, name, job.pool)}
    usable = [name for name, jobs in work.items() if _is_usable(state, name, jobs, within, room)]
    by_count = sorted(usable, key=lambda name: (len(work[name]), name))
    by_project = sorted(usable, key=lambda name: (sorted(one.project for one in work[name]), name))
    for order in (by_count, by_project, by_project[::-1]):
        victims = {one.id: one for name in order[:need] for one in work[name]}
        if len(order) >= need:
            yield tuple(Part(one, "pause", state.held[one.id]) for one in victims.values())


def _holders(state: State, device: str) -> list[Job]:
    """The jobs with a part of a device."""
    names = [name for name, parts in state.held.items() if any(one.device == device for one in parts)]
    return [state.jobs[name] for name in names if name in state.jobs]


def _is_above(step: Step, project: str, pool: str) -> bool:
    return step.ledger.use(pool).get(project, 0) > step.in_force(pool).least(project)


def _is_usable(state: State, device: str, jobs: list[Job], within: set[str], room: Room) -> bool:
    """Whether a device is free once its jobs are paused, all of projects above their quota."""
    left = dict(room)
    for one in jobs:
        give(left, state.held[one.id])
    legal = all(may_be_touched(one, state) and one.project not in within for one in jobs)
    return legal and left.get(device, 0) == WHOLE
