"""Projection: ``decide`` on the snapshot, applied repeatedly until a plan is empty, with no other event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .. import transitions
from ..lifecycle import JobEvent
from ..model import Job, JobState, JobTarget, Policy, Snapshot
from ..plan import CONTINUES, Lend, Pause, Plan, Refuse, Release, Reserve, Resume, Start, Stop, Unreserve
from ..reason_codes import ReasonCode
from ..reasons import Reason
from ..scheduling.decide import decide_and_explain
from .binding_reasons import binding_reasons, decide_with_reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The outcome for a job if it were submitted now. ``pauses`` and ``starts_now`` exclude each other.

    ``restarts`` would restart at once, elsewhere or with fewer ranks. ``grace_s``: the longest grace of the work that
    would leave for it, None where none would.
    """

    starts_now: bool
    borrower: bool
    reason: Reason
    pauses: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    grace_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The state in which plans are empty: what was paused, started and refused on the way, and why the rest waits.

    ``stopped``: by the drain deadline of the quota file.
    """

    paused: tuple[str, ...]
    stopped: tuple[str, ...]
    started: tuple[str, ...]
    refused: Mapping[str, Reason]
    waits: Mapping[str, Reason]
    snapshot: Snapshot


def dry_run(snapshot: Snapshot, policy: Policy, job: Job) -> DryRun:
    """Whether a job would start now, which jobs it would pause, or why it would wait; the job's id must be new."""
    decision = decide_with_reasons(replace(snapshot, jobs=(*snapshot.jobs, job)), policy)
    actions = decision.plan.actions
    for action in actions:
        if isinstance(action, (Start, Resume)) and action.workload == job.id:
            return DryRun(starts_now=True, borrower=action.borrower, reason=action.reason)
    asked = [action for action in actions if isinstance(action, Pause) and action.preemptor == job.id]
    return DryRun(
        starts_now=False,
        borrower=False,
        reason=decision.waits[job.id],
        pauses=tuple(action.workload for action in asked if action.reason.code not in CONTINUES),
        restarts=tuple(action.workload for action in asked if action.reason.code in CONTINUES),
        grace_s=max((action.grace_s for action in asked), default=None),
    )


NOT_YET = frozenset({ReasonCode.WAITS_FOR_DRAIN, ReasonCode.BACKFILL_RESERVED})
"""Reasons that describe an effect on a submitted job; a dry run has no effect, so it has other sentences for them."""


def project(snapshot: Snapshot, policy: Policy) -> Projection:
    """Decide, apply, and decide again with clock and demand frozen, until a plan is empty and no job is leaving.

    Raises RuntimeError if that takes more plans than the workloads can need, which the contract excludes.
    """
    paused, started, refused = dict[str, None](), dict[str, None](), dict[str, Reason]()
    stopped = dict[str, None]()
    rounds = 10 + 2 * (len(snapshot.jobs) + len(snapshot.notebooks))
    for _ in range(rounds):
        decision = decide_and_explain(snapshot, policy)
        plan = decision.plan
        asked = [action for action in plan.actions if isinstance(action, Pause)]
        paused |= {action.workload: None for action in asked if action.reason.code not in CONTINUES}
        stops = [action for action in plan.actions if isinstance(action, Stop)]
        stopped |= {action.workload: None for action in stops if action.reason.code is ReasonCode.DRAIN_DEADLINE}
        started |= {action.workload: None for action in plan.actions if isinstance(action, (Start, Resume))}
        refused |= {action.workload: action.reason for action in plan.actions if isinstance(action, Refuse)}
        if not plan.actions and not any(job.state is JobState.PAUSING for job in snapshot.jobs):
            waits = binding_reasons(snapshot, policy, decision)
            return Projection(
                paused=tuple(sorted(paused)),
                stopped=tuple(sorted(stopped)),
                started=tuple(sorted(started)),
                refused=refused,
                waits=waits,
                snapshot=snapshot,
            )
        snapshot = advance(snapshot, plan, policy)
    raise RuntimeError(f"plans do not become empty within {rounds} rounds")


def advance(snapshot: Snapshot, plan: Plan, policy: Policy) -> Snapshot:
    """The snapshot after one plan: leaving jobs have left, the plan is applied, starting jobs run."""
    return _Projector(snapshot, policy).after(plan)


class _Projector:
    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.snapshot, self.per_s = snapshot, policy.preemption.per_s
        self.jobs = {job.id: job for job in snapshot.jobs}
        self.notebooks = {notebook.id: notebook for notebook in snapshot.notebooks}
        self.allocations = list(snapshot.allocations)
        self.reservations = {one.workload: one for one in snapshot.reservations}

    def after(self, plan: Plan) -> Snapshot:
        self._end_stopping()
        for action in plan.actions:
            match action:
                case Start() | Resume():
                    self._start(action)
                case Pause(workload=name):
                    self.jobs[name] = transitions.paused(self.jobs[name], action, per_s=self.per_s, now=plan.now)
                case Stop(workload=name):
                    self.jobs[name] = transitions.stopped(self.jobs[name], action, now=plan.now)
                case Refuse():
                    self._move(action.workload, "refuse")
                case Lend():
                    self._lend(action.workload)
                case Release():
                    self._move(action.workload, "return")
                case Reserve():
                    self.reservations[action.workload] = transitions.reserved(action, now=plan.now)
                case Unreserve():
                    self.reservations.pop(action.workload, None)
        return replace(
            self.snapshot,
            jobs=tuple(self.jobs.values()),
            notebooks=tuple(self.notebooks.values()),
            allocations=tuple(self.allocations),
            reservations=tuple(self.reservations.values()),
        )

    def _end_stopping(self) -> None:
        gone = {job.id: job for job in self.jobs.values() if job.state is JobState.PAUSING}
        self.allocations = [one for one in self.allocations if one.workload not in gone]
        self.jobs |= {id: transitions.attempt_ended(job, _ENDS[job.target]) for id, job in gone.items()}

    def _start(self, action: Start | Resume) -> None:
        name = action.workload
        self.allocations += [
            transitions.allocation(f"{name}/{at}", name, placement) for at, placement in enumerate(action.placements)
        ]
        self.reservations.pop(name, None)
        if name in self.notebooks:
            self._move(name, "book")
        else:
            job = transitions.started(self.jobs[name], action)
            self.jobs[name] = transitions.seen_running(job, self.snapshot.now)

    def _lend(self, name: str) -> None:
        device = next((one.device for one in self.allocations if one.workload == name), None)
        self.allocations = [one for one in self.allocations if one.workload != name]
        self.notebooks[name] = transitions.lent(self.notebooks[name], device=device, now=self.snapshot.now)

    def _move(self, name: str, event: str) -> None:
        self.notebooks[name] = transitions.notebook_changed(self.notebooks[name], event)


_ENDS = {
    JobTarget.RUNNING: JobEvent.LEFT,
    JobTarget.PAUSED: JobEvent.LEFT,
    JobTarget.HELD: JobEvent.HOLD_DONE,
    JobTarget.CANCELLED: JobEvent.CANCEL_DONE,
    JobTarget.FAILED: JobEvent.FAIL,
}
"""The event when a stopped attempt has ended."""
