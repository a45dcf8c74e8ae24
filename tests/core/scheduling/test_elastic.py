"""Elastic jobs: as many ranks as are idle, fewer before any job is paused, never below the minimum."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import JobState, Upkeep
from jupyter_gpu_quota.core.plan import Pause, Plan, Reserve
from tests.core.promises import check_plan
from tests.core.world import GENTLE, World, world


def ranks(made: World, job: str) -> int:
    return len({one.rank for one in made.owned.get(job, [])})


def said(plan: Plan) -> list[tuple[str, str, str]]:
    kinds = {Pause: "pause", Reserve: "reserve"}
    return [(kinds.get(type(one), "start"), one.workload, str(one.reason.code)) for one in plan.actions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # R49
        pytest.param("pool t 4\na 2 of t\na queues 1 of 1 ranks 2-4", 4, id="it starts with all that is idle"),
        pytest.param("pool t 4\na 2 of t, limit 3\na queues 1 of 1 ranks 2-4", 3, id="it keeps to the limit"),
        pytest.param("pool t 8\na 2 of t\na queues 1 of 1 ranks 2-4", 4, id="it has no more ranks than it requested"),
        # R9
        pytest.param("pool t 1\na 1 of t\na queues 1 of 1 ranks 2-4", 0, id="below its minimum it does not start"),
        # R49
        pytest.param(
            "pool t 4\na 2 of t\nb 1 of t\na queues 1 of 1 ranks 2-4\nb queues 1 of 1", 3,
            id="others are served before it grows",
        ),
        pytest.param(
            "pool t 4\na 2 of t, limit per user 3\na queues 1 of 1 ranks 2-4", 3, id="it keeps to its user's ceiling"
        ),
    ],
)  # fmt: skip
def test_an_elastic_job_starts(text: str, expected: int) -> None:
    made = world(text)
    made.tick()
    assert ranks(made, "a1") == expected


# R51
def test_an_elastic_job_shrinks_before_any_job_is_paused_and_starts_again_at_once() -> None:
    made = world("pool t 4\na 2 of t\nb 1 of t\na queues 1 of 1 ranks 2-4")
    made.tick()
    assert ranks(made, "a1") == 4
    made.submit("b", 1000)
    plan = made.tick()
    assert said(plan) == [
        ("pause", "a1", "shrunk"), ("reserve", "a1", "shrunk"), ("reserve", "b1", "waits_for_drain"),
    ]  # fmt: skip
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "b1")) == (3, 1), "the fourth device is idle, so it keeps three"
    assert made.jobs["a1"].state is JobState.RUNNING


# R51
def test_a_claim_beyond_the_elastic_surplus_pauses_the_whole_job() -> None:
    made = world("pool t 4\na 0 of t\nb 4 of t\na queues 1 of 1 ranks 2-4")
    made.tick()
    made.submit("b", 4000)
    assert said(made.tick())[0] == ("pause", "a1", "reclaimed")
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "b1")) == (0, 1)


# R49
def test_an_elastic_job_grows_into_idle_gpus_after_a_while() -> None:
    made = world("pool t 4\na 2 of t\nb 2 of t\nb runs 2 of 1\na queues 1 of 1 ranks 2-4")
    made.settle()
    assert ranks(made, "a1") == 2
    for name in ("b1", "b2"):
        made.end(name)
    assert said(made.tick()) == []
    made.now += 10 * GENTLE.grace_s * 1000
    assert said(made.tick()) == [("pause", "a1", "grown"), ("reserve", "a1", "grown")]
    made.settle()
    assert ranks(made, "a1") == 4


# R50
def test_growth_within_the_quota_shrinks_what_elastic_jobs_of_others_have_above_theirs() -> None:
    made = world("pool t 4\na 3 of t\nb 1 of t\nb runs 1 of 1 ranks 1-3 held 3\na runs 1 of 1 ranks 1-4 held 1")
    assert said(made.tick()) == [
        ("pause", "b1", "shrunk"), ("reserve", "b1", "shrunk"), ("pause", "a1", "grown"), ("reserve", "a1", "grown"),
    ]  # fmt: skip
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "b1")) == (2, 2)
    made.now += 10 * GENTLE.grace_s * 1000
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "b1")) == (3, 1), "a has its quota, and not more of what is b's"


# R50
def test_growth_within_the_quota_takes_a_rank_of_each_elastic_job_of_others_at_once() -> None:
    made = world(
        "pool t 6\na 4 of t\nb 1 of t\nb runs 2 of 1 ranks 1-2 held 2\na runs 1 of 1 ranks 1-4 held 1\nb runs 1 of 1"
    )
    made.tick()
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "b1"), ranks(made, "b2")) == (3, 1, 1)


# R50
def test_growth_takes_no_rank_where_devices_are_being_left() -> None:
    made = world(
        "pool t 5\na 3 of t\nb 1 of t\nc 1 of t\na runs 1 of 1 ranks 1-4 held 1\n"
        "b runs 1 of 1 ranks 1-3 held 2\nc runs 1 of 2"
    )
    made.cancel("c1")
    assert [one for one in said(made.tick()) if one[1] == "b1"] == []
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "b1")) == (3, 2)


# R50
def test_growth_within_the_quota_pauses_no_job() -> None:
    made = world("pool t 4\na 3 of t\nb 1 of t\nb runs 3 of 1\na runs 1 of 1 ranks 1-4 held 1")
    assert said(made.tick()) == []


# R49
def test_an_elastic_job_does_not_grow_onto_idle_devices_of_the_backfill_reservation() -> None:
    """It would have to shrink again at the planned start."""
    made = world(
        "pool t 1x4\na 1 of t\nb 1 of t\nc 0 of t\na runs 1 of 1 ranks 1-3 held 1 ran 600\n"
        "b runs 2 of 1 minutes 600\nc queues 2"
    )
    assert said(made.tick()) == [] and [one.workload for one in made.backfill] == ["c1"]
    assert said(made.tick()) == []
    made.cancel("c1")
    assert ("pause", "a1", "grown") in said(made.tick())


# R54
@pytest.mark.parametrize(("quota", "expected"), [(1, 1), (3, 3)], ids=["its minimum", "its quota"])
def test_an_elastic_job_whose_pauses_are_used_up_starts_with_no_ranks_above_the_guarantee(
    quota: int, expected: int
) -> None:
    """It would not be paused again, and the next claim for these devices would wait until the period ends."""
    text = f"pool t 4\na {quota} of t\nb 0 of t\na queues 1 of 1 ranks 1-4"
    made = world(text, preemption=dc.replace(GENTLE, max_pauses=1))
    made.jobs["a1"] = dc.replace(made.jobs["a1"], paused_at=(made.now,), state=JobState.PAUSED, attempt=1)
    made.tick()
    assert ranks(made, "a1") == expected
    made.submit("b", 1000)
    made.tick()
    assert ranks(made, "b1") == 1


def test_a_protected_job_does_not_restart_to_grow() -> None:
    made = world(
        "pool t 4\na 2 of t\nb 2 of t\nb runs 2 of 1\na queues 1 of 1 ranks 2-4",
        preemption=dc.replace(GENTLE, min_runtime_s=600),
    )
    made.settle()
    for name in ("b1", "b2"):
        made.end(name)
    made.now += 10 * GENTLE.grace_s * 1000
    assert said(made.tick()) == []


# R51
def test_a_job_of_its_own_project_that_waits_takes_its_surplus_whatever_the_priority() -> None:
    made = world("pool t 4\na 4 of t\na queues 1 of 1 ranks 2-4 priority 60")
    made.tick()
    made.submit("a", 1000, priority=40)
    assert said(made.tick())[0] == ("pause", "a1", "shrunk")
    made.settle()
    assert (ranks(made, "a1"), ranks(made, "a2")) == (3, 1)


def test_while_it_starts_again_in_another_size_it_counts_once_under_the_limit() -> None:
    made = world("pool t 6\na 0 of t, limit 4\na runs 1 ranks 1-3 held 2")
    made.drain_ticks = 3
    assert [str(one.reason.code) for one in made.tick().actions] == ["grown", "grown"]
    made.submit("a", 1000)
    assert [one.workload for one in made.tick().actions] == ["a2"]
    made.settle()
    assert made.picture() == "a 4"


def test_an_elastic_job_with_its_minimum_on_open_nodes_counts_as_a_whole_victim() -> None:
    made = world("pool t 2x2\nb 1 of t, weight 2\nc 0 of t, weight 2")
    made.put(made.submit("c", 1000, ranks=2, min_ranks=1), ["n1g0", "n2g0"])
    made.put(made.submit("b", 1000), ["n2g1"])
    made.keep_up("n1", Upkeep.CORDONED)
    made.submit("b", 250)
    assert said(made.tick()) == [], "c would be left with nothing, and b is above its quota then"


# R45
def test_a_job_is_no_victim_if_its_project_could_reclaim_by_shrinking_another_job() -> None:
    """Found by random worlds: an elastic job had grown its project over its share, and two jobs took turns for ever."""
    made = world("pool t 4\na 2 of t weight 0\nb 0 of t\nc 0.5 of t weight 0")
    made.put(made.submit("a", 1000), ["n1g0"], ran_s=60)
    made.put(made.submit("a", 500, min_ranks=2, ranks=3), ["n1g1", "n1g1", "n1g2"])
    made.put(made.submit("c", 500, preemptible=False), ["n1g2"])
    made.put(made.submit("b", 600), ["n1g3"])
    made.submit("b", 1000)
    assert said(made.tick()) == [], "a1 would leave, a2 shrink, and a1 or its victim be within the quota again"


# R17
def test_a_non_preemptible_elastic_job_is_counted_with_all_its_ranks() -> None:
    """Found by random worlds: with its minimum alone its project's share was too small for what waits beside it."""
    made = world("pool t 8\na 4 of t\nb 0 of t")
    made.put(made.submit("a", 1000, min_ranks=1, ranks=4, preemptible=False), ["n1g0", "n1g1", "n1g2", "n1g3"])
    for device in ("n1g4", "n1g5", "n1g6", "n1g7"):
        made.put(made.submit("b", 1000), [device])
    made.submit("a", 2000)
    pauses = [one for one in made.tick().actions if isinstance(one, Pause)]
    assert len(pauses) == 2 and all(one.workload.startswith("b") for one in pauses)


