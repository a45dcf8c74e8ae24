"""Gangs: a failed rank stops all, a change of size is no pause, and a backfill reservation has a start time."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.explain.projection import advance, dry_run, project
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Job, JobTarget
from jupyter_gpu_quota.core.plan import Stop
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from tests.core.world import GENTLE, World, world

ELASTIC = "pool t 4\na 2 of t\nb 1 of t\na queues 1 of 1 ranks 2-4"


def shrinking() -> World:
    """a1 runs with four ranks on four devices, and b may have one of them."""
    made = world(ELASTIC)
    made.settle()
    return made


def new_job(made: World, project: str = "b", milli: int = 1000) -> Job:
    return Job(id="new", project=project, user=project, pool="t", gpu_milli=milli, submitted_at=made.now)


def test_the_remaining_ranks_of_a_failed_gang_are_stopped() -> None:
    made = world("pool t 4\na 2 of t\na runs 1 of 1 ranks 2")
    made.jobs["a1"] = dc.replace(made.jobs["a1"], target=JobTarget.FAILED)
    [stop] = made.tick().actions
    assert isinstance(stop, Stop)
    assert (stop.workload, stop.target, stop.reason.code) == ("a1", JobTarget.FAILED, "rank_failed")


def test_the_projection_does_not_count_a_resize_as_a_pause() -> None:
    made = shrinking()
    snapshot = dc.replace(made.snapshot(), jobs=(*made.snapshot().jobs, new_job(made)))
    seen = project(snapshot, made.policy)
    [job] = [job for job in seen.snapshot.jobs if job.id == "a1"]
    assert (seen.paused, seen.started, job.held_ranks, job.paused_at) == ((), ("a1", "new"), 3, ())


def test_the_projection_knows_the_ranks_that_a_job_has() -> None:
    made = shrinking()
    snapshot = dc.replace(made.snapshot(), jobs=(*made.snapshot().jobs, new_job(made)))
    ranks = []
    for _ in range(4):
        ranks += [job.held_ranks for job in snapshot.jobs if job.id == "a1"]
        snapshot = advance(snapshot, decide(snapshot, made.policy), made.policy)
    assert ranks == [4, 4, None, 3], "it has four until its processes are gone, then none, then what is left"


def test_a_dry_run_lists_restarted_jobs_apart_from_paused_ones() -> None:
    made = shrinking()
    met = dry_run(made.snapshot(), made.policy, new_job(made))
    assert (met.starts_now, met.pauses, met.restarts) == (False, (), ("a1",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "pool t 4\na 0 of t\na runs 2 of 1 minutes 60 ran 0\na queues 1 of 1 ranks 4 by ann\n"
            "a queues 1 of 1 by carl minutes 70",
            "reserved for it. Based on the time limits of the running work, it starts in about 1 hour 3 s. This is an "
            "estimate: jobs of a may start there first",
            id="no victim, and another job of its project may start before it",
        ),
        pytest.param(
            "pool t 4\na 0 of t\nb 0 of t\nb runs 3 of 1 minutes 60 ran 0\na queues 1 of 1 ranks 2",
            "some are reserved for it. Based on the time limits of the running work, it starts in about 1 hour 3 s",
            id="its possible victims are protected",
        ),
    ],
)
def test_the_explanation_of_a_backfill_reservation_names_the_planned_start(text: str, says: str) -> None:
    made = world(text, preemption=dc.replace(GENTLE, min_runtime_s=7200))
    [kept] = made.decide().backfill
    found = explain(made.snapshot(), made.policy, kept.workload)
    assert (found.state, kept.starts_at, found.estimate_at) == ("queued", made.now + 3_603_000, kept.starts_at)
    assert says in explanation_sentence(found), explanation_sentence(found)


def test_remaining_ranks_are_numbered_from_0() -> None:
    """Rank 0 runs on a node that takes no new work, so the remaining ranks begin with rank 1."""
    made = world("pool t 1\npool t 4\na 2 of t\nb 2 of t\nb runs 1 on n2g0\na queues 1 of 1 ranks 2-4")
    made.settle()
    [first] = [one for one in made.owned["a1"] if one.rank == 0]
    made.nodes = [dc.replace(node, schedulable=node.id != made.devices[first.device].node) for node in made.nodes]
    made.end("b1")
    made.submit("b", 1000)
    made.submit("b", 1000)
    made.settle()
    assert sorted(one.rank for one in made.owned["a1"]) == [0, 1]


def test_a_job_partly_on_unavailable_devices_does_not_grow() -> None:
    """Two of its four ranks run on a closed node: what can be placed beside the others would be fewer, not more."""
    made = world("pool t 2\npool t 3\na 2 of t\na runs 1 of 1 ranks 2-6 held 4 on n1g0,n1g1,n2g0,n2g1 ran 3600")
    made.nodes = [dc.replace(node, schedulable=node.id != "n1") for node in made.nodes]
    assert made.tick().actions == ()
