"""A small search for legal sets of victims: pauses, shrinks and moves, mixed, by the costs of R40."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

from ..model import WHOLE, Job, Placement, State, is_protected, total
from ..places import Room, fits_beside_notebooks, give, place, whole_devices
from ..steps import Claim, Ledger, Step, by_rank
from .claims import Case, of_claim
from .entitlement import within_guarantee
from .limits import admits

MOST_CANDIDATES = 9
MOST_VICTIMS = 3
MOST_SETS = 1500

Cost = tuple[int, int, int, int]
"""Protected jobs touched, projects left below their quota (2: or more), pauses without borrowers, moves."""


class Part(NamedTuple):
    """What is done to one job: it is paused, moved, or gives up some ranks."""

    job: Job
    kind: str
    freed: tuple[Placement, ...]


class Option(NamedTuple):
    """A legal set that makes room, with its cost."""

    cost: Cost
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return ", ".join(f"{one.kind} {one.job.id}" for one in self.parts)


def options(step: Step, job: Job, room: Room, ledger: Ledger) -> Iterator[Option]:
    """Legal sets for a claim, given what is free without any and the books."""
    state = step.before
    protected, stopped = within_guarantee(step, job), {one.workload for one in step.of_kind("stop")}
    touched = [one for one in state.in_pool(job.pool) if may_be_touched(one, state, protected=protected)]
    candidates = [one for one in touched if one.id not in stopped]
    if len(candidates) > MOST_CANDIDATES:
        return
    tried = 0
    for count in range(1, MOST_VICTIMS + 1):
        for jobs in combinations(candidates, count):
            for parts in product(*(_parts(one, state) for one in jobs)):
                tried += 1
                if tried > MOST_SETS:
                    return
                if makes_room(parts, job, room, state) and (cost := legal_cost(step, job, parts, ledger)):
                    yield Option(cost, parts)


def may_be_touched(job: Job, state: State, *, protected: bool = True) -> bool:
    """Whether a claim may pause a job. ``protected``: also before its minimum run time, or with its pauses used up."""
    open_to = job.preemptible and (protected or not is_protected(job, state))
    return job.runs and open_to and not job.borrower and job.id in state.held


def _parts(job: Job, state: State) -> list[Part]:
    """All that can be done to one job; an elastic one above its minimum shrinks and does not move (R52)."""
    held = state.held[job.id]
    ranks = sorted({one.rank for one in held})
    found = [Part(job, "pause", held)]
    if len(ranks) <= job.least and not state.policy.is_gone(job.project):
        found.append(Part(job, "move", held))
    for count in range(1, len(ranks) - job.least + 1):
        for given in combinations(ranks, count):
            found.append(Part(job, "shrink", tuple(one for one in held if one.rank in given)))
    return found


# --- room -----------------------------------------------------------------------------------------------------------
def makes_room(parts: tuple[Part, ...], job: Job, room: Room, state: State) -> bool:
    left = dict(room)
    for one in parts:
        give(left, one.freed)
    if not fits_beside_notebooks(job, left, state):
        return False
    moved = [one.job for one in parts if one.kind == "move"]
    return not moved or (job.least == 1 and any(_all_fit(moved, one, state) for one in _with_claim(job, left, state)))


def _with_claim(job: Job, room: Room, state: State) -> Iterator[Room]:
    """The room that is left for each place of a job of one rank."""
    if any(one.of(job.pool).notebook for one in state.policy.projects.values()):
        return
    if job.gpu_milli < WHOLE:
        for name in [name for name, milli in room.items() if milli >= job.gpu_milli]:
            yield {**room, name: room[name] - job.gpu_milli}
        return
    need = job.gpu_milli // WHOLE
    for names in whole_devices(room, state, job.pool).values():
        if len(names) >= need:
            yield {**room, **dict.fromkeys(names[:need], 0)}


def _all_fit(jobs: list[Job], room: Room, state: State) -> bool:
    left = dict(room)
    ranks = {job.id: len({one.rank for one in state.held[job.id]}) for job in jobs}
    return all(place(job, left, state, ranks[job.id]) for job in sorted(jobs, key=lambda one: -one.gpu_milli))


# --- legality and cost ------------------------------------------------------------------------------------------------
def legal_cost(step: Step, job: Job, parts: tuple[Part, ...], ledger: Ledger) -> Cost | None:
    claim = Claim(job.id, ledger)
    after = ledger.copy()
    for one in parts:
        if one.kind == "pause":
            claim.evicted.append(one.job)
            after.milli.pop(one.job.id, None)
        elif one.kind == "move":
            claim.moved.append(one.job)
        else:
            claim.shrunk += by_rank(one.job, one.freed)
            given = total(one.freed)
            after.milli[one.job.id] = after.milli.get(one.job.id, given) - given
    if not admits(job, step.before, after):
        return None
    case = Case.of(step, claim)
    if case.within_guarantee and ledger.use(job.pool).get(case.project.name, 0) + job.milli > case.quota:
        return None
    if any(case.crosses(rows.project) for rows in case.victims):
        return None
    if not all(_may_lose(case, one) for one in case.own.jobs) or any(True for _ in of_claim(case)):
        return None
    return cost_of(case)


def _may_lose(case: Case, victim: Job) -> bool:
    """R48 and P8: of its own project a claim above guarantee pauses nothing twice while it waits."""
    again = bool(victim.paused_at) and max(victim.paused_at) >= case.job.submitted_at
    may_again = case.within_guarantee or not case.job.preemptible
    return victim.priority < case.job.priority and (may_again or not again)


def cost_of(case: Case) -> Cost:
    """The first parts of the cost of a claim; victims that borrow are free."""
    claim, pool = case.claim, case.job.pool
    protected = sum(1 for job in (*claim.evicted, *claim.moved) if is_protected(job, case.state))
    below = sum(1 for rows in case.victims if rows.left < rows.project.of(pool).training)
    pauses = sum(1 for job in claim.evicted if not job.borrower)
    return protected, min(below, 2), pauses, len(claim.moved)