def test_an_elastic_job_that_keeps_its_minimum_reclaims_nothing() -> None:
    """Of c, which is then below its quota, only c3 could start, and that goes on in a place of its own."""
    made = beside_an_elastic_job("1", 500, 450, 100, 750)
    made.drain_ticks = 3
    made.submit("c", 100)
    assert ("pause", "c3", "shrunk") in said(made.tick())
    made.submit("a", 250)
    made.pass_time()
    decision = made.decide()
    assert said(decision.plan)[0] == ("pause", "c2", "fair_share_reclaimed")
    check_plan(made.snapshot(), made.policy, decision)


def test_an_elastic_job_that_loses_its_surplus_does_not_grow_in_the_same_plan() -> None:
    made = beside_an_elastic_job("0.9", 300, 550, 150, 450)
    made.submit("a", 300)
    made.submit("a", 350)
    made.pass_time()
    decision = made.decide()
    pauses = [(kind, *rest) for kind, *rest in said(decision.plan) if kind == "pause"]
    assert pauses == [("pause", "c3", "shrunk"), ("pause", "c1", "fair_share_reclaimed")]
    check_plan(made.snapshot(), made.policy, decision)


def beside_an_elastic_job(quota: str, first: int, second: int, least: int, others: int) -> World:
    """Of c one device has two jobs, the other an elastic one with twice its minimum beside a job of a."""
    made = world(f"pool t 2\na 0 of t, priority 60\nc {quota} of t")
    made.put(made.submit("c", first), ["n1g0"])
    made.put(made.submit("c", second), ["n1g0"])
    made.put(made.submit("c", least, min_ranks=1, ranks=2), ["n1g1", "n1g1"])
    made.put(made.submit("a", others), ["n1g1"])
    return made


