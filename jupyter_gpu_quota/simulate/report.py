"""The figures of simulations: allocation, use, waits, pauses, fairness and fragmentation, as plain JSON values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..backends.simulated.jobs import Run
from ..core.amounts import counted
from ..core.lifecycle import FINAL
from ..core.model import WHOLE_DEVICE, JobState, Policy
from ..core.quota.in_force import in_force
from ..quotafile import QuotaFile
from ..quotafile.document import DAY_S, HORIZON_DAYS
from .guarantee import GuaranteeMonitor, ProjectPool, Violation
from .never_started import Unstarted, by_reason, unstarted
from .notebook_servers import Wake
from .record import Curve, Record, WorkloadRecord
from .replay import Replay
from .tracefile import Trace

POINTS = 240
"""The points of a curve in a report."""

MAX_NAMED_PROJECTS = 12
"""Projects with a curve of their own; the other projects have one curve together."""

GPU_HOUR = WHOLE_DEVICE * 3_600_000
DAY_MS = DAY_S * 1000
SIZES = ("notebook", "small", "medium", "large")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one simulation. ``reduced``: pools whose guarantees were not checked, as the quotas did not fit.

    ``used``: the bursts of each notebook that has them, as (from, to). ``kernels_freed`` lost their variables.
    ``quotas``: the training quotas over time.
    ``unstarted``: the work that never had a device, with the reason.
    """

    seed: int
    trace: Trace
    record: Record
    runs: Sequence[Run]
    used: Mapping[str, Sequence[tuple[int, int]]]
    wakes: Sequence[Wake]
    slices_lent: int
    kernels_freed: int
    violations: Sequence[Violation]
    reduced: frozenset[str]
    quotas: Mapping[ProjectPool, Curve]
    began_at: int
    ended_at: int
    instants: int
    unstarted: Sequence[Unstarted] = ()


def simulate_trace(
    trace: Trace,
    quota: QuotaFile,
    *,
    seed: int = 0,
    until_ms: int | None = None,
    progress: Callable[[int], None] = lambda now: None,
) -> Outcome:
    """Simulate a trace to its end, or for ``until_ms``. Raises InvalidTrace, and the errors of the controllers."""
    record, policy = Record(), _policy_over(quota, trace, until_ms)
    monitor = GuaranteeMonitor(policy, quota.tick_max_ms)
    replay = Replay(trace, quota, observers=(record, monitor))
    until = None if until_ms is None else trace.begins_at + until_ms
    replay.run(until=until, progress=progress)
    runs = [*replay.executor.runs, *replay.executor.unfinished_runs()]
    ends = [run.stopped_at for run in runs] + [notebook.ended_at or 0 for notebook in record.notebooks.values()]
    ended_at = until if until is not None else max([trace.begins_at + 1, *ends])
    return Outcome(
        seed=seed,
        trace=trace,
        record=record,
        runs=runs,
        used=replay.servers.used(replay.clock.now),
        wakes=[*replay.servers.wakes, *replay.servers.waiting_wakes()],
        slices_lent=replay.servers.slices_lent,
        kernels_freed=replay.servers.freed,
        violations=monitor.finish(replay.clock.now),
        reduced=frozenset(monitor.reduced),
        quotas=_quotas(policy, trace.begins_at, ended_at),
        began_at=trace.begins_at,
        ended_at=ended_at,
        instants=replay.instants,
        unstarted=unstarted(replay),
    )


