"""One decision: the state before it, the plan's actions, and the state that follows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations_with_replacement, islice, product
from typing import Any, NamedTuple

from .documents import placement_of
from .force import InForce, in_force
from .model import Job, Notebook, Placement, Reservation, State, by_device, total
from .shares import Shares, shares_of

Document = dict[str, Any]

STARTS = ("start", "resume")
RESIZES = ("shrunk", "grown")
RETURNS = ("borrower_returns", "reservation_begins")
MOST_DIVISIONS = 200


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a plan's document."""

    kind: str
    workload: str
    preemptor: str = ""
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
        return self.kind == "pause" and self.preemptor != self.workload and self.code not in RETURNS


class Rank(NamedTuple):
    """One rank that an elastic job gives up."""

    job: Job
    parts: tuple[Placement, ...]

    @property
    def milli(self) -> int:
        return total(self.parts)


def by_rank(job: Job, placements: Iterable[Placement]) -> list[Rank]:
    """The ranks of a job that have these parts."""
    found: dict[int, list[Placement]] = {}
    for one in placements:
        found.setdefault(one.rank, []).append(one)
    return [Rank(job, tuple(parts)) for parts in found.values()]


Division = list[tuple[str, Rank]]
"""The ranks that elastic jobs give up, each with the workload that it is for."""


@dataclass(slots=True)
class Claim:
    """A workload for which a plan stops or moves other work, with the books before that."""

    preemptor: str
    ledger: Ledger
    evicted: list[Job] = field(default_factory=list)
    moved: list[Job] = field(default_factory=list)
    shrunk: list[Rank] = field(default_factory=list)
    """What elastic jobs give up."""
    placements: tuple[Placement, ...] = ()

    def without(self, victim: Job | Rank) -> Claim:
        """The same claim without the pause of a job, or without a rank that an elastic one gives up."""
        evicted = [one for one in self.evicted if one is not victim]
        shrunk = [one for one in self.shrunk if one is not victim]
        return Claim(self.preemptor, self.ledger, evicted, self.moved, shrunk, self.placements)

    def beside(self, victim: Job, milli: int) -> Claim:
        """The same claim if an earlier one leaves this much to its victim."""
        ledger = self.ledger.copy()
        ledger.milli[victim.id] = ledger.milli.get(victim.id, 0) + milli
        return Claim(self.preemptor, ledger, self.evicted, self.moved, self.shrunk, self.placements)

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
        return (state.jobs.get(self.preemptor) or state.notebooks[self.preemptor]).pool


def actions_of(plan: Document) -> list[Action]:
    return [_action(row) for row in plan["actions"]]


def _action(row: Document) -> Action:
    return Action(
        kind=row["action"],
        workload=row["workload"],
        preemptor=row.get("preemptor") or "",
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

    def __init__(self, before: State, plan: Document, division: Division | None = None) -> None:
        self.before = before
        self.plan = plan
        self.actions = actions_of(plan)
        self.division = next(self.divisions()) if division is None else division
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
        return any(one.preemptor == workload for one in self.claims)

    @cached_property
    def before_start(self) -> dict[str, Ledger]:
        """The books at the moment of each start or new reservation."""
        return self._replayed[2]

    @cached_property
    def _replayed(self) -> tuple[list[Claim], Ledger, dict[str, Ledger]]:
        ledger = Ledger(self.before)
        claims: dict[str, Claim] = {}
        moments: dict[str, Ledger] = {}
        ranks: dict[str, list[Rank]] = {}
        for name, rank in self.division:
            ranks.setdefault(name, []).append(rank)
        for action in self.actions:
            name = action.preemptor if action.is_for_claim else action.workload if action.gives_devices else ""
            if action.is_for_claim or (name in ranks and name not in claims):
                claim = claims.setdefault(name, Claim(name, ledger.copy()))
                self._add_victim(claim, action)
                claim.shrunk += (given := ranks.pop(name, []))
                for rank in given:
                    ledger.milli[rank.job.id] -= rank.milli
            if action.gives_devices:
                moments[action.workload] = ledger.copy()
                if action.workload in claims:
                    claims[action.workload].placements = action.placements
            if action.workload not in self._shrinking:
                ledger.note(action, least=True)
        for action in self.of_kind(*STARTS):
            ledger.note(action)
        return list(claims.values()), ledger, moments

    def _add_victim(self, claim: Claim, action: Action) -> None:
        if action.is_for_claim and action.workload not in self._shrinking:
            touched = claim.moved if action.workload in self.reserving else claim.evicted
            touched.append(self.before.jobs[action.workload])

    @cached_property
    def _shrinking(self) -> dict[str, str]:
        """The elastic jobs that give up ranks, each with its first claim, which the plan names."""
        again = self.reserving
        return {
            one.workload: one.preemptor
            for one in self.actions
            if one.is_for_claim
            and one.workload in again
            and total(again[one.workload].placements) < self.before.held_milli(one.workload)
        }

    def divisions(self) -> Iterator[Division]:
        """The ways to divide the ranks that elastic jobs give up among the claims; first all are for the named one."""
        names = list(self.reserving)
        ways = []
        for name, named in self._shrinking.items():
            behind = names[names.index(named) :] if named in names else []
            preemptors = [named, *(one for one in behind[1:] if one not in self.before.held)]
            first, *more = self.ranks_given_up(name)
            chosen = islice(combinations_with_replacement(preemptors, len(more)), MOST_DIVISIONS)
            ways.append([list(zip((named, *rest), (first, *more), strict=True)) for rest in chosen])
        for rows in islice(product(*ways), MOST_DIVISIONS):
            yield [row for some in rows for row in some]

    def ranks_given_up(self, name: str) -> list[Rank]:
        """Those that a job has, and has not after the plan."""
        kept, found = by_device(self.reserving[name].placements), list[Rank]()
        for rank in by_rank(self.before.jobs[name], self.before.held[name]):
            if (parts := by_device(rank.parts)) <= kept:
                kept -= parts
            else:
                found.append(rank)
        return found


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
    job.paused_for = action.preemptor or None
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
