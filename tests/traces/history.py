"""What a trace did to its job or project, recorded while the simulator replays it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jupyter_gpu_quota.core.scheduling.decide import decide_and_explain
from jupyter_gpu_quota.simulate.record import Record
from jupyter_gpu_quota.simulate.replay import Replay
from jupyter_gpu_quota.store.records.rows import Changes
from tests.traces.streams import HOUR_S, Case

GPU_HOUR = 1000 * HOUR_S * 1000
"""In milli-GPU times milliseconds."""


@dataclass(slots=True)
class PlannedStarts:
    """Observes the planned starts of one job, in seconds of the trace: (at, planned start) at each change of it."""

    job: str
    replay: Replay | None = None
    steps: list[tuple[int, int | None]] = field(default_factory=list)
    is_waiting: bool = True

    def observe(self, changes: Changes, now: int) -> None:
        """Look at the reservations after the decisions of an instant."""
        for record in changes.jobs:
            if record.job.id == self.job and record.job.attempt:
                self.is_waiting = False
        if self.is_waiting and self.replay is not None:
            self._look(self.replay, now)

    def _look(self, replay: Replay, now: int) -> None:
        policy, snapshot = replay.controller.mirror.policy_at(now), replay.controller.mirror.snapshot(now)
        if policy is None or not any(job.id == self.job for job in snapshot.jobs):
            return
        kept = [one for one in decide_and_explain(snapshot, policy).backfill if one.workload == self.job]
        planned = (kept[0].starts_at - replay.trace.begins_at) // 1000 if kept else None
        if not self.steps or self.steps[-1][1] != planned:
            self.steps.append(((now - replay.trace.begins_at) // 1000, planned))


@dataclass(frozen=True, slots=True)
class History:
    """The result of a trace after ``days``: times in seconds of the trace, use in GPU-hours by project."""

    days: float
    started_s: int | None
    planned: list[tuple[int, int | None]]
    gpu_hours: dict[str, float]
    curve: list[tuple[float, float]]
    """Hours of the trace, and the lesser project's GPU-hours until then."""

    @property
    def first_planned_s(self) -> int | None:
        """The planned start that was recorded first."""
        return next((planned for _, planned in self.planned if planned is not None), None)


def played(case: Case, days: float) -> History:
    """Replay a trace for so many days."""
    record, starts = Record(), PlannedStarts(case.job)
    observers = (record, starts) if case.job else (record,)
    replay = Replay(case.trace(), case.quota(), observers=observers)
    starts.replay = replay
    begin = replay.trace.begins_at
    end = begin + round(days * 24 * HOUR_S * 1000)
    replay.run(until=end)
    hours = defaultdict[str, float](float)
    for (name, _), curve in sorted(record.used_by.items()):
        hours[name] += curve.area(begin, end) / GPU_HOUR
    allocated = record.jobs[case.job].allocated_at if case.job else None
    started_s = None if allocated is None else (allocated - begin) // 1000
    return History(days, started_s, starts.steps, hours, _curve(record, case, begin, end))


def _curve(record: Record, case: Case, begin: int, end: int) -> list[tuple[float, float]]:
    """The GPU-hours of the lesser project, every eight hours."""
    if not case.project:
        return []
    step = 8 * HOUR_S * 1000
    used = [curve for (name, _), curve in record.used_by.items() if name == case.project]
    return [
        ((at - begin) / HOUR_S / 1000, sum(one.area(begin, at) for one in used) / GPU_HOUR)
        for at in range(begin + step, end + 1, step)
    ]
