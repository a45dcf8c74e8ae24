"""Kueue's published scheduling experiments, played on the shipped controller and core.

"baseline": 5 cohorts of 6 queues. A cohort is a pool of 120 devices on one node; a queue is a project with quota 20 and
limit 120. Each queue brings 350 small, 100 medium and 50 large jobs of 1, 5 and 20 GPUs, one every 100, 500 and
1,200 ms (the first after one interval), which run 200, 500 and 1,000 ms, at priority 50, 100 and 200 (here 25, 50
and 100).

What a pause costs is what it costs there: work that is evicted leaves at once and starts again from nothing.
Source: kubernetes-sigs/kueue, test/performance/scheduler/configs and runner/controller/controller.go.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.controllers import scheduling as controller_module
from jupyter_gpu_quota.controllers.main import reduce_garbage_collection
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.simulate.replay import Replay
from jupyter_gpu_quota.simulate.simulation_store import SimulationStore
from jupyter_gpu_quota.simulate.tracefile import JobWork, NodeSpec, Trace
from tests.benchmarks.figures import Figure

QUOTA_GPUS, COHORT_GPUS = 20, 120
WITHOUT_BOUND = 1_000_000
"""Pauses of a job in a day: more than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Jobs of one size in each queue."""

    name: str
    count: int
    gpus: int
    every_ms: int
    runs_ms: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One of the experiments."""

    cohorts: int
    queues: int
    kinds: tuple[Kind, ...]


BASELINE = Shape(
    cohorts=5,
    queues=6,
    kinds=(
        Kind(name="small", count=350, gpus=1, every_ms=100, runs_ms=200, priority=25),
        Kind(name="medium", count=100, gpus=5, every_ms=500, runs_ms=500, priority=50),
        Kind(name="large", count=50, gpus=20, every_ms=1200, runs_ms=1000, priority=100),
    ),
)
LARGE_SCALE = Shape(
    cohorts=10,
    queues=100,
    kinds=(
        Kind(name="small", count=35, gpus=1, every_ms=60, runs_ms=150, priority=25),
        Kind(name="medium", count=11, gpus=5, every_ms=300, runs_ms=350, priority=50),
        Kind(name="large", count=4, gpus=20, every_ms=700, runs_ms=700, priority=100),
    ),
)


def quota_of(shape: Shape, tick_max: str, *, pauses: int | None = None) -> QuotaFile:
    """The quota file: who runs is protected by no minimum run time, and given no time to leave, as there.

    ``pauses``: the most pauses of a job in a day; None is the product's default. The published experiment has no bound.
    """
    bound = "" if pauses is None else f", max_pauses: {pauses}"
    pools = "\n".join(f"  - {{name: cohort-{c}, selector: {{node: [cohort-{c}]}}}}" for c in range(shape.cohorts))
    projects = "\n".join(
        f"  - {{name: queue-{c}-{q}, quota: {{cohort-{c}: {{training: {QUOTA_GPUS}, limit: {COHORT_GPUS}}}}},"
        f" defaults: {{pool: {{training: cohort-{c}}}}}}}"
        for c in range(shape.cohorts)
        for q in range(shape.queues)
    )
    text = f"""
version: 1
pools:
{pools}
projects:
{projects}
policy:
  preemption: {{min_runtime: 0s, grace: 0s, lent_grace: 0s{bound}}}
  tick_max: {tick_max}
"""
    file = quotafile.parse(text)
    assert isinstance(file, QuotaFile), file
    return file


def trace_of(shape: Shape, *, at_once: bool, gpus: int | None = None) -> Trace:
    """The work of every queue."""
    nodes = [NodeSpec(name=f"cohort-{c}", gpus=gpus or shape.queues * QUOTA_GPUS) for c in range(shape.cohorts)]
    work = [
        JobWork(
            id=f"{c}-{q:03d}-{kind.name}-{at:03d}",
            kind="training",
            submit_s=0 if at_once else (at + 1) * kind.every_ms / 1000,
            project=f"queue-{c}-{q}",
            user="runner",
            gpu=kind.gpus,
            duration_s=kind.runs_ms / 1000,
            priority=kind.priority,
        )
        for c in range(shape.cohorts)
        for q in range(shape.queues)
        for kind in shape.kinds
        for at in range(kind.count)
    ]
    return Trace(nodes=nodes, work=sorted(work, key=lambda one: one.submit_ms))


