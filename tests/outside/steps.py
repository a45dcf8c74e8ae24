"""One decision: the state before it, the plan's actions, and the state that follows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .documents import placement_of
from .force import InForce, in_force
from .model import Job, Notebook, Placement, Reservation, State, total
from .shares import Shares, shares_of

Document = dict[str, Any]

STARTS = ("start", "resume")
RESIZES = ("shrunk", "grown")
RETURNS = ("borrower_returns", "reservation_begins")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a plan's document."""

    kind: str
    workload: str
    claimer: str = ""
    code: str = ""
    placements: tuple[Placement, ...] = ()
    borrower: bool = False
    attempt: int = 0
    grace_s: int = 0
    target: str = ""
    starts_at: int | None = None

    @property
    def is_backfill(self) -> bool:
        """Whether it records a backfill reservation, which takes no devices yet."""
        return self.kind == "reserve" and self.starts_at is not None

    @property
    def gives_devices(self) -> bool:
        """Whether it starts its workload, or reserves devices for its claim."""
        return self.kind in STARTS or (self.kind == "reserve" and self.starts_at is None)

    @property
    def is_for_claim(self) -> bool:
        """Whether it pauses a job for another workload; a borrower that returns devices in time is not."""
        return self.kind == "pause" and self.claimer != self.workload and self.code not in RETURNS


@dataclass(slots=True)
class Claim:
    """A workload for which a plan stops or moves other work, with the books before that."""

    claimer: str
    ledger: Ledger
    evicted: list[Job] = field(default_factory=list)
    moved: list[Job] = field(default_factory=list)
    shrunk: list[tuple[Job, int]] = field(default_factory=list)
    """Elastic jobs, and the milli that they give up."""
    placements: tuple[Placement, ...] = ()

    def without(self, victim: Job, milli: int) -> Claim:
        """The same claim if a victim keeps this much."""
        shrunk = [(job, given - milli if job is victim else given) for job, given in self.shrunk]
        kept = [(job, given) for job, given in shrunk if given > 0]
        evicted = [job for job in self.evicted if job is not victim]
        return Claim(self.claimer, self.ledger, evicted, self.moved, kept, self.placements)

    def beside(self, victim: Job, milli: int) -> Claim:
        """The same claim if an earlier one leaves this much to its victim."""
        ledger = self.ledger.copy()
        ledger.milli[victim.id] = ledger.milli.get(victim.id, 0) + milli
        return Claim(self.claimer, ledger, self.evicted, self.moved, self.shrunk, self.placements)

    @property
    def use(self) -> dict[str, int]:
        """Milli of each project in the claim's pool."""
        return self.ledger.use(self.pool)

    @property
    def fixed(self) -> dict[str, int]:
        """The part of it that may not be preempted."""
        return self.ledger.fixed(self.pool)

    @property
    def borrowed(self) -> dict[str, int]:
        """The part of it that running borrowers have."""
        return self.ledger.borrowed(self.pool)

    @property
    def pool(self) -> str:
        state = self.ledger.state
        return (state.jobs.get(self.claimer) or state.notebooks[self.claimer]).pool


def actions_of(plan: Document) -> list[Action]:
    return [_action(row) for row in plan["actions"]]


def _action(row: Document) -> Action:
    return Action(
        kind=row["action"],
        workload=row["workload"],
        claimer=row.get("claimer") or "",
        code=row["reason"]["code"],
        placements=tuple(placement_of(one) for one in row.get("placements", ())),
        borrower=row.get("borrower", False),
        attempt=row.get("attempt", 0),
        grace_s=row.get("grace_s", 0),
        target=row.get("target", ""),
        starts_at=row.get("starts_at"),
    )


