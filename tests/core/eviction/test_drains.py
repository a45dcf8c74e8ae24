"""Quotas below the running work: draining work, the amounts in force meanwhile, and the deadline of a drain."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.api.state.quota_states import shares_of
from jupyter_gpu_quota.core.eviction.deadline import above_at_deadline
from jupyter_gpu_quota.core.model import JobState, JobTarget
from jupyter_gpu_quota.core.plan import Stop
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.world import BEGIN, GENTLE, World, world

LOWERED = "pool t 4\na 1 of t\nb 3 of t\na runs 3 of 1 fixed\n"


def due(text: str, by_s: int = 0) -> World:
    made = world(text)
    made.policy = dc.replace(made.policy, drain_by_at=BEGIN + by_s * 1000)
    return made


def in_force(made: World) -> dict[str, int]:
    shares = shares_of(made.snapshot(), made.policy).projects
    return {project: share.guarantee_milli for (project, _), share in shares.items()}


# R5
@pytest.mark.parametrize(
    ("upkeep", "a_milli", "b_milli"),
    [
        pytest.param("n2 cordoned", 1000, 0, id="on the node that is left it keeps its quota in force"),
        pytest.param("n1 cordoned", 500, 500, id="on a cordoned node it keeps none, since that is not in the capacity"),
    ],
)
def test_work_that_may_not_be_preempted_keeps_its_quota_in_force_on_healthy_devices(
    upkeep: str, a_milli: int, b_milli: int
) -> None:
    made = world(f"pool t 2x1\na 1 of t\nb 1 of t\na runs 1 fixed\nb queues 1\n{upkeep}")
    assert in_force(made) == {"a": a_milli, "b": b_milli}


# R66
def test_a_raised_quota_of_3_is_in_force_for_1_until_the_others_have_drained() -> None:
    made = world(LOWERED + "b queues 3 of 1")
    assert in_force(made)["b"] == 1000
    made.end("a1")
    assert in_force(made)["b"] == 2000
    made.end("a2")
    assert in_force(made)["b"] == 3000


def test_work_that_drains_takes_from_no_guarantee_where_there_is_room_for_both() -> None:
    assert in_force(world("pool t 6\na 1 of t\nb 3 of t\na runs 3 of 1 fixed\nb queues 3 of 1"))["b"] == 3000


def test_preemptible_work_does_not_drain_because_a_claim_takes_it() -> None:
    assert in_force(world("pool t 4\na 1 of t\nb 3 of t\na runs 3 of 1\nb queues 3 of 1"))["b"] == 3000


# R66
def test_non_preemptible_work_above_a_lowered_quota_drains_and_does_not_grow() -> None:
    made = world(LOWERED + "a queues 1 fixed\nb queues 3 of 1")
    made.settle()
    assert made.picture() == "a 3 / b 1"
    made.end("a1")
    made.settle()
    assert made.picture() == "a 2 / b 2"


# R67
def test_no_job_is_stopped_before_the_deadline_and_at_it_only_the_excess() -> None:
    made = due(LOWERED + "b queues 3 of 1", by_s=3)
    made.tick()
    assert made.tick().actions == ()
    stops = [action for action in made.tick().actions if isinstance(action, Stop)]
    assert [(stop.workload, stop.target, stop.grace_s) for stop in stops] == [
        ("a2", JobTarget.PAUSED, GENTLE.grace_s),
        ("a3", JobTarget.PAUSED, GENTLE.grace_s),
    ]
    assert sentence(stops[0].reason) == (
        "The drain deadline of the quota file has passed: a uses 3 GPU for non-preemptible work in pool t, "
        "and its training quota there is 1. The job saves within 3 s and is queued again at its old position."
    )
    made.settle()
    assert made.picture() == "a 1 / b 3"
    assert made.jobs["a2"].state is JobState.PAUSED and made.jobs["a2"].paused_at == ()
    assert made.decide().waits["a2"].code == "above_training_quota"


def test_a_job_that_was_stopped_at_the_deadline_comes_back_when_it_fits_its_quota() -> None:
    made = due("pool t 4\na 1 of t\nb 3 of t\na runs 2 of 1 fixed")
    made.settle()
    made.end("a1")
    made.settle()
    assert made.picture() == "a 1 / b 0" and made.jobs["a2"].attempt == 2


# R67
@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        pytest.param("a runs 2 of 1 fixed", ["a2"], id="of equal jobs the newest is stopped"),
        pytest.param(
            "a runs 1 fixed priority 70\na runs 1 fixed priority 30", ["a2"], id="the lowest job priority is stopped"
        ),
        pytest.param(
            "a runs 1 fixed ran 100\na runs 1 fixed ran 7000", ["a1"], id="the one that loses least work is stopped"
        ),
        pytest.param("a runs 0.5 fixed ran 10\na runs 2 fixed", ["a2"], id="the smaller one is restored"),
        pytest.param("a runs 1 fixed\na runs 3 of 1", [], id="preemptible work is not stopped at a deadline"),
        pytest.param("a runs 1 fixed", [], id="exactly at the quota no job is stopped"),
    ],
)
def test_the_order_in_which_jobs_are_stopped_at_the_deadline(text: str, leaves: list[str]) -> None:
    made = due("pool t 4\na 1 of t\n" + text)
    assert [action.workload for action in made.tick().actions if isinstance(action, Stop)] == leaves


def test_a_department_is_brought_to_its_quota_though_each_of_its_projects_is_within_its_own() -> None:
    made = due("pool t 4\ndepartment d 1 of t\na 1 of t in d\nb 1 of t in d\na runs 1 fixed\nb runs 1 fixed ran 10")
    assert [action.workload for action in made.tick().actions] == ["b1"]


def test_work_of_a_removed_project_stops_at_the_deadline() -> None:
    made = due("pool t 4\na 1 of t\nb 1 of t\nb runs 1 fixed")
    made.policy = dc.replace(made.policy, projects=made.policy.projects[:1])
    assert [action.workload for action in made.tick().actions] == ["b1"]


# R67
def test_the_jobs_that_the_deadline_would_stop_are_listed() -> None:
    made = due(LOWERED, by_s=3600)
    assert above_at_deadline(made.snapshot(), made.policy) == ("a2", "a3")
    assert above_at_deadline(made.snapshot(), dc.replace(made.policy, drain_by_at=None)) == ()
