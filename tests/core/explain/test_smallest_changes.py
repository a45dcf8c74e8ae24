"""Explained changes are sufficient, the smallest, and there wherever one is: compared with trying every change."""

from __future__ import annotations

import dataclasses as dc
import os
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.explain.counterfactual import WhatIf
from jupyter_gpu_quota.core.explain.explanation import Change, ChangeKind, Explanation, QuotaTooHigh
from jupyter_gpu_quota.core.explain.freed import in_every_way, smallest_ends, total, tries_every_set
from jupyter_gpu_quota.core.explain.trials import Trials
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Job, JobState, Policy, Snapshot
from jupyter_gpu_quota.core.plan import Resume, Start
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.core.explain import brute_force
from tests.core.preemption.test_exhaustive import put
from tests.core.world import GENTLE, World, world

WORLDS = int(os.environ.get("GPU_QUOTA_WORLDS", "0"))
EXAMPLES = 5000 if WORLDS >= 10_000 else WORLDS or 40
PHASES = (Phase.generate, Phase.shrink) if "GPU_QUOTA_SHRINK" in os.environ else (Phase.generate,)
STEP = 125
"""All amounts of these worlds are multiples of it, but not all fair shares."""

SIZES = (125, 250, 500, 500, 1000, 1000, 1000, 2000)
pytestmark = pytest.mark.timeout(3600)  # 5,000 examples take minutes
OPTIONAL = [None, None, None, 500, 1000, 2000, 3000]
PROJECTS = st.fixed_dictionaries(
    {
        "training_milli": st.sampled_from([0, 500, 1000, 2000, 3000]),
        "limit_milli": st.sampled_from(OPTIONAL),
        "user_jobs_milli": st.sampled_from(OPTIONAL),
        "weight": st.sampled_from([1, 1, 1, 2, 3, 0]),
        "priority": st.sampled_from([50, 50, 50, 60]),
    }
)
JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "project": st.sampled_from("abc"),
            "gpu": st.sampled_from(SIZES),
            "ranks": st.sampled_from([1, 1, 1, 1, 1, 2, 3]),
            "least": st.sampled_from([None, None, None, 1]),
            "priority": st.sampled_from([50, 50, 50, 30, 70]),
            "preemptible": st.sampled_from([True, True, True, False]),
            "user": st.sampled_from(["ann", "bob"]),
            "runs": st.booleans(),
            "seed": st.integers(0, 1000),
        }
    ),
    min_size=2,
    max_size=12,
)
SHAPES = st.fixed_dictionaries(
    {
        "nodes": st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 2), (1, 4), (2, 3)]),
        "projects": st.lists(PROJECTS, min_size=3, max_size=3),
        "departments": st.sampled_from([None, None, (2000, None), (3000, 3000), (1000, 2000)]),
        "jobs": JOBS,
        "notebooks": st.lists(st.sampled_from("abc"), max_size=2),
        "young_s": st.sampled_from([0, 0, 0, 600]),
        "ticks": st.integers(0, 2),
    }
)


def made_of(shape: dict[str, Any]) -> World:
    """A world with these projects and jobs; those that run and find no room are left out."""
    made = World(preemption=dc.replace(GENTLE, min_runtime_s=shape["young_s"]))
    made.pool("t", *shape["nodes"])
    if shape["departments"]:
        quota, limit = shape["departments"]
        for name in "DE":
            made.department(name, "t", training_milli=quota, limit_milli=limit, weight=1)
    for name, amounts in zip("abc", shape["projects"], strict=True):
        quotas = amounts["training_milli"] + 500
        limit = amounts["limit_milli"] and max(quotas, amounts["limit_milli"])
        department = ("D" if name < "c" else "E") if shape["departments"] else None
        made.project(name, "t", department=department, **(amounts | {"notebook_milli": 500, "limit_milli": limit}))
    for job in shape["jobs"]:
        _submit(made, **job)
    for project in shape["notebooks"]:
        made.ask(project, 250)
    for _ in range(shape["ticks"]):
        made.tick()
    return made


def _submit(made: World, *, runs: bool, ranks: int, least: int | None, preemptible: bool, **job: Any) -> None:
    elastic = least if least is not None and least < ranks and preemptible else None
    if runs:
        put(made, ranks=ranks, least=least, preemptible=preemptible, ran_s=Random(job["seed"]).choice([1, 3600]), **job)
    else:
        project, gpu, _ = job.pop("project"), job.pop("gpu"), job.pop("seed")
        made.submit(project, gpu, ranks=ranks, min_ranks=elastic, preemptible=preemptible, **job)


def of_kind(found: Explanation, kind: ChangeKind) -> list[Change | QuotaTooHigh]:
    return [one for one in found.would_start if one.kind is kind]


