"""What a plan leads to when nothing else happens: the same ``decide`` on the same world until nothing moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...messages.reasons import sentence
from ..model import (
    Allocation,
    Job,
    JobState,
    JobTarget,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Reservation,
    Snapshot,
)
from ..plan import (
    GOES_ON,
    RESIZED,
    Lend,
    Pause,
    Plan,
    Reason,
    ReasonCode,
    Refuse,
    Release,
    Reserve,
    Resume,
    Start,
    Stop,
    Unreserve,
)
from ..scheduling.decide import decide_and_explain


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a job would meet if it were submitted now. ``pauses`` and ``starts_now`` exclude each other.

    ``restarts`` would go on at once, elsewhere or with fewer ranks.
    """

    starts_now: bool
    borrower: bool
    pauses: tuple[str, ...]
    restarts: tuple[str, ...]
    reason: Reason
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The world at rest: who was paused, who started and who was refused on the way, and why the rest waits."""

    paused: tuple[str, ...]
    started: tuple[str, ...]
    refused: Mapping[str, Reason]
    waits: Mapping[str, Reason]
    snapshot: Snapshot


def dry_run(snapshot: Snapshot, policy: Policy, job: Job) -> DryRun:
    """Whether a job would start now, whom it would pause, or why it would wait; the job's id must be new."""
    decision = decide_and_explain(replace(snapshot, jobs=(*snapshot.jobs, job)), policy)
    actions = decision.plan.actions
    for action in actions:
        if isinstance(action, (Start, Resume)) and action.workload == job.id:
            reason = action.reason
            return DryRun(
                starts_now=True,
                borrower=action.borrower,
                pauses=(),
                restarts=(),
                reason=reason,
                sentence=sentence(reason),
            )
    asked = [action for action in actions if isinstance(action, Pause) and action.claimer == job.id]
    reason = decision.waits[job.id]
    return DryRun(
        starts_now=False,
        borrower=False,
        pauses=tuple(action.workload for action in asked if action.reason.code not in GOES_ON),
        restarts=tuple(action.workload for action in asked if action.reason.code in GOES_ON),
        reason=reason,
        sentence=_would(reason, max((action.grace_s for action in asked), default=None)),
    )


NOT_YET = frozenset({ReasonCode.WAITS_FOR_DRAIN, ReasonCode.PLACE_KEPT})
"""Reasons that say what is done for a job, and a dry run does nothing: its own sentence says what would be."""


def _would(reason: Reason, grace_s: int | None) -> str:
    """Why it would wait. A dry run keeps and reserves nothing, so it does not say that anything is.

    ``grace_s``: the longest that somebody has who would be asked to leave for it, None where nobody is asked.
    """
    if reason.code is ReasonCode.WAITS_FOR_DRAIN:
        when = "as soon as" if grace_s is None else f"within the grace of {grace_s} s, after"
        whom = "the work that is leaving there now has left" if grace_s is None else "the work there has saved and left"
        return f"It would start {when} {whom}. Nothing is reserved for it until it is submitted."
    if reason.code is ReasonCode.PLACE_KEPT and "within_s" in (figures := dict(reason.figures)):
        limits = "by the time limits of what runs there it would start"
        return f"No such place is free; one would be kept for it, and {limits} within {figures['within_s']} s."
    return sentence(reason)


def foresee(snapshot: Snapshot, policy: Policy) -> Foresight:
    """Decide, apply, and decide again with clock and demand frozen, until a plan is empty and nobody is leaving.

    Raises RuntimeError if that takes more rounds than there are workloads to move, which the contract excludes.
    """
    paused, started, refused = dict[str, None](), dict[str, None](), dict[str, Reason]()
    rounds = 10 + 2 * (len(snapshot.jobs) + len(snapshot.notebooks))
    for _ in range(rounds):
        decision = decide_and_explain(snapshot, policy)
        plan = decision.plan
        asked = [action for action in plan.actions if isinstance(action, Pause)]
        paused |= {action.workload: None for action in asked if action.reason.code not in GOES_ON}
        started |= {action.workload: None for action in plan.actions if isinstance(action, (Start, Resume))}
        refused |= {action.workload: action.reason for action in plan.actions if isinstance(action, Refuse)}
        if not plan.actions and not any(job.state is JobState.PAUSING for job in snapshot.jobs):
            names = tuple(sorted(paused)), tuple(sorted(started))
            waits = decision.waits
            return Foresight(paused=names[0], started=names[1], refused=refused, waits=waits, snapshot=snapshot)
        snapshot = advance(snapshot, plan)
    raise RuntimeError(f"the plan does not come to rest within {rounds} rounds")