@dataclass(slots=True)
class Costs:
    """Processor seconds by step, and how often each was taken."""

    spent: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return call(*given, **named)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - begun
                self.calls[name] = self.calls.get(name, 0) + 1

        return run


@contextmanager
def costs_of(replay: Replay) -> Iterator[Costs]:
    """Times what a controller calls."""
    costs, shipped = Costs(), controller_module.decide
    controller, store, executor = replay.controller, replay.store, replay.executor
    controller_module.decide = costs.timed("decide", shipped)
    for owner, names in (
        (store, ("observe", "commit", "changes", "record", "acquire_lease")),
        (executor, ("observe", "start", "stop")),
        (controller.mirror, ("update", "snapshot", "digest")),
    ):
        for name in names:
            label = f"{type(owner).__name__}.{name}"
            setattr(owner, name, costs.timed(label, getattr(owner, name)))
    try:
        yield costs
    finally:
        controller_module.decide = shipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One experiment after it was played in virtual time."""

    makespan_s: float
    jobs: int
    lost_gpu_s: float
    evictions: int
    costs: Costs


def play(shape: Shape, *, at_once: bool, until_ms: int | None = None) -> Played:
    """Play a shape; ``until_ms`` stops early. All its instants are tenths of a second, and so is the tick."""
    reduce_garbage_collection()
    replay = Replay(
        trace_of(shape, at_once=at_once), quota_of(shape, "100ms", pauses=WITHOUT_BOUND), store=SimulationStore()
    )
    begins_at = replay.trace.begins_at
    with costs_of(replay) as costs:
        replay.run(until=None if until_ms is None else begins_at + until_ms)
    runs, gpus = replay.executor.runs, {str(work.id): work.gpu_milli for work in replay.trace.work}
    return Played(
        makespan_s=(max(run.stopped_at for run in runs) - begins_at) / 1000,
        jobs=len(gpus) - len(replay.controller.mirror.jobs),
        lost_gpu_s=sum(run.lost_ms * gpus[run.job] for run in runs) / 1e6,
        evictions=sum(run.lost_ms > 0 for run in runs),
        costs=costs,
    )


AS_THERE = "evicted work ends at once and starts again from the beginning, as in the published experiment"
PEER_SPAN = {True: "Kueue, in process on two cores: 66.1 s", False: "Kueue, in process on two cores: 76.8 s"}
PEER_DECISIONS = {True: "Kueue, in process on two cores: 8.1 s", False: "Kueue, in process on two cores: 9.7-11.5 s"}
BOUNDS_S = {True: 67.0, False: 68.0}
DECISIONS_S = 4.0
ROUNDS = 3


def figures() -> list[Figure]:
    """The baseline shape in virtual time, all at once and with arrivals."""
    return [figure for at_once in (True, False) for figure in _figures(at_once)]


def _figures(at_once: bool) -> list[Figure]:
    found = min((play(BASELINE, at_once=at_once) for _ in range(ROUNDS)), key=lambda one: one.costs.spent["decide"])
    name = f"kueue baseline, {'all at once' if at_once else 'with arrivals'}"
    timed = f"{found.jobs} jobs, virtual time; {AS_THERE}"
    spent = found.costs.spent
    steps = ", ".join(f"{step} {spent[step]:.1f} s" for step in sorted(spent, key=lambda one: -spent[one])[:5])
    return [
        Figure(name=f"{name}: makespan", value=found.makespan_s, unit="s", timed=timed, bound=BOUNDS_S[at_once],
               peers=PEER_SPAN[at_once]),
        Figure(
            name=f"{name}: sum of all decisions", value=spent["decide"], unit="s", bound=DECISIONS_S,
            peers=PEER_DECISIONS[at_once],
            timed=f"{found.costs.calls['decide']} decisions, CPU time, Snapshot object to Plan, best of {ROUNDS}; "
            f"all steps: {steps}",
        ),
        Figure(name=f"{name}: lost work", value=found.lost_gpu_s, unit="GPU-s",
               timed=f"{found.evictions} evictions; {AS_THERE}"),
    ]  # fmt: skip


def main() -> None:
    for one in figures():
        verdict = {None: "", True: "holds", False: "MISSED"}[one.holds]
        sys.stdout.write(f"{one.name:55} {one.value:10.2f} {one.unit:6} {verdict:7} {one.timed}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