def waiting(made: World) -> Iterator[tuple[Job, Explanation]]:
    """The jobs that wait, and are not served next, each with its explanation."""
    snapshot = made.snapshot()
    jobs = [job for job in snapshot.jobs if job.state in (JobState.QUEUED, JobState.PAUSED)]
    found = ((job, explain(snapshot, made.policy, job.id)) for job in jobs)
    return ((job, one) for job, one in found if one.outlook == "waits")


# R78
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(shape=SHAPES)
def test_the_work_that_ends_is_the_smallest(shape: dict[str, Any]) -> None:
    made = made_of(shape)
    snapshot = made.snapshot()
    jobs = [job.id for job in snapshot.jobs if job.state in (JobState.QUEUED, JobState.PAUSED)]
    for name in jobs[:2] + jobs[2:][-1:]:
        if brute_force.starts(snapshot, made.policy, name):
            continue
        trials = Trials(WhatIf.of(snapshot, made.policy, name))
        if not tries_every_set(trials):
            continue  # 12 jobs run beside two notebooks
        found, least = smallest_ends(trials, 0), brute_force.least_ends(snapshot, made.policy, name)
        named = found and (total(found), len(found), tuple(sorted(one.id for one in found)))
        assert named == least, f"{name}\n{made.dump()}"
        if found and in_every_way(trials, found, 0):
            assert not ways_that_fail(snapshot, made.policy, name, total(found)), f"{name}\n{made.dump()}"


# R78
@settings(max_examples=EXAMPLES // 2, phases=PHASES)
@given(shape=SHAPES)
def test_the_jobs_named_as_started_first_start_in_every_way_and_need_the_rest(shape: dict[str, Any]) -> None:
    made = made_of(shape)
    snapshot = made.snapshot()
    for job, found in islice(waiting(made), 3):
        for change in of_kind(found, ChangeKind.FREED):
            assert isinstance(change, Change)
            first, policy = change.started_first, made.policy
            if not first:
                continue
            ways = (
                [ends[2] for ends in brute_force.ways(snapshot, change.by_milli)] if change.any_ends else [change.ends]
            )
            assert all(
                brute_force.starts(brute_force.without(snapshot, way), policy, one) for way in ways for one in first
            )
            alone = brute_force.without(snapshot, first)
            less = brute_force.least_ends(alone, policy, job.id)
            assert brute_force.starts(alone, policy, job.id) or (less and less[0] < change.by_milli), made.dump()
            assert not started_now(snapshot, policy).intersection(first), made.dump()


# R78
def test_a_requested_slice_is_waiting_work_like_a_job() -> None:
    """Without the jobs alone, its claim pauses the job that would have to end."""
    made = world(
        """
        pool t 1
        a 0 of t, notebooks 0.5
        b 0 of t, notebooks 0.5
        c 0.5 of t, notebooks 0.5
        b runs 1 of 1
        b queues 1 of 0.5
        c queues 1 of 0.25 fixed
        c queues 1 of 0.125
        a notebook 0.25
        """
    )
    (explained,) = [found for job, found in waiting(made) if job.id == "b2"]
    (change,) = of_kind(explained, ChangeKind.FREED)
    assert isinstance(change, Change)
    assert (change.ends, change.started_first) == (("b1",), ()), "the same job has to end without them, too"


def started_now(snapshot: Snapshot, policy: Policy) -> set[str]:
    """What the next plan starts without any change; a claim that waits for its devices is not among it."""
    return {one.workload for one in decide(snapshot, policy).actions if isinstance(one, Start | Resume)}


def ways_that_fail(snapshot: Snapshot, policy: Policy, name: str, milli: int) -> list[brute_force.Ends]:
    """The sets of work with at least that much, and none to spare, whose end does not start the workload."""
    return [
        ends
        for ends in brute_force.ways(snapshot, milli)
        if not brute_force.starts(brute_force.without(snapshot, ends[2]), policy, name)
    ]


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["0.5", "1", "1", "2"]), st.sampled_from([70, 90, 150, 400])),
    min_size=1,
    max_size=4,
)
"""Jobs: the project, the GPU, and minutes: of a running job its time limit an hour after its start."""