def advance(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The world one round later: who was leaving has left, the plan is applied, what was starting runs."""
    return _World(snapshot).after(plan)


class _World:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.jobs = {job.id: job for job in snapshot.jobs}
        self.notebooks = {notebook.id: notebook for notebook in snapshot.notebooks}
        self.allocations = list(snapshot.allocations)
        self.reservations = {one.workload: one for one in snapshot.reservations}

    def after(self, plan: Plan) -> Snapshot:
        self._let_leave()
        for action in plan.actions:
            match action:
                case Start() | Resume():
                    self._start(action)
                case Pause():
                    counts = action.reason.code not in RESIZED
                    self._ask_to_leave(action.workload, JobTarget.PAUSED, action.claimer, counts=counts)
                case Stop():
                    self._ask_to_leave(action.workload, action.target, None)
                case Refuse():
                    self._mark(action.workload, NotebookState.REFUSED)
                case Lend():
                    self._lend(action.workload)
                case Release():
                    self._mark(action.workload, NotebookState.RETURNED)
                case Reserve():
                    self.reservations[action.workload] = Reservation(
                        workload=action.workload, placements=action.placements, reserved_at=plan.now
                    )
                case Unreserve():
                    self.reservations.pop(action.workload, None)
        return replace(
            self.snapshot,
            jobs=tuple(self.jobs.values()),
            notebooks=tuple(self.notebooks.values()),
            allocations=tuple(self.allocations),
            reservations=tuple(self.reservations.values()),
        )

    def _let_leave(self) -> None:
        gone = {job.id for job in self.jobs.values() if job.state is JobState.PAUSING}
        self.allocations = [one for one in self.allocations if one.workload not in gone]
        for name in gone:
            job = self.jobs[name]
            if job.target in (JobTarget.PAUSED, JobTarget.RUNNING):
                self.jobs[name] = replace(
                    job, state=JobState.PAUSED, target=JobTarget.RUNNING, borrower=False, held_ranks=None
                )
            else:
                self.jobs[name] = replace(job, state=_RESTS[job.target])

    def _start(self, action: Start | Resume) -> None:
        name = action.workload
        self.allocations += [_owned(name, placement, at) for at, placement in enumerate(action.placements)]
        self.reservations.pop(name, None)
        if name in self.notebooks:
            self._mark(name, NotebookState.BOOKED)
            self.notebooks[name] = replace(self.notebooks[name], device=None, lent_at=None)
            return
        now, job = self.snapshot.now, self.jobs[name]
        self.jobs[name] = replace(
            job,
            state=JobState.RUNNING,
            target=JobTarget.RUNNING,
            attempt=action.attempt,
            started_at=now,
            paused_for=None,
            borrower=action.borrower,
            held_ranks=None if job.min_ranks is None else len({part.rank for part in action.placements}),
        )

    def _ask_to_leave(self, name: str, target: JobTarget, claimer: str | None, *, counts: bool = False) -> None:
        job = self.jobs[name]
        counted = (*job.paused_at, self.snapshot.now) if counts else job.paused_at
        self.jobs[name] = replace(job, state=JobState.PAUSING, target=target, paused_for=claimer, paused_at=counted)

    def _lend(self, name: str) -> None:
        device = next((one.device for one in self.allocations if one.workload == name), None)
        self.allocations = [one for one in self.allocations if one.workload != name]
        self._mark(name, NotebookState.LENT)
        self.notebooks[name] = replace(self.notebooks[name], device=device, lent_at=self.snapshot.now)

    def _mark(self, name: str, state: NotebookState) -> None:
        notebook: Notebook = self.notebooks[name]
        self.notebooks[name] = replace(notebook, state=state)


_RESTS = {
    JobTarget.HELD: JobState.HELD,
    JobTarget.CANCELLED: JobState.CANCELLED,
    JobTarget.FAILED: JobState.FAILED,
}


def _owned(workload: str, placement: Placement, at: int) -> Allocation:
    return Allocation(
        id=f"{workload}/{at}",
        workload=workload,
        rank=placement.rank,
        device=placement.device,
        gpu_milli=placement.gpu_milli,
        memory_mib=placement.memory_mib,
    )