def _policy_over(quota: QuotaFile, trace: Trace, until_ms: int | None) -> Policy:
    """The policy with its calendar expanded over the simulated time: to its end, or long after the last submission."""
    last_ms = max((work.submit_ms for work in trace.work), default=0) if until_ms is None else until_ms
    return quota.policy(1, trace.begins_at, days=last_ms // DAY_MS + HORIZON_DAYS)


def _quotas(policy: Policy, begins_at: int, ended_at: int) -> dict[ProjectPool, Curve]:
    """The training quota of each project in each pool over the simulated time, as windows of the calendar change it."""
    found = defaultdict[ProjectPool, Curve](Curve)
    changes = {at for window in policy.windows for at in (window.begins_at, window.ends_at)}
    for at in sorted({begins_at, *(at for at in changes if begins_at < at < ended_at)}):
        for project in in_force(policy, at).projects:
            for pool, amounts in project.amounts.items():
                found[project.name, pool].set(at, amounts.training_milli)
    return found


# --- the figures ----------------------------------------------------------------------------------------------------
def figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The report's first keys: means over the seeds; waits and pauses over the work of all of them."""
    jobs = [workload for outcome in outcomes for workload in outcome.record.jobs.values()]
    return {
        "seeds": [outcome.seed for outcome in outcomes],
        "gpu_allocation_percent": _mean(map(allocation_percent, outcomes)),
        "gpu_utilisation_percent": _mean(map(utilisation_percent, outcomes)),
        "gpu_allocation_at_saturation_percent": _mean(map(saturation_percent, outcomes)),
        "makespan_s": _mean(makespan_s(outcome) for outcome in outcomes),
        "wait_s": {size: _percentiles(one.wait_ms for one in _workloads(outcomes, size)) for size in SIZES},
        "pauses_per_job_max": max((job.pauses for job in jobs), default=0),
        "guarantee_violations": sum(len(outcome.violations) for outcome in outcomes),
        "jobs_total": len(jobs),
        "jobs_finished": sum(JobState(job.state) in FINAL for job in jobs),
    }


def document(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The whole report."""
    jobs = [workload for outcome in outcomes for workload in outcome.record.jobs.values()]
    notebooks = [workload for outcome in outcomes for workload in outcome.record.notebooks.values()]
    first = outcomes[0]
    return {
        **figures(outcomes),
        "format": 1,
        "simulated": True,
        "mode": "replay",
        **({"durations_unknown": first.trace.note} if first.trace.note else {}),
        "begins_at": datetime.fromtimestamp(first.began_at / 1000, UTC).isoformat(),
        "span_s": _mean((outcome.ended_at - outcome.began_at) / 1000 for outcome in outcomes),
        "gpus": first.record.capacity.steps[0][1] / WHOLE_DEVICE if first.record.capacity.steps else 0,
        "guarantees_reduced_in": sorted(frozenset().union(*(outcome.reduced for outcome in outcomes))),
        "jobs_succeeded": sum(job.state == JobState.SUCCEEDED for job in jobs),
        "notebooks_total": len(notebooks),
        "notebooks_refused": sum(notebook.state == "refused" for notebook in notebooks),
        "gpu_hours_lost_to_pauses": _mean(map(lost_gpu_hours, outcomes)),
        **_lending_figures(outcomes),
        "pauses_per_job": {str(pauses): count for pauses, count in sorted(Counter(j.pauses for j in jobs).items())},
        "never_started": {size: sum(one.allocated_at is None for one in _workloads(outcomes, size)) for size in SIZES},
        "never_started_because": by_reason(outcome.unstarted for outcome in outcomes),
        "wait_s_by_project": _waits_by_project(outcomes),
        "violations": [_violation(each) for outcome in outcomes for each in outcome.violations][:100],
        "projects": _projects(outcomes),
        "over_time": over_time(first),
    }


def _lending_figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The lending of idle notebooks' slices: means over the seeds, and the waits of users who returned."""
    waits = (wake.wait_ms for outcome in outcomes for wake in outcome.wakes)
    return {
        "slices_lent": _mean(outcome.slices_lent for outcome in outcomes),
        "gpu_hours_lent": _mean(map(lent_gpu_hours, outcomes)),
        "kernels_shut_down": _mean(outcome.kernels_freed for outcome in outcomes),
        "woken_wait_s": _percentiles(waits),
    }


def allocation_percent(outcome: Outcome) -> float | None:
    """The allocated part of all GPU time."""
    return _percent(outcome.record.allocated.area(outcome.began_at, outcome.ended_at), _capacity(outcome))


def utilisation_percent(outcome: Outcome) -> float | None:
    """The used part of all GPU time, with the work that a pause discarded."""
    return _percent(_used_curve(outcome).area(outcome.began_at, outcome.ended_at), 1000 * _capacity(outcome))


def saturation_percent(outcome: Outcome) -> float | None:
    """The allocated part of the GPU time in which some work waits."""
    allocated = capacity = 0
    for low, high, waiting in outcome.record.waiting.spans(outcome.began_at, outcome.ended_at):
        if waiting:
            allocated += outcome.record.allocated.area(low, high)
            capacity += outcome.record.capacity.area(low, high)
    return _percent(allocated, capacity)


def makespan_s(outcome: Outcome) -> float | None:
    """The time from the first submission to the last end of a job; None where no job ended."""
    ends = [job.ended_at for job in outcome.record.jobs.values() if job.ended_at is not None]
    return (max(ends) - min(job.asked_at for job in outcome.record.jobs.values())) / 1000 if ends else None


def not_ended(report: Mapping[str, Any]) -> str:
    """How many jobs of a report have not ended; ``makespan_s`` does not include them. Empty where all ended."""
    jobs, running = report["jobs_total"], report["jobs_total"] - report["jobs_finished"]
    return f"{running} of {counted(jobs, 'job')} had not ended" if running else ""


def lost_gpu_hours(outcome: Outcome) -> float:
    """The GPU-hours of work that was repeated, because it was not saved before a pause or the loss of its node."""
    return sum(run.lost_ms * outcome.record.jobs[run.job].size_milli for run in outcome.runs) / GPU_HOUR


def lent_gpu_hours(outcome: Outcome) -> float:
    """The GPU-hours of lent slices."""
    return outcome.record.lent.area(outcome.began_at, outcome.ended_at) / GPU_HOUR


def _capacity(outcome: Outcome) -> int:
    return outcome.record.capacity.area(outcome.began_at, outcome.ended_at)


def _use_spans(outcome: Outcome, name: str, notebook: WorkloadRecord) -> Sequence[tuple[int, int]]:
    """When a notebook's cells used its slice: in their bursts, or all the time where the trace has none."""
    if name in outcome.used or notebook.allocated_at is None:
        return outcome.used.get(name, ())
    return [(notebook.allocated_at, notebook.ended_at or outcome.ended_at)]


# --- waits ----------------------------------------------------------------------------------------------------------
def _size(workload: WorkloadRecord) -> str:
    gpus = workload.size_milli / WHOLE_DEVICE
    return "small" if gpus <= 1 else "medium" if gpus <= 8 else "large"


def _workloads(outcomes: Iterable[Outcome], size: str) -> list[WorkloadRecord]:
    if size == "notebook":
        found = (one for outcome in outcomes for one in outcome.record.notebooks.values())
        return [notebook for notebook in found if notebook.state != "refused"]
    return [job for outcome in outcomes for job in outcome.record.jobs.values() if _size(job) == size]


def _waits_by_project(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    by_project: dict[str, list[int | None]] = {}
    for outcome in outcomes:
        for job in outcome.record.jobs.values():
            by_project.setdefault(job.project, []).append(job.wait_ms)
    return {name: _percentiles(by_project[name]) for name in sorted(by_project)}


def _percentiles(waits: Iterable[int | None]) -> dict[str, float | None]:
    """Percentiles in seconds of the waits in ms that ended."""
    ended = sorted(wait for wait in waits if wait is not None)
    ranks = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    if not ended:
        return dict.fromkeys(ranks)
    return {name: ended[max(0, -(-len(ended) * percent // 100) - 1)] / 1000 for name, percent in ranks.items()}


# --- over time ------------------------------------------------------------------------------------------------------
def over_time(outcome: Outcome) -> dict[str, object]:
    """Curves with ``POINTS`` points, each the mean over its interval."""
    record, span = outcome.record, (outcome.began_at, outcome.ended_at, POINTS)
    capacity = record.capacity.means(*span)
    allocated = record.allocated.means(*span)
    fragmented = record.fragmented.means(*span)
    free = [have - given for have, given in zip(capacity, allocated, strict=True)]
    return {
        "at_s": [round((outcome.ended_at - outcome.began_at) * part / POINTS / 1000, 3) for part in range(POINTS)],
        "gpus": _gpus(capacity),
        "allocated_gpus": _gpus(allocated),
        "used_gpus": _gpus(value / 1000 for value in _used_curve(outcome).means(*span)),
        "waiting": [round(value, 2) for value in record.waiting.means(*span)],
        "fragmented_percent": [_percent(part, whole) or 0.0 for part, whole in zip(fragmented, free, strict=True)],
        "lent_gpus": _gpus(record.lent.means(*span)),
        "surplus_gpus": {name: _gpus(curve.means(*span)) for name, curve in _surplus_curves(outcome).items()},
    }


def _gpus(milli: Iterable[float]) -> list[float]:
    return [round(value / WHOLE_DEVICE, 3) for value in milli]


def _used_curve(outcome: Outcome) -> Curve:
    """The used GPU at each instant, in millionths of a GPU."""
    work = {str(each.id): each for each in outcome.trace.work}
    changes: Counter[int] = Counter()
    for run in outcome.runs:
        busy = outcome.record.jobs[run.job].size_milli * work[run.job].use_permille
        changes[run.began_at] += busy
        changes[run.stopped_at] -= busy
    for name, notebook in outcome.record.notebooks.items():
        busy = notebook.size_milli * work[notebook.work].use_permille
        for begin, end in _use_spans(outcome, name, notebook):
            changes[begin] += busy
            changes[end] -= busy
    return _summed(changes)


def _summed(changes: Mapping[int, int]) -> Curve:
    """The curve of a quantity that changes by so much at each instant."""
    curve, value = Curve(), 0
    for at in sorted(changes):
        value += changes[at]
        curve.set(at, value)
    return curve


def _surplus(outcome: Outcome, name: str) -> Curve:
    """The GPU of a project's jobs above its training quota: of each pool by itself, and then of all pools together."""
    pools = (key for key in outcome.record.used_by if key[0] == name)
    return _sum_of_curves(_above(outcome.record.used_by[key], outcome.quotas.get(key) or Curve()) for key in pools)


def _above(curve: Curve, bound: Curve) -> Curve:
    """The part of a curve above another one; each is 0 before its first change."""
    changes = defaultdict[int, dict[bool, int]](dict)
    for is_bound, steps in ((False, curve.steps), (True, bound.steps)):
        for at, value in steps:
            changes[at][is_bound] = value
    found, now = Curve(), {False: 0, True: 0}
    for at in sorted(changes):
        now |= changes[at]
        found.set(at, max(0, now[False] - now[True]))
    return found


def _surplus_curves(outcome: Outcome) -> dict[str, Curve]:
    """The curves of the projects with the largest surplus, by name, and of all others together."""
    curves = {name: _surplus(outcome, name) for name in sorted({name for name, _ in outcome.record.used_by})}
    areas = {name: curve.area(outcome.began_at, outcome.ended_at) for name, curve in curves.items()}
    named = sorted(sorted(areas, key=lambda name: (-areas[name], name))[:MAX_NAMED_PROJECTS])
    found = {name: curves[name] for name in named}
    if rest := [curve for name, curve in curves.items() if name not in found]:
        found["all others"] = _sum_of_curves(rest)
    return found


def _sum_of_curves(curves: Iterable[Curve]) -> Curve:
    changes: Counter[int] = Counter()
    for curve in curves:
        before = 0
        for at, value in curve.steps:
            changes[at] += value - before
            before = value
    return _summed(changes)


def _projects(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    """The GPU-hours of each project, and its part of all surplus."""
    gpu_time: Counter[str] = Counter()
    surplus: Counter[str] = Counter()
    for outcome in outcomes:
        for (name, _), curve in outcome.record.used_by.items():
            gpu_time[name] += curve.area(outcome.began_at, outcome.ended_at)
        for name in {name for name, _ in outcome.record.used_by}:
            surplus[name] += _surplus(outcome, name).area(outcome.began_at, outcome.ended_at)
    total = sum(surplus.values())
    return {
        name: {
            "gpu_hours": round(gpu_time[name] / GPU_HOUR / len(outcomes), 3),
            "surplus_gpu_hours": round(surplus[name] / GPU_HOUR / len(outcomes), 3),
            "surplus_percent": _percent(surplus[name], total),
        }
        for name in sorted(gpu_time)
    }


def _violation(each: Violation) -> dict[str, object]:
    return {
        "workload": each.workload,
        "project": each.project,
        "waited_s": each.waited_ms / 1000,
        "promised_s": each.promised_ms / 1000,
    }


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 2) if whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None