# R78
@settings(max_examples=max(30, EXAMPLES // 10), phases=PHASES)
@given(gpus=st.sampled_from([2, 3, 4]), quota=st.sampled_from([0, 1, 2]), runs=ROWS, queues=ROWS)
def test_the_time_limit_is_the_longest_that_starts_it(gpus: int, quota: int, runs: Any, queues: Any) -> None:
    lines = [f"pool t {gpus}", f"a {quota} of t", "b 0 of t"]
    lines += [f"{project} runs 1 of {min(gpu, '1')} minutes {minutes}" for project, gpu, minutes in runs[: gpus - 1]]
    lines += [f"b queues 1 of {gpus}"]  # it has the reservation in most of these worlds
    lines += [f"{project} queues 1 of {gpu} priority {minutes % 40 + 20}" for project, gpu, minutes in queues]
    made = world("\n".join(lines))
    snapshot = made.snapshot()
    ends = [job.ends_at(job.started_at) for job in snapshot.jobs if job.started_at is not None]
    near = {(end - snapshot.now) // 60_000 + more for end in ends for more in (-1, 0, 1)}
    tried = {minutes for minutes in near | {1, 5, 20, 600, 1439} if minutes > 0}
    for job, found in waiting(made):
        limits = [one.time_limit_s or 0 for one in of_kind(found, ChangeKind.TIME_LIMIT) if isinstance(one, Change)]
        longest = sum(limits) // 60 + 1  # a minute is left for the submission
        for minutes in tried if limits else tried - {1}:
            shorter = brute_force.with_job(snapshot, dc.replace(job, time_limit_s=minutes * 60))
            starts = brute_force.starts(shorter, made.policy, job.id)
            assert starts == (minutes <= longest), f"{job.id}, {minutes} minutes\n{made.dump()}"


# R78
def test_a_shorter_time_limit_ends_before_the_planned_start() -> None:
    made = world(
        """
        pool t 2
        a 0 of t
        b 0 of t
        a runs 1 of 1 minutes 146
        b queues 1 of 2
        b queues 1 of 1 priority 30
        """
    )
    (found,) = [found for job, found in waiting(made) if job.id == "b2"]
    (change,) = of_kind(found, ChangeKind.TIME_LIMIT)
    assert isinstance(change, Change) and change.time_limit_s == 85 * 60 and change.is_smallest


@settings(max_examples=max(4, EXAMPLES // 20), phases=PHASES)
@given(
    sizes=st.lists(st.sampled_from([111, 290, 333, 417, 505, 718, 1000]), min_size=3, max_size=7),
    bounds=st.tuples(st.sampled_from([100, 415]), st.sampled_from([None, 950]), st.sampled_from([None, 700])),
    seed=st.integers(0, 1000),
)
# R78
def test_an_odd_amount_is_the_first_or_says_that_it_may_not_be(sizes: list[int], bounds: Any, seed: int) -> None:
    random, made = Random(seed), World(preemption=GENTLE)
    made.pool("t", 1, 2)
    quota, limit, ceiling = bounds
    made.project("a", "t", training_milli=quota, weight=1, limit_milli=limit, user_jobs_milli=ceiling)
    made.project("b", "t", training_milli=300, weight=2)
    for at, gpu in enumerate(sizes):
        job = {"project": random.choice("aab"), "gpu": gpu, "ranks": 1, "least": None, "seed": at, "user": "ann"}
        _submit(made, **job, preemptible=random.random() < 0.8, runs=at < len(sizes) // 2)
    for job, found in islice(waiting(made), 1):
        check_amounts(made, job, found, 1)
        by = brute_force.least_reduction(made.snapshot(), made.policy, job, 1)
        assert [one.by_milli for one in of_kind(found, ChangeKind.SIZE)] == ([by] if by else []), made.dump()


def demand(snapshot: Snapshot) -> int:
    """The sum of all requests in the pool, in milli-GPU."""
    return sum(one.gpu_milli * one.ranks for one in snapshot.jobs) + sum(one.gpu_milli for one in snapshot.notebooks)


FIELDS = {"quota": "training_milli", "limit": "limit_milli", "user_ceiling": "user_jobs_milli"}


def check_amounts(made: World, job: Job, found: Explanation, step: int) -> None:
    """Each amount that could be raised is compared with the first multiple of the step that starts the job."""
    snapshot, policy = made.snapshot(), made.policy
    most = demand(snapshot)
    departments = {row.name: row.department for row in policy.projects}
    for kind, field in FIELDS.items():
        for owner in (job.project, departments[job.project]):
            department = owner != job.project
            rows = {row.name: row.amounts["t"] for row in (policy.departments if department else policy.projects)}
            now = getattr(rows[owner], field) if owner in rows else None
            if now is None:
                continue

            def works(by: int, owner=owner, field=field, now=now, department=department) -> bool:  # type: ignore[no-untyped-def]
                changed = brute_force.with_amount(policy, owner, field, now + by, department=department)
                return brute_force.starts(snapshot, changed, job.id)

            room = most if kind != "quota" else _room_for_quota(rows[owner], most)
            expected = brute_force.first(works, room, step)
            changes = [
                one
                for one in (*found.would_start, *([found.quota_too_high.change] if found.quota_too_high else []))
                if one.kind == kind and one.amount and one.amount.is_department == department
            ]
            named = [one.by_milli for one in changes]
            if ChangeKind(kind) in found.ended_early:
                continue
            if kind == "quota" and found.quota_too_high is None and not named:
                continue  # one that does not fit is shown for some reasons only
            assert len(named) == (expected is not None), (job.id, kind, owner, named, expected, made.dump())
            if expected is not None:
                shown = (job.id, kind, owner, named, expected, made.dump())
                assert works(named[0]) and not works(named[0] - 1), shown
                assert expected - step < named[0] <= expected or not changes[0].is_smallest, shown


def _room_for_quota(amounts: Any, most: int) -> int:
    if amounts.limit_milli is None:
        return most
    return min(most, amounts.limit_milli - amounts.training_milli - amounts.notebook_milli)


# R78
@settings(max_examples=EXAMPLES // 2, phases=PHASES)
@given(shape=SHAPES)
def test_the_raised_amount_is_the_first_upwards(shape: dict[str, Any]) -> None:
    made = made_of(shape)
    for job, found in islice(waiting(made), 1):
        check_amounts(made, job, found, STEP)
        least = brute_force.least_ends(made.snapshot(), made.policy, job.id)
        assert [one.ends for one in of_kind(found, ChangeKind.FREED)] == ([least[2]] if least else []), made.dump()


JOB_FIELDS = ("project", "gpu", "ranks", "least", "user", "priority", "preemptible", "runs", "seed")
PROJECT_FIELDS = ("training_milli", "limit_milli", "weight", "priority", "user_jobs_milli")
SHARED_REST: dict[str, Any] = {
    "nodes": (1, 2),
    "ticks": 1,
    "young_s": 0,
    "departments": None,
    "notebooks": ["b"],
    "projects": [
        dict(zip(PROJECT_FIELDS, row, strict=True))
        for row in (
            (500, 1000, 3, 60, None),
            (3000, 3000, 3, 60, None),
            (3000, 2000, 3, 50, 3000),
        )
    ],
    "jobs": [
        dict(zip(JOB_FIELDS, row, strict=True))
        for row in (
            ("a", 1000, 2, None, "ann", 30, True, False, 238),
            ("a", 2000, 1, None, "ann", 50, False, False, 378),
            ("c", 2000, 2, 1, "ann", 50, True, False, 86),
            ("c", 2000, 1, None, "bob", 50, True, True, 297),
            ("a", 1000, 1, None, "bob", 50, True, False, 261),
            ("a", 1000, 1, None, "bob", 50, True, True, 557),
            ("c", 2000, 1, None, "ann", 30, True, True, 1000),
            ("c", 500, 1, None, "ann", 50, False, False, 977),
            ("b", 500, 2, None, "ann", 70, True, False, 222),
            ("b", 1000, 1, None, "bob", 30, True, False, 939),
            ("b", 500, 3, None, "ann", 70, False, True, 1),
            ("c", 500, 1, None, "ann", 30, True, False, 184),
        )
    ],
}
"""Two ranks of a1 fit side by side on what reservations leave of a device, in no part that is a common step."""


# R78
@settings(max_examples=EXAMPLES // 2, phases=(Phase.explicit, *PHASES))
@given(shape=SHAPES)
@example(shape=SHARED_REST)
def test_the_further_node_and_the_smaller_request_are_the_smallest(shape: dict[str, Any]) -> None:
    made = made_of(shape)
    snapshot = made.snapshot()
    for job, found in islice(waiting(made), 1):
        most = -(-demand(snapshot) // 1000)
        node = brute_force.first(
            lambda by, name=job.id: brute_force.starts(brute_force.with_node(snapshot, by), made.policy, name), most, 1
        )
        assert [one.by_milli for one in of_kind(found, ChangeKind.POOL)] == ([node * 1000] if node else []), made.dump()
        by = brute_force.least_reduction(snapshot, made.policy, job, STEP)
        named = [one.by_milli for one in of_kind(found, ChangeKind.SIZE)]
        assert len(named) == (by is not None), (job.id, named, by, made.dump())
        assert by is None or named[0] <= by < named[0] + STEP * job.least_ranks, (job.id, named, by, made.dump())
        for one in of_kind(found, ChangeKind.SIZE):
            assert isinstance(one, Change)
            anew = dc.replace(
                job, gpu_milli=one.gpu_milli, **{"ranks" if job.min_ranks is None else "min_ranks": one.ranks},
                state=JobState.QUEUED, submitted_at=snapshot.now, paused_at=(), paused_for=None, attempt=0,
                checkpoint_at=None,
            )  # fmt: skip
            starts = brute_force.starts(brute_force.with_job(snapshot, anew), made.policy, job.id)
            assert one.by_resubmission == starts, (job.id, one, made.dump())
        fixed = not job.preemptible and brute_force.starts(
            brute_force.with_job(snapshot, dc.replace(job, preemptible=True)), made.policy, job.id
        )
        assert len(of_kind(found, ChangeKind.PREEMPTIBLE)) == fixed, (job.id, made.dump())
