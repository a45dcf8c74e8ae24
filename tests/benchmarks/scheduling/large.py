"""A pool of 100,000 devices with 1,000,000 queued jobs: the first decide, ticks that change 1,000 jobs, the memory.

``python -m tests.benchmarks.scheduling.large [DEVICES QUEUED]`` prints the figures. Each decide follows the one before
with the same cache, as in the scheduler. In a tick 500 running jobs have ended and 500 jobs were submitted; the jobs
that the last plan started run, and what it paused is queued again.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jupyter_gpu_quota.controllers.main import reduce_garbage_collection
from jupyter_gpu_quota.core.model import Allocation, Job, JobState, Policy, Snapshot
from jupyter_gpu_quota.core.plan import Pause, Plan, Start
from jupyter_gpu_quota.core.scheduling.cache.decision_cache import DecisionCache
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.benchmarks.figures import Figure, print_plainly
from tests.benchmarks.scheduling.decide import EACH
from tests.benchmarks.scheduling.shapes import huge

DEVICES, QUEUED = 100_000, 1_000_000
FIRST_S, TICK_S, MEMORY_GIB = 10.0, 1.0, 6.0
CHANGES, TICKS, MOST_S = 1_000, 5, 120.0
"""Jobs that change in a tick, the ticks that are measured, and when the measurement ends early."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A snapshot by parts, changed by plans and by a tick."""

    snapshot: Snapshot
    policy: Policy
    jobs: dict[str, Job]
    owned: dict[str, list[Allocation]]

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy) -> Cluster:
        owned: dict[str, list[Allocation]] = {}
        for one in snapshot.allocations:
            owned.setdefault(one.workload, []).append(one)
        return cls(snapshot=snapshot, policy=policy, jobs={job.id: job for job in snapshot.jobs}, owned=owned)

    def apply(self, plan: Plan) -> None:
        """Work starts and is paused at once; reservations are not recorded."""
        for action in plan.actions:
            if isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Pause):
                del self.owned[action.workload]
                self.jobs[action.workload] = replace(self.jobs[action.workload], state=JobState.QUEUED, started_at=None)

    def _start(self, action: Start) -> None:
        job, name = self.jobs[action.workload], action.workload
        self.jobs[name] = replace(job, state=JobState.RUNNING, attempt=1, started_at=self.snapshot.now)
        self.owned[name] = [
            Allocation(
                id=f"{name}/{at}", workload=name, rank=one.rank, device=one.device, gpu_milli=one.gpu_milli,
                memory_mib=one.memory_mib,
            )
            for at, one in enumerate(action.placements)
        ]  # fmt: skip

    def tick(self, number: int) -> None:
        """A second passes: as many jobs end as are submitted."""
        ended = list(self.owned)[number :: max(1, len(self.owned) // (CHANGES // 2))][: CHANGES // 2]
        for at, name in enumerate(ended):
            job = self.jobs.pop(name)
            del self.owned[name]
            new = f"new-{number}-{at:04d}"
            self.jobs[new] = replace(
                job, id=new, state=JobState.QUEUED, attempt=0, started_at=None, submitted_at=self.snapshot.now
            )
        allocations = tuple(one for rows in self.owned.values() for one in rows)
        self.snapshot = replace(
            self.snapshot, version=self.snapshot.version + 1, now=self.snapshot.now + 1000,
            jobs=tuple(self.jobs.values()), allocations=allocations,
        )  # fmt: skip


def seconds(devices: int, queued: int) -> Iterator[tuple[float, int]]:
    """CPU seconds and actions of each decide, the first one and those after the ticks."""
    cluster, cache, begun = Cluster.of(*huge(devices // EACH, queued)), DecisionCache(), time.monotonic()
    for number in range(TICKS + 1):
        reduce_garbage_collection()
        before = time.process_time()
        plan = decide(cluster.snapshot, cluster.policy, cache)
        yield time.process_time() - before, len(plan.actions)
        if time.monotonic() - begun > MOST_S:
            return
        cluster.apply(plan)
        cluster.tick(number)


def figures(quick: bool = False) -> list[Figure]:
    """A quick run has a tenth of the devices and of the jobs."""
    return figures_of(DEVICES // 10, QUEUED // 10) if quick else figures_of(DEVICES, QUEUED)


def figures_of(devices: int, queued: int) -> list[Figure]:
    """The first decide, the worst tick, and the memory."""
    (first, actions), *ticks = seconds(devices, queued)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    size = f"{devices:,} devices, {queued:,} queued"
    timed = f"Snapshot object to Plan, CPU time; {actions} actions"
    rows = [Figure(name=f"{size}: first decide", value=first, unit="s", timed=timed, bound=FIRST_S)]
    if ticks:
        worst, changed = max(ticks)
        timed = f"Snapshot object to Plan, CPU time, worst of {len(ticks)}; {CHANGES} jobs changed, {changed} actions"
        rows.append(Figure(name=f"{size}: a tick", value=worst, unit="s", timed=timed, bound=TICK_S))
    timed = "peak resident memory of the process, the snapshot included"
    return [*rows, Figure(name=f"{size}: memory", value=memory, unit="GiB", timed=timed, bound=MEMORY_GIB)]


def main(arguments: list[str]) -> None:
    print_plainly(figures_of(*map(int, arguments)) if arguments else figures())


if __name__ == "__main__":
    main(sys.argv[1:])
