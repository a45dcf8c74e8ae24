"""A world: a state that plans change, with a clock, jobs that end by themselves, and streams of arrivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from .documents import snapshot_document
from .model import ENDLESS_S, Device, Job, Notebook, Policy, State
from .product import Document, plan_of
from .steps import Step

TICK_MS = 1000
NEVER_S = 10**6
Decide = Callable[[Document], Document]


@dataclass(slots=True, kw_only=True)
class Arrival:
    """What a world does at an instant: a new job or notebook, or one that changes."""

    at: int
    job: Job | None = None
    runs_s: int = ENDLESS_S
    notebook: Notebook | None = None
    ends: str = ""
    """A workload that its owner ends."""
    activity: tuple[str, str] | None = None
    """A notebook, and how it is used from now on."""
    policy: Policy | None = None
    """The quota file from now on."""
    device: Device | None = None
    """A device as it is from now on; its upkeep and deadline are those of the whole node."""


@dataclass(slots=True, kw_only=True)
class World:
    """A state and what only the world knows: how long jobs run, and how long they take to leave."""

    state: State
    seed: int
    kind: str
    random: Random
    live_s: int = 0
    """How long work arrives and ends."""
    arrivals: list[Arrival] = field(default_factory=list)
    """Sorted by instant."""
    left_s: dict[str, int] = field(default_factory=dict)
    """The running time that a job still needs; a job that is not here runs until its time limit."""
    leaves_at: dict[str, int] = field(default_factory=dict)
    late: bool = False
    """Whether some work does not end in time when it is paused or stopped (R58), mostly where claims wait for more."""
    late_jobs: set[str] = field(default_factory=set)
    frozen: bool = False
    """Whether demand and past use stay as they are."""
    clock_stops: bool = False
    """Whether the clock stands still, too; processes leave nevertheless."""

    def document(self) -> Document:
        return snapshot_document(self.state)

    def decide(self, by: Decide = plan_of) -> Step:
        """Let the product decide, apply its plan, and return both."""
        before = self.state
        step = Step(before, by(self.document()))
        self.state = step.after.copy()
        self._note_leaving(step)
        return step

    def _note_leaving(self, step: Step) -> None:
        """Each job that is paused or stopped takes part of its grace, or all of it."""
        for action in step.of_kind("pause", "stop"):
            if action.workload in self.state.jobs:
                self.leaves_at[action.workload] = self.random.randint(0, action.grace_s)
                if self.late and self.random.random() < (1 if self._has_several(action.preemptor) else 0.2):
                    self.leaves_at[action.workload] += self.random.choice((4, 12, NEVER_S, NEVER_S))
                    self.late_jobs.add(action.workload)
        for name in step.started:
            self.leaves_at.pop(name, None)

    def _has_several(self, preemptor: str) -> bool:
        """Whether a claim has several devices reserved."""
        kept = self.state.reserved.get(preemptor)
        return kept is not None and len(kept.placements) > 1

    # --- the clock --------------------------------------------------------------------------------------------------
    def advance(self, seconds: int = 1) -> None:
        """Let time pass: work leaves and ends, and what arrives comes into the snapshot."""
        self._count_usage(seconds)
        if not self.clock_stops:
            self.state.now += seconds * TICK_MS
        self.state.version += 1
        for job in list(self.state.jobs.values()):
            if job.leaves:
                self._let_leave(job, seconds)
            elif job.runs and not self.frozen:
                self._let_work(job, seconds)
        if not self.frozen:
            self._let_arrive()
        if self.late:
            self._quarantine()

    @property
    def leaving(self) -> bool:
        """Whether work is being stopped that will end."""
        return any(job.leaves and self.leaves_at.get(job.id, 0) < NEVER_S // 2 for job in self.state.jobs.values())

    def _quarantine(self) -> None:
        """R58: the devices of work that does not end in time are quarantined until it is gone."""
        jobs, held = self.state.jobs, self.state.held
        self.late_jobs = {name for name in self.late_jobs if name in jobs and jobs[name].leaves}
        stuck = {one.device for name in self.late_jobs for one in held.get(name, ())}
        for one in list(self.state.devices.values()):
            known = "healthy" if one.health == "quarantined" else one.health
            health = "quarantined" if one.id in stuck and known == "healthy" else known
            if health != one.health:
                self.state.devices = {**self.state.devices, one.id: replace(one, health=health)}

    def _let_leave(self, job: Job, seconds: int) -> None:
        self.leaves_at[job.id] = self.leaves_at.get(job.id, 0) - seconds
        if self.leaves_at[job.id] >= 0:
            return
        self.state.held.pop(job.id, None)
        job.held_ranks, job.borrower = None, False
        if job.target == "paused":
            job.state, job.target = "paused", "running"
        else:
            self.remove(job.id)

    def _let_work(self, job: Job, seconds: int) -> None:
        if job.id not in self.left_s:
            return
        self.left_s[job.id] -= seconds
        if self.left_s[job.id] <= 0:
            self.remove(job.id)

    def remove(self, workload: str) -> None:
        """A workload ends: its devices are free, and what was reserved for it is dropped."""
        state = self.state
        for rows in (state.jobs, state.notebooks, state.held, state.reserved, self.left_s, self.leaves_at):
            rows.pop(workload, None)
        for pool in [name for name, one in state.backfill.items() if one.workload == workload]:
            del state.backfill[pool]

    def _let_arrive(self) -> None:
        while self.arrivals and self.arrivals[0].at <= self.state.now:
            self._arrive(self.arrivals.pop(0))

    def _arrive(self, one: Arrival) -> None:
        if one.job is not None:
            one.job.submitted_at = one.at
            self.state.jobs[one.job.id] = one.job
            if one.runs_s < one.job.time_limit_s:
                self.left_s[one.job.id] = one.runs_s
        if one.notebook is not None:
            one.notebook.requested_at = one.at
            self.state.notebooks[one.notebook.id] = one.notebook
        if one.ends and (one.ends in self.state.jobs or one.ends in self.state.notebooks):
            self._end(one.ends)
        if one.activity is not None and one.activity[0] in self.state.notebooks:
            notebook = self.state.notebooks[one.activity[0]]
            notebook.activity = one.activity[1]
            notebook.seen_empty = notebook.activity == "idle"
        self.state.policy = one.policy or self.state.policy
        if one.device is not None:
            self._replace_device(one.device)

    def _replace_device(self, device: Device) -> None:
        """The device as it is now, and the other devices of its node with its upkeep."""
        devices = self.state.devices
        upkeep = {"upkeep": device.upkeep, "drain_by_at": device.drain_by_at}
        found = {name: replace(one, **upkeep) for name, one in devices.items() if one.node == device.node}
        self.state.devices = {**devices, **found, device.id: device}

    def _end(self, workload: str) -> None:
        job = self.state.jobs.get(workload)
        if job is None or not job.leaves:
            self.remove(workload)

    def _count_usage(self, seconds: int) -> None:
        """R20: decay past use by the half-life, and add what was used above quota."""
        if self.frozen:
            return
        state = self.state
        decay = 0.5 ** (seconds / state.policy.half_life_s)
        used: dict[tuple[str, str], int] = {}
        for job in state.jobs.values():
            key = (job.project, job.pool)
            used[key] = used.get(key, 0) + state.held_milli(job.id)
        for name, project in state.policy.projects.items():
            for pool in state.policy.pools:
                above = max(0, used.get((name, pool), 0) - project.of(pool).training)
                key = (name, pool)
                state.usage[key] = int(state.usage.get(key, 0) * decay) + above * seconds