@pytest.mark.parametrize(
    ("made", "asked", "goes"),
    [
        pytest.param(
            beside_an_elastic_job("0.9", 550, 200, 200, 550), (350, 350), ["c3", "c2"],
            id="the elastic job shrinks, and a job moves to its device",
        ),
        pytest.param(
            beside_an_elastic_job("0.8", 850, 100, 100, 300), (250, 400), ["c3"],
            id="a whole elastic job is one victim",
        ),
    ],
)  # fmt: skip
def test_no_project_ends_below_its_quota_where_elastic_surplus_is_enough(
    made: World, asked: tuple[int, int], goes: list[str]
) -> None:
    """Found by random worlds: c ended below its quota without need."""
    for milli in asked:
        made.submit("a", milli)
    made.pass_time()
    decision = made.decide()
    assert [one.workload for one in decision.plan.actions if isinstance(one, Pause)] == goes
    check_plan(made.snapshot(), made.policy, decision)


def test_a_slice_takes_the_elastic_surplus_of_its_own_project_once() -> None:
    """Found by random worlds: it was counted twice, and the minimum stayed where the slice was to be."""
    made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t")
    made.put(made.submit("a", 250, ranks=2, min_ranks=1), ["n1g0"] * 2)
    made.put(made.submit("b", 250), ["n1g0"])
    made.put(made.submit("b", 200), ["n1g0"])
    made.ask("a", 1000)
    assert sorted(said(made.tick())) == [
        ("pause", "a1", "reclaimed"), ("pause", "b1", "reclaimed"), ("pause", "b2", "reclaimed"),
        ("reserve", "nb-a1", "waits_for_drain"),
    ]  # fmt: skip
