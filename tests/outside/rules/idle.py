"""P11: no free device that an eligible waiting job fits on."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Job, used_up
from ..places import Room, fits_beside_notebooks, free_now, take
from ..steps import Step
from .limits import admits_now
from .patience import held_back

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    """Only plans without actions are judged: the consequences of a plan are decided within a tick of it."""
    if step.actions:
        return
    for pool in step.pools:
        yield from _pool(step, pool)


def _pool(step: Step, pool: str) -> Found:
    state = step.after
    room = free_now(state, pool)
    kept = step.backfill.get(pool)
    if kept is not None:
        take(room, kept.placements)
    if not any(milli > 0 for milli in room.values()):
        return
    waiting = [job for job in state.waiting(pool) if _eligible(job, step)]
    for job in waiting:
        if held_back(step, job):
            continue
        if fits_beside_notebooks(job, room, state):
            yield "P11", f"{job.id} ({job.least} x {job.gpu_milli}) waits; {_free(room)} free"
            return


def _eligible(job: Job, step: Step) -> bool:
    """Whether only devices could keep a job waiting."""
    state = step.after
    return job.id not in state.reserved and not used_up(job, state) and admits_now(job, state, step.ledger)


def _free(room: Room) -> str:
    return ", ".join(f"{name} {milli}" for name, milli in sorted(room.items()) if milli > 0)
