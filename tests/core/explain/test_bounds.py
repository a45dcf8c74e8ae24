"""A start "at the latest" is kept, whatever the other projects do: played in time with ends, claims, cancels and edits.

The project of the explained jobs submits none while they wait, no device fails, and no quota is edited.
"""

from __future__ import annotations

import dataclasses as dc
import os
from collections.abc import Iterator
from random import Random

import pytest

from jupyter_gpu_quota.core.explain.binding_reasons import binding_reasons
from jupyter_gpu_quota.core.explain.explanation import Outlook
from jupyter_gpu_quota.core.explain.projection import dry_run
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Change, JobState
from jupyter_gpu_quota.core.reasons import Waiting
from jupyter_gpu_quota.core.scheduling.decide import Decision, decide_and_explain
from tests.core.world import GENTLE, World

WORLDS = int(os.environ.get("GPU_QUOTA_WORLDS", "0"))
WORLDS_OF_A_PART, PARTS = (500, 6) if WORLDS >= 10_000 else (150, 1)
PLAYED_MS, LATE_MS = 60_000, 2000


def made_of(random: Random) -> World:
    """One or two nodes, three projects, perhaps departments, notebooks and a calendar window, and running jobs."""
    protected_s, pauses = random.choice((0, 0, 600)), random.choice((1000, 2))
    made = World(preemption=dc.replace(GENTLE, min_runtime_s=protected_s, max_pauses=pauses))
    for _ in range(random.randint(1, 2)):
        made.pool("t", 1, random.randint(2, 4))
    _projects(made, random, len(made.devices))
    made.drain_ticks = random.choice((1, 1, 2, 3))
    if random.random() < 0.3:
        change = Change(owner=random.choice("abc"), pool="t", training_milli=random.randint(0, 2) * 1000)
        made.window("w", random.randint(5, 60), random.randint(61, 90), change)
    for name in list(made.devices):
        if random.random() < 0.8:
            job = made.submit(random.choice("abcbc"), 1000, time_limit_s=random.choice((10, 20, 40)))
            made.put(dc.replace(job, preemptible=random.random() < 0.7), [name], ran_s=random.randint(0, 9))
    for _ in range(random.choice((1, 1, 1, 2))):
        made.submit(
            "a", random.choice((500, 1000, 2000, 3000)), time_limit_s=random.choice((20, 600)),
            preemptible=random.random() < 0.8,
        )  # fmt: skip
    return made


def _projects(made: World, random: Random, left: int) -> None:
    departments = random.random() < 0.4
    for name in "DE" if departments else "":
        quota = left * 500 if name == "D" else left * 1000 - left * 500
        made.department(name, "t", training_milli=quota, limit_milli=random.choice((None, left * 1000)), weight=1)
    notebooks = random.choice((0, 0, 500))
    for name in "abc":
        quota = random.randint(0, left) if name == "a" else random.choice((0, 0, random.randint(0, left)))
        left -= quota
        made.project(
            name, "t", training_milli=quota * 1000, weight=random.choice((0, 0, 1, 2)), notebook_milli=notebooks,
            limit_milli=random.choice((None, None, None, (quota + 3) * 1000)),
            user_jobs_milli=random.choice((None, None, 3000)),
            department=("D" if name != "c" else "E") if departments else None,
        )  # fmt: skip


def disturb(made: World, random: Random) -> None:
    """Jobs end; those of the other projects are cancelled, held and submitted; notebooks request slices."""
    for job in list(made.jobs.values()):
        drawn = random.random()
        if job.state is JobState.RUNNING and drawn < 0.02:
            made.end(job.id)
        elif job.project != "a" and job.state in (JobState.RUNNING, JobState.QUEUED) and drawn < 0.05:
            made.cancel(job.id)
        elif job.project != "a" and job.state is JobState.RUNNING and drawn < 0.07:
            made.hold(job.id)
    if random.random() < 0.3:
        made.submit(
            random.choice("bc"), random.randint(1, 2) * 1000, time_limit_s=random.choice((5, 20, 60)),
            preemptible=random.random() < 0.7, id=f"j{made.now}",
        )  # fmt: skip
    if random.random() < 0.05 and made.policy.projects[0].amounts["t"].notebook_milli:
        made.ask(random.choice("abc"), 250, id=f"n{made.now}")


def bounds_of(made: World, decision: Decision) -> Iterator[tuple[str, int]]:
    """The jobs of project a that have a planned start called a bound."""
    reasons = binding_reasons(made.snapshot(), made.policy, decision)
    for held in decision.backfill:
        why = reasons.get(held.workload)
        if made.jobs[held.workload].project == "a" and isinstance(why, Waiting) and why.delaying == 0:
            yield held.workload, held.starts_at


def keeps_its_bounds(seed: int) -> int:
    """Play one world; the number of bounds that it had, each of which was kept."""
    random = Random(seed)
    made, bounds = made_of(random), dict[str, int]()
    ends_at = made.now + PLAYED_MS
    while made.now < ends_at:
        made.pass_time()
        decision = decide_and_explain(made.snapshot(), made.policy)
        for name, at in bounds_of(made, decision):
            bounds[name] = min(bounds.get(name, at), at)
        made.apply(decision.plan)
        for name, at in bounds.items():
            waits = name in made.jobs and made.jobs[name].state is JobState.QUEUED
            assert not waits or made.now <= at + LATE_MS, f"seed {seed}: {name} starts by {at}\n" + "\n".join(made.log)
        disturb(made, random)
    return len(bounds)


# R34 R79
@pytest.mark.parametrize("part", range(PARTS))
def test_a_bound_is_kept_whatever_other_projects_do(part: int) -> None:
    seeds = range(part * WORLDS_OF_A_PART, (part + 1) * WORLDS_OF_A_PART)
    assert sum(map(keeps_its_bounds, seeds)) > 3, "there are bounds to keep"


# R34 R79
def test_a_dry_run_and_the_explanation_of_the_same_job_say_the_same() -> None:
    """Also where the plan alone knows of nothing that may delay the planned start, and the jobs beside it do."""
    refined = 0
    for seed in range(150):
        made = made_of(Random(seed))
        job = made.submit("a", 1000, time_limit_s=600, id="new")
        with_job = made.snapshot()
        before = dc.replace(with_job, jobs=tuple(one for one in with_job.jobs if one is not job))
        found = dry_run(before, made.policy, job)
        explained = explain(with_job, made.policy, "new")
        if found.pauses or found.restarts or explained.outlook is not Outlook.WAITS:
            continue
        assert found.reason == explained.reason, f"seed {seed}"
        refined += found.reason != decide_and_explain(with_job, made.policy).waits["new"]
    assert refined > 3, "there are planned starts and jobs ahead that the plan alone does not count"
