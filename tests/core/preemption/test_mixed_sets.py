"""Pauses, moves, shrinks and take-overs in one set, and the bound on the work of the search."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import JobState, JobTarget, Placement, Reservation
from jupyter_gpu_quota.core.preemption.search.cheapest import CheapestSet
from tests.core.preemption.test_defragmentation import said
from tests.core.preemption.test_search import running_for, victims
from tests.core.world import World, world


# R40 R52
def test_a_claim_pauses_in_its_own_project_and_moves_other_work() -> None:
    made = world(
        "pool t 2x2\na 1 of t\nb 2 of t\na runs 1 of 1 on n1g0\nb runs 1 of 1 on n1g1\nb runs 1 of 1 on n2g0\n"
        "a queues 1 of 2 priority 70"
    )
    assert said(made.tick()) == [
        ("pause", "a1", "preempted_in_project"), ("pause", "b1", "moved"), ("reserve", "b1", "moved"),
        ("reserve", "a2", "waits_for_drain"),
    ]  # fmt: skip


def shared_device() -> World:
    """A project above its quota pauses two jobs of one device, or one large job and a rank of its own."""
    made = World()
    made.pool("t", 1, 11)
    made.project("a", "t", training_milli=5000, weight=2)
    made.project("b", "t", weight=1)
    made.put(made.submit("a", 1000, ranks=3, min_ranks=2), ["n1g0", "n1g1", "n1g2"])
    made.put(made.submit("a", 3000, preemptible=False), ["n1g3", "n1g4", "n1g5"])
    made.put(made.submit("b", 750), ["n1g6"])
    made.put(made.submit("b", 250), ["n1g6"])
    made.put(made.submit("b", 4000), ["n1g7", "n1g8", "n1g9", "n1g10"])
    made.submit("a", 1000, ranks=2)
    made.submit("a", 1000)
    return made


# R40 R44
def test_a_rank_that_the_own_project_gives_up_counts_in_the_balance() -> None:
    rows = said(shared_device().tick())
    assert sorted(name for what, name, _ in rows if what == "pause") == ["a1", "b3"]


# R38
def test_each_rank_that_an_elastic_job_gives_up_is_taken_from_a_project_above_its_fair_share() -> None:
    made = World()
    made.pool("t", 2, 4)
    made.project("a", "t", priority=60)
    made.project("b", "t")
    made.project("c", "t", training_milli=2000)
    made.put(made.submit("b", 1000, ranks=4, min_ranks=1), [f"n1g{at}" for at in range(4)])
    made.put(made.submit("c", 2000, preemptible=False), ["n2g0", "n2g1"])
    made.submit("b", 3000)
    made.submit("a", 3000)
    rows = said(made.tick())
    assert rows[0] == ("pause", "b1", "fair_share_reclaimed"), "as a whole: with two ranks less b is at its fair share"


# R25 R26
def test_no_reservation_is_taken_over_for_work_that_moves() -> None:
    made = world(
        "pool t 2x2\na 2 of t\nb 0 of t\nc 0 of t\nd 0 of t\nd runs 1 of 1 on n1g0\nd runs 1 of 1 on n1g1 fixed\n"
        "b runs 1 of 1 on n2g0\nb runs 1 of 1 on n2g1\nc queues 1 of 1\na queues 1 of 2"
    )
    made.reserved["c1"] = Reservation(
        workload="c1", placements=(Placement(rank=0, device="n1g0", gpu_milli=1000, memory_mib=16001),),
        reserved_at=made.now,
    )  # fmt: skip
    made.jobs["d1"] = dc.replace(made.jobs["d1"], state=JobState.PAUSING, target=JobTarget.PAUSED)
    made.leaves_at["d1"] = made.now + 10_000
    rows = said(made.tick())
    assert sorted(name for what, name, _ in rows if what == "pause") == ["b1", "b2"]
    assert not [code for _, _, code in rows if code in ("moved", "drain_taken_over")]


# R43
def test_a_victim_continues_where_a_job_above_its_fair_share_would_get_the_room_instead() -> None:
    made = world(
        "pool t 4\np 0 of t\nq 0 of t\np runs 1 of 1 on n1g0 priority 30\np runs 1 of 2\nq runs 1 of 1 on n1g3\n"
        "q queues 2 of 1\np queues 1 of 1 priority 70"
    )
    assert victims(made.tick()) == ["p2"]


# R40
def test_a_claim_is_served_though_the_bound_ends_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world("pool t 2x2\na 2 of t\nb 2 of t\nb runs 4 of 1\na queues 2")
    for name, ran_s in (("b1", 100), ("b3", 200), ("b4", 300)):
        running_for(made, name, ran_s=ran_s)
    monkeypatch.setitem(CheapestSet.__init__.__kwdefaults__, "work", 0)
    decision = made.decide()
    assert len(victims(decision.plan)) == 2
    assert decision.plan.searches_ended_early == ("a1",)
