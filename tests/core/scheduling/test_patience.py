"""Patience: a job that has waited long without ever starting, and the younger jobs of its project."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.plan import Pause
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from tests.core.world import GENTLE, World, world

HOUR_S = 3600


def waited(made: World, name: str, hours: int, patience_s: int = 24 * HOUR_S) -> World:
    """The same world, in which this job was submitted so many hours ago."""
    made.policy = dc.replace(made.policy, patience_s=patience_s)
    made.jobs[name] = dc.replace(made.jobs[name], submitted_at=made.now - hours * HOUR_S * 1000)
    return made


def other(project: str, minutes: int) -> str:
    return f"{project} queues 1 by bob minutes {minutes}"


# R24
@pytest.mark.parametrize(
    ("hours", "patience_s", "minutes", "starts"),
    [
        pytest.param(23, 24 * HOUR_S, 120, True, id="before its patience ends, it is overtaken"),
        pytest.param(25, 24 * HOUR_S, 120, False, id="afterwards it is not"),
        pytest.param(25, 24 * HOUR_S, 40, True, id="a job that ends before its planned start is served"),
        pytest.param(25, 48 * HOUR_S, 120, True, id="the patience of the quota file counts"),
        pytest.param(2, HOUR_S, 120, False, id="a shorter one, too"),
    ],
)
def test_younger_jobs_of_its_project_do_not_overtake_an_overdue_job(
    hours: int, patience_s: int, minutes: int, starts: bool
) -> None:
    made = waited(world(_behind_holder(minutes)), "a2", hours, patience_s)
    assert ("a3" in started(made)) is starts


def _behind_holder(minutes: int) -> str:
    """a2 and b2 wait for two devices of a node until a1 or b1 ends; n1g1 and n2g1 are idle. b2 has the reservation."""
    text = "pool t 1x2\npool t 1x2\na 2 of t\nb 2 of t\na runs 1 on n1g0 minutes 60 ran 600 fixed\n"
    text += "b runs 1 on n2g0 minutes 60 ran 700 fixed\n"
    return f"{text}a queues 2\n{other('a', minutes)} fixed\nb queues 2\na used 100 of t"


def started(made: World) -> list[str]:
    return [one.workload for one in made.tick().actions if type(one).__name__ == "Start"]


# R24
def test_the_reason_of_the_younger_job_names_the_job_that_it_waits_for_and_its_start() -> None:
    made = waited(world(_behind_holder(120)), "a2", 25)
    reason = made.decide().waits["a3"]
    figures = figures_of(reason)
    assert reason.code == "behind_overdue_job"
    assert (figures["workload"], figures["waited_s"]) == ("a2", 25 * HOUR_S)
    assert figures["most_s"] == figures["planned_s"] - made.policy.preemption.grace_s  # type: ignore[operator]
    said = explanation_sentence(explain(made.snapshot(), made.policy, "a3"))
    assert "Job a2 of the same project has waited for 1 day 1 hour without ever starting" in said
    assert "longer than policy.patience of the quota file" in said
    assert "it starts in about 50 minutes 3 s" in said
    assert "A job with a time limit of at most 50 minutes would start before." in said


# R24
def test_the_reason_of_the_overdue_job_says_that_it_is_not_overtaken() -> None:
    made = waited(world(_behind_holder(120)), "a2", 25)
    figures = figures_of(made.decide().waits["a2"])
    assert figures["waited_s"] == 25 * HOUR_S and int(figures["planned_s"]) > 0
    said = explanation_sentence(explain(made.snapshot(), made.policy, "a2"))
    assert "It has waited for 1 day 1 hour without ever starting" in said
    assert "younger jobs of a start only if they end before its planned start, in about 50 minutes 3 s" in said


# R24
def test_a_job_that_waits_for_an_overdue_job_has_no_reservation() -> None:
    made = waited(world(_behind_holder(120)), "a2", 25)
    assert all(kept.workload != "a3" for kept in made.decide().backfill)
    assert not any("a3" in started(made) for _ in range(5))


def test_a_job_that_has_started_before_is_never_overdue() -> None:
    made = waited(world(_behind_holder(120)), "a2", 25)
    made.jobs["a2"] = dc.replace(made.jobs["a2"], attempt=1)
    assert "a3" in started(made)


# R24
def test_an_overdue_job_does_not_wait_behind_a_younger_one_of_its_class() -> None:
    made = world("pool t 2\na 2 of t\na runs 1 by u minutes 600\na queues 1 by u\na queues 1 by v")
    assert started(waited(made, "a2", 25)) == ["a2"]


# R24
# R24
def test_a_job_that_was_submitted_before_an_overdue_one_starts_though_it_is_behind_a_younger_one_of_its_class() -> None:
    made = waited(world(f"{_behind_holder(120)}\na queues 1 minutes 120 fixed"), "a2", 25)
    made.jobs["a4"] = dc.replace(made.jobs["a4"], attempt=1, submitted_at=made.now - 26 * HOUR_S * 1000)
    assert started(made) == ["a4"], "the turn of a3's user is first, and a3 waits for a2"


def test_a_job_of_higher_priority_starts_before_an_overdue_one() -> None:
    made = waited(world(_behind_holder(120).replace("minutes 120 fixed", "minutes 120 priority 60 fixed")), "a2", 25)
    assert "a3" in started(made)


# R24, P10
def test_a_claim_within_guarantee_does_not_wait_for_an_overdue_job_that_is_larger_than_the_guarantee() -> None:
    text = "pool t 1x4\na 1 of t\nb 0 of t\nc 2 of t\nb runs 4 of 1 minutes 120\n"
    text += "a queues 2\nc queues 2\na queues 1 minutes 600"
    plan = waited(world(text), "a1", 25).tick()
    assert {one.preemptor for one in plan.actions if isinstance(one, Pause)} == {"a2", "c1"}


# R24
def test_jobs_that_follow_an_overdue_job_start_in_the_same_plan() -> None:
    made = waited(world("pool t 4\na 0 of t\na runs 1 minutes 1\na queues 1\na queues 2 of 1 minutes 600"), "a2", 25)
    assert started(made) == ["a2", "a3", "a4"]


def behind_reservation(minutes: int) -> str:
    """a3 and a4 wait for the first node; a3 has its reservation. n2g0 is idle, and alone too small for either."""
    text = f"pool t 1x2\npool t 1x1\na 0 of t\na runs 2 on n1g0,n1g1 minutes 60 ran 600\n{other('a', minutes)}\n"
    return f"{text}a queues 2 minutes 60\na queues 2 minutes 60"


# R24
@pytest.mark.parametrize(("minutes", "starts"), [(600, False), (105, True)])
def test_an_overdue_job_is_planned_to_start_when_the_job_with_the_reservation_has_ended(
    minutes: int, starts: bool
) -> None:
    made = waited(waited(world(behind_reservation(minutes)), "a3", 26), "a4", 25)
    assert started(made) == []
    assert [one.workload for one in made.backfill] == ["a3"]
    assert started(made) == (["a2"] if starts else [])


# R24, R12
def test_small_jobs_do_not_keep_an_overdue_job_at_the_limit_of_its_project() -> None:
    made = World(preemption=dc.replace(GENTLE, grace_s=1))
    made.pool("t", 1, 4)
    made.project("a", "t", training_milli=0, weight=1, limit_milli=2000)
    made.put(made.submit("a", 1000, time_limit_s=10), ["n1g0"], ran_s=2)
    made.put(made.submit("a", 1000, time_limit_s=10), ["n1g1"], ran_s=7)
    made.submit("a", 2000, time_limit_s=10, id="large")
    made = waited(made, "large", 25)
    starts = list[str]()
    for at in range(30):
        if at % 5 == 0:
            made.submit("a", 1000, time_limit_s=10)
        starts += started(made)
    assert "large" in starts


# R24, R77
def test_the_reason_names_the_overdue_job_where_no_devices_are_free_either() -> None:
    text = "pool t 2\na 0 of t\na runs 2 minutes 60 ran 600\na queues 2 minutes 60\na queues 2 minutes 60\n"
    made = waited(waited(world(f"{text}{other('a', 600)}\n{other('a', 1)}"), "a2", 26), "a3", 25)
    waits = made.decide().waits
    codes = [waits[name].code for name in ("a2", "a4", "a5")]
    assert codes == ["above_fair_share", "behind_overdue_job", "above_fair_share"]
    assert figures_of(waits["a4"])["workload"] == "a3"
    assert figures_of(waits["a4"])["planned_s"] == figures_of(waits["a3"])["planned_s"]


# R24, R27
def test_the_job_of_a_user_whose_turn_it_is_gets_no_reservation_before_an_overdue_job() -> None:
    made = waited(world(f"pool t 2\na 0 of t\na runs 2 minutes 60 ran 600\na queues 2\n{other('a', 600)}"), "a2", 25)
    assert [one.workload for one in made.decide().backfill] == ["a2"]
