"""Projects with endless demand, played in ticks: each keeps some jobs queued, and every job runs for a fixed time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

from jupyter_gpu_quota.core.lifecycle import WAITING
from jupyter_gpu_quota.core.model import Job, JobState
from jupyter_gpu_quota.core.plan import Plan
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.core.cluster import BEGIN, TICK_MS, World
from tests.core.world import world


class Demand(NamedTuple):
    """What a project always wants: ``queued`` waiting jobs, in turn of these sizes in GPUs; each runs ``runs_s``.

    Their time limit is ``limit_s``, or a quarter more than they run.
    """

    project: str
    gpus: tuple[int, ...]
    runs_s: int = 20
    queued: int = 1
    limit_s: int | None = None

    @property
    def time_limit_s(self) -> int:
        return self.limit_s or self.runs_s + self.runs_s // 4


@dataclass(slots=True)
class Endless:
    """A world with endless demand."""

    made: World
    demands: Sequence[Demand]
    used: Counter[str] = field(default_factory=Counter)
    """Milli-GPU times seconds above quota, by project."""
    idle: Counter[str] = field(default_factory=Counter)
    """For how many seconds each device has been idle until now."""
    longest_idle_s: int = 0
    first_starts: dict[str, int] = field(default_factory=dict)
    """The second of the world in which each job first started."""
    _sizes: dict[int, cycle[int]] = field(default_factory=dict)
    _runs: dict[str, Demand] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)

    def play(self, seconds: int, *, warm_up_s: int = 0) -> None:
        """Play so many ticks; use is counted after the first ``warm_up_s``."""
        for at in range(seconds):
            self.step(counts=at >= warm_up_s)

    def step(self, *, counts: bool = True) -> Plan:
        """One tick: jobs end, others arrive, and a plan is made and applied."""
        self._end_jobs()
        self._submit()
        self.made.pass_time()
        plan = decide(self.made.snapshot(), self.made.policy)
        self.made.apply(plan)
        self._note(counts)
        return plan

    def parts(self) -> dict[str, float]:
        """Each project's part of all use above quota."""
        total = sum(self.used.values())
        return {demand.project: self.used[demand.project] / total for demand in self.demands}

    @property
    def now_s(self) -> int:
        return (self.made.now - BEGIN) // 1000

    # --- one tick -------------------------------------------------------------------------------------------------
    def _end_jobs(self) -> None:
        for name in [name for name, left in self._left.items() if left <= 0]:
            del self._left[name]
            self.made.end(name)

    def _submit(self) -> None:
        for at, demand in enumerate(self.demands):
            sizes = self._sizes.setdefault(at, cycle(demand.gpus))
            waiting = sum(self._runs.get(job.id) is demand for job in self._in_state(WAITING))
            for _ in range(demand.queued - waiting):
                job = self.made.submit(demand.project, 1000 * next(sizes), time_limit_s=demand.time_limit_s)
                self._runs[job.id] = demand

    def _note(self, counts: bool) -> None:
        for job in self._in_state((JobState.STARTING, JobState.RUNNING)):
            self.first_starts.setdefault(job.id, self.now_s)
            if job.id in self._runs:
                self._left[job.id] = self._left.get(job.id, self._runs[job.id].runs_s) - TICK_MS // 1000
        for project in self.made.policy.projects if counts else ():
            quota = project.amounts["t"].training_milli
            self.used[project.name] += max(0, self.made.holding(project.name, "t") - quota)
        self._note_idle()

    def _note_idle(self) -> None:
        used = {one.device for rows in self.made.owned.values() for one in rows}
        for device in self.made.devices:
            self.idle[device] = 0 if device in used else self.idle[device] + 1
        self.longest_idle_s = max(self.longest_idle_s, *self.idle.values())

    def _in_state(self, states: Iterable[JobState]) -> list[Job]:
        return [job for job in self.made.jobs.values() if job.state in states]


def endless(text: str, *demands: Demand) -> Endless:
    """A world of ``tests.core.world`` in the pool ``t``, with endless demand."""
    return Endless(world(text), demands)