class Step:
    """What the checks read."""

    def __init__(self, before: State, plan: Document) -> None:
        self.before = before
        self.plan = plan
        self.actions = actions_of(plan)
        self._shares: dict[str, Shares] = {}
        self._in_force: dict[str, InForce] = {}

    @cached_property
    def after(self) -> State:
        return applied(self.before, self)

    @property
    def backfill(self) -> dict[str, Reservation]:
        """The backfill reservation of each pool after the plan."""
        return self.after.backfill

    @property
    def pools(self) -> tuple[str, ...]:
        return self.before.policy.pools

    def of_kind(self, *kinds: str) -> Iterator[Action]:
        return (one for one in self.actions if one.kind in kinds)

    @cached_property
    def started(self) -> dict[str, Action]:
        return {one.workload: one for one in self.of_kind(*STARTS)}

    @cached_property
    def reserving(self) -> dict[str, Action]:
        """What is reserved for claims, and for jobs that continue at once."""
        return {one.workload: one for one in self.of_kind("reserve") if not one.is_backfill}

    def giving(self) -> Iterator[Action]:
        """The actions that start work or reserve devices for a claim."""
        return (one for one in self.actions if one.gives_devices)

    def shares(self, pool: str) -> Shares:
        """The division with the notebooks of this plan booked, and without the jobs that it stops."""
        if pool not in self._shares:
            self._shares[pool] = shares_of(self._with_notebooks, pool)
        return self._shares[pool]

    def in_force(self, pool: str) -> InForce:
        """The training quotas in force (R5, R66)."""
        if pool not in self._in_force:
            self._in_force[pool] = in_force(self.before, pool)
        return self._in_force[pool]

    def is_certain(self, pool: str) -> bool:
        """Whether quotas in force and fair shares are known exactly, as all quotas fit and all work has a project."""
        gone = any(self.before.policy.is_gone(job.project) for job in self.before.in_pool(pool))
        return self.in_force(pool).certain and not gone

    def shares_with_requests(self, pool: str) -> Shares:
        """The division with the notebooks booked that wait within their quota, too, and those whose slice was lent."""
        key = f"{pool} with requests"
        if key not in self._shares:
            self._shares[key] = shares_of(self._with_requests, pool) if self.before.notebooks else self.shares(pool)
        return self._shares[key]

    @cached_property
    def _with_requests(self) -> State:
        state = self._with_notebooks.copy()
        refused = {one.workload for one in self.of_kind("refuse")}
        for notebook in [one for one in state.notebooks.values() if one.id not in state.held and one.id not in refused]:
            healthy = state.healthy(notebook.pool)  # the capacity is what these have
            if (notebook.state == "requested" or notebook.woken) and healthy:
                part = Placement(0, healthy[0].id, notebook.gpu_milli, 0)
                _book(state, Action("start", notebook.id, placements=(part,)))
        return state

    @cached_property
    def _with_notebooks(self) -> State:
        """What is divided: the state before with the plan's notebooks, and without what reached its time limit."""
        booked = [one for one in self.started.values() if one.workload in self.before.notebooks]
        stopped = list(self.of_kind("stop"))
        if not booked and not stopped:
            return self.before
        state = self.before.copy()
        for one in stopped:
            _stop(state, one)
        for one in booked:
            _book(state, one)
        return state

    # --- claims -----------------------------------------------------------------------------------------------------
    @cached_property
    def ledger(self) -> Ledger:
        """The books after the whole plan."""
        return self._replayed[1]

    @cached_property
    def claims(self) -> list[Claim]:
        """The claims of the plan in its order; growth of an elastic job into idle devices is none."""
        return self._replayed[0]

    def claimed(self, workload: str) -> bool:
        """Whether the plan stops or moves work for a workload."""
        return any(one.claimer == workload for one in self.claims)

    @cached_property
    def before_start(self) -> dict[str, Ledger]:
        """The books at the moment of each start or new reservation."""
        return self._replayed[2]

    @cached_property
    def _replayed(self) -> tuple[list[Claim], Ledger, dict[str, Ledger]]:
        ledger = Ledger(self.before)
        claims: dict[str, Claim] = {}
        moments: dict[str, Ledger] = {}
        for_others: dict[str, int] = {}
        for action in self.actions:
            if action.is_for_claim:
                claim = claims.get(action.claimer)
                if claim is None:
                    claim = claims[action.claimer] = Claim(action.claimer, ledger.copy())
                self._add_victim(claim, action)
            if action.gives_devices:
                moments[action.workload] = ledger.copy()
                if action.workload in claims:
                    claims[action.workload].placements = action.placements
            ledger.note(action, least=True)
            self._note_for_others(ledger, action, for_others)
        for action in self.of_kind(*STARTS):
            ledger.note(action)
        return list(claims.values()), ledger, moments

    def _add_victim(self, claim: Claim, action: Action) -> None:
        job = self.before.jobs[action.workload]
        again = self.reserving.get(action.workload)
        if again is None:
            claim.evicted.append(job)
        elif (given := self.before.held_milli(job.id) - total(again.placements)) > 0:
            claim.shrunk.append((job, given - self._for_others(action, given)))
        else:
            claim.moved.append(job)

    def _for_others(self, action: Action, given: int) -> int:
        """What an elastic victim may give up for further jobs (R40, R51), in ranks; the plan names the first claim.

        Such a job has those devices. Where the plan placed claims again, it may have the devices of another victim. For
        a claim of the victim's own project nothing depends on it.
        """
        victim, claimer = self.before.jobs[action.workload], self.before.jobs.get(action.claimer)
        if claimer is None or claimer.project == victim.project:
            return 0
        lacking = sum(self.lacking(one) for one in self.reserving.values() if one.workload != action.claimer)
        own = self.reserving.get(action.claimer)
        beyond = self._given_up_for[action.claimer] - (total(own.placements) if own is not None else 0)
        least = min(lacking, max(0, beyond, self._of_victim(action)))
        return min(given - victim.gpu_milli, -(-least // victim.gpu_milli) * victim.gpu_milli)

    def _of_victim(self, action: Action) -> int:
        """What jobs that no work is stopped for have reserved of the devices that an elastic victim gives up."""
        kept = {one.device for one in self.reserving[action.workload].placements}
        given = {one.device for one in self.before.held[action.workload]} - kept
        others = [one for one in self.reserving.values() if one.workload != action.claimer]
        return sum(
            min(self.lacking(one), total(part for part in one.placements if part.device in given)) for one in others
        )

    def lacking(self, action: Action) -> int:
        """What a job has reserved beyond what its own victims give up, by the plan's actions."""
        if action.workload not in self.before.jobs or action.workload in self.before.held:
            return 0
        return max(0, total(action.placements) - self._given_up_for[action.workload])

    @cached_property
    def _given_up_for(self) -> Counter[str]:
        found = Counter[str]()
        for one in self.actions:
            if one.is_for_claim:
                again = self.reserving.get(one.workload)
                kept = total(again.placements) if again is not None else 0
                found[one.claimer] += self.before.held_milli(one.workload) - kept
        return found

    def _note_for_others(self, ledger: Ledger, action: Action, for_others: dict[str, int]) -> None:
        """Count what an elastic victim gives up for later jobs as its own until they have it."""
        job = self.before.jobs.get(action.workload)
        if action.is_for_claim and job is not None and (again := self.reserving.get(job.id)) is not None:
            given = max(job.gpu_milli, self.before.held_milli(job.id) - total(again.placements))
            for_others[job.id] = self._for_others(action, given)
        elif action.kind == "reserve" and action.workload in for_others:
            ledger.milli[action.workload] += for_others[action.workload]
        elif action.gives_devices and (lacking := self.lacking(action)):
            for name, left in for_others.items():
                taken = min(left, lacking, ledger.milli.get(name, 0))
                for_others[name] -= taken
                lacking -= taken
                ledger.milli[name] = ledger.milli.get(name, 0) - taken


class Ledger:
    """What each job has or has reserved, work that is being stopped not counted."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.milli: dict[str, int] = {}
        for job in state.jobs.values():
            held = 0 if job.leaves or not job.runs else state.held_milli(job.id)
            if job.id in state.reserved and not state.is_lost(state.reserved[job.id]):
                held = max(held, total(state.reserved[job.id].placements))
            if held:
                self.milli[job.id] = held

    def copy(self) -> Ledger:
        found = object.__new__(Ledger)
        found.state, found.milli = self.state, dict(self.milli)
        return found

    def note(self, action: Action, *, least: bool = False) -> None:
        """Book an action. ``least``: elastic jobs start with their minimum, as R49 adds further ranks at the end."""
        if action.workload not in self.state.jobs:
            return
        if action.kind in ("pause", "stop", "unreserve"):
            self.milli.pop(action.workload, None)
        elif action.gives_devices:
            job, milli = self.state.jobs[action.workload], total(action.placements)
            kept = max(job.milli, self.milli.get(job.id, 0))
            self.milli[job.id] = min(milli, kept) if least and action.kind in STARTS else milli

    def use(self, pool: str) -> dict[str, int]:
        """Milli of each project in a pool."""
        return self._by_project(pool, self.milli)

    def fixed(self, pool: str) -> dict[str, int]:
        """The part of it that may not be preempted."""
        jobs = self.state.jobs
        return self._by_project(pool, {name: one for name, one in self.milli.items() if not jobs[name].preemptible})

    def borrowed(self, pool: str) -> dict[str, int]:
        """The part of it that running borrowers have."""
        jobs = self.state.jobs
        return self._by_project(pool, {name: one for name, one in self.milli.items() if jobs[name].borrower})

    def _by_project(self, pool: str, milli: dict[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, one in milli.items():
            job = self.state.jobs[name]
            if job.pool == pool:
                found[job.project] = found.get(job.project, 0) + one
        return found


# --- what a plan does at once -----------------------------------------------------------------------------------------
def applied(before: State, step: Step) -> State:
    """The state right after a plan: pauses are begun, starts have their devices."""
    state = before.copy()
    for action in step.actions:
        EFFECTS[action.kind](state, action)
    return state


def _start(state: State, action: Action) -> None:
    _unreserve(state, action)
    if action.workload in state.notebooks:
        _book(state, action)
        return
    job = state.jobs[action.workload]
    state.held[job.id] = action.placements
    job.state, job.attempt, job.borrower = "running", action.attempt, action.borrower
    job.started_at = job.checkpoint_at = state.now
    job.paused_for = None
    if job.min_ranks is not None:
        job.held_ranks = len({one.rank for one in action.placements})


def _book(state: State, action: Action) -> None:
    notebook = state.notebooks[action.workload] = _booked(state.notebooks[action.workload])
    state.held[notebook.id] = action.placements


def _booked(one: Notebook) -> Notebook:
    return Notebook(
        id=one.id,
        project=one.project,
        gpu_milli=one.gpu_milli,
        pool=one.pool,
        user=one.user,
        state="booked",
        activity=one.activity,
        requested_at=one.requested_at,
    )


def _pause(state: State, action: Action) -> None:
    job = state.jobs[action.workload]
    job.state, job.target, job.pausing_since_at = "pausing", "paused", state.now
    job.paused_for = action.claimer or None
    if action.code not in RESIZES:
        job.paused_at = (*job.paused_at, state.now)


def _stop(state: State, action: Action) -> None:
    job = state.jobs.get(action.workload)
    if job is None or action.workload not in state.held:
        return
    job.state, job.target, job.pausing_since_at = "pausing", action.target, state.now


def _refuse(state: State, action: Action) -> None:
    state.notebooks.pop(action.workload, None)
    state.jobs.pop(action.workload, None)


def _lend(state: State, action: Action) -> None:
    notebook = state.notebooks[action.workload]
    notebook.state, notebook.lent_at = "lent", state.now
    notebook.device = state.held.pop(notebook.id)[0].device


def _release(state: State, action: Action) -> None:
    state.notebooks.pop(action.workload, None)
    state.held.pop(action.workload, None)


def _reserve(state: State, action: Action) -> None:
    _unreserve(state, action)
    made = Reservation(action.workload, action.placements, state.now, action.starts_at)
    if action.is_backfill:
        state.backfill[state.jobs[action.workload].pool] = made
    else:
        state.reserved[action.workload] = made


def _unreserve(state: State, action: Action) -> None:
    state.reserved.pop(action.workload, None)
    for pool in [name for name, one in state.backfill.items() if one.workload == action.workload]:
        del state.backfill[pool]


EFFECTS = {
    "start": _start,
    "resume": _start,
    "pause": _pause,
    "stop": _stop,
    "refuse": _refuse,
    "lend": _lend,
    "release": _release,
    "reserve": _reserve,
    "unreserve": _unreserve,
}
