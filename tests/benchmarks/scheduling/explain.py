"""How long one explanation takes: one of 5,000 waiting jobs, 1,000 GPUs in nodes of 8, all in use.

``python -m tests.benchmarks.scheduling.explain`` prints CPU seconds. In each world the projects of half of the jobs are
at their limit, or each user at a ceiling; the explained jobs are at the head, in the middle and at the end of the
queue, and one that its pool cannot hold.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jupyter_gpu_quota.controllers.main import reduce_garbage_collection
from jupyter_gpu_quota.core.explain.projection import advance
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Amounts, JobState, Policy, Snapshot
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.benchmarks.figures import Figure, print_plainly
from tests.benchmarks.scheduling.decide import EACH, NOW, PROJECTS, devices, policy, queued, running

NODES, WAITING = 125, 5000
BOUND_S = 2.0


def world(bounds: dict[str, int]) -> tuple[Snapshot, Policy]:
    """The pool at rest; every other project has these bounds."""
    rules, rng = policy(NODES), random.Random(7)
    amounts = dict(rules.projects[0].amounts)
    bounded: Amounts = replace(amounts["train"], **bounds)
    projects = (replace(one, amounts={"train": bounded}) if at % 2 else one for at, one in enumerate(rules.projects))
    rules = replace(rules, projects=tuple(projects))
    rows, made = devices(NODES)
    holders, owned = running(made, lambda at: f"project-{at % PROJECTS:02d}")
    jobs = queued(rng, WAITING - 1, priorities=(50, 50, 50, 30))
    jobs.append(replace(jobs[0], id="too-large", gpu_milli=2 * EACH * 1000))
    snapshot = Snapshot(version=1, now=NOW, nodes=rows, devices=made, jobs=(*holders, *jobs), allocations=tuple(owned))
    while (plan := decide(snapshot, rules)).actions:
        snapshot = advance(snapshot, plan, rules)
    return snapshot, rules


WORLDS = {
    "no limits": dict[str, int](),
    "limits": {"limit_milli": 25_000},
    "ceilings for each user": {"user_jobs_milli": 2_000},
}


def figures(quick: bool) -> Sequence[Figure]:
    """The longest explanation of each world."""
    return list(_figures(["no limits"] if quick else list(WORLDS)))


def _figures(names: Sequence[str]) -> Iterator[Figure]:
    for name in names:
        snapshot, rules = world(WORLDS[name])
        waiting = [job.id for job in snapshot.jobs if job.state is JobState.QUEUED]
        chosen = [*waiting[:3], waiting[len(waiting) // 2], *waiting[-4:]]
        spent = max(_spent_s(snapshot, rules, job) for job in chosen)
        timed = f"CPU time, the longest of {len(chosen)} jobs; {len(waiting)} waiting, {NODES * EACH} GPUs"
        yield Figure(name=f"explanation, {name}", value=spent, unit="s", timed=timed, bound=BOUND_S)


def _spent_s(snapshot: Snapshot, rules: Policy, job: str) -> float:
    reduce_garbage_collection()
    begun = time.process_time()
    explain(snapshot, rules, job)
    return time.process_time() - begun


if __name__ == "__main__":
    print_plainly(figures(quick=False))
