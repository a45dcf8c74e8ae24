"""Defragmentation: work is moved, and restarts in the same plan, before any job is paused for a fragmented slot."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import JobState, JobTarget, Placement, PreemptionPolicy, Reservation
from jupyter_gpu_quota.core.plan import Pause, Plan, Reserve
from tests.core.accounting import Books
from tests.core.world import GENTLE, World, world


def said(plan: Plan) -> list[tuple[str, str, str]]:
    kinds = {Pause: "pause", Reserve: "reserve"}
    return [(kinds.get(type(one), "start"), one.workload, str(one.reason.code)) for one in plan.actions]


PARTS = """
pool t 2x2
a 2 of t
b 2 of t
b runs 1 of 1 on n1g0
b runs 1 of 1 on n2g0
a queues 1 of 2
"""
"""Two nodes with one free device each, and a claim within guarantee of two devices of one node."""


# R52
def test_a_job_moves_to_the_other_node_and_no_job_is_paused() -> None:
    made = world(PARTS)
    assert said(made.tick()) == [
        ("pause", "b1", "moved"), ("reserve", "b1", "moved"), ("reserve", "a1", "waits_for_drain"),
    ]  # fmt: skip
    made.settle()
    assert {made.jobs[name].state for name in ("a1", "b1", "b2")} == {JobState.RUNNING}
    assert {one.device for one in made.owned["b1"]} == {"n2g1"}


# R52
def test_two_halves_move_to_one_device_for_a_whole_one() -> None:
    made = world("pool t 2\na 1 of t\nb 1 of t\nb runs 1 of 0.5 on n1g0\nb runs 1 of 0.5 on n1g1\na queues 1 of 1")
    assert [row[:2] for row in said(made.tick())] == [("pause", "b1"), ("reserve", "b1"), ("reserve", "a1")]
    made.settle()
    assert made.picture() == "a 1 / b 1"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param("b queues 1 of 1", "pause", id="without a free device a job over quota is paused"),
    ],
)
def test_without_room_elsewhere_nothing_moves(change: str, expected: str) -> None:
    made = world(PARTS.replace("b 2 of t", "b 0 of t") + "b runs 1 of 1 on n2g1")
    plan = made.tick()
    assert {row[2] for row in said(plan)} == {"reclaimed", "waits_for_drain"}


# R52
@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        pytest.param("a 2 of t", ["b1"], id="is moved for a claim within guarantee that nothing else serves"),
        pytest.param("a 1 of t", [], id="is not moved for a claim within the fair share"),
    ],
)
def test_protected_work(quota: str, expected: list[str]) -> None:
    made = world(PARTS.replace("a 2 of t", quota), preemption=dc.replace(GENTLE, min_runtime_s=7200))
    assert [row[1] for row in said(made.tick()) if row[2] == "moved" and row[0] == "pause"] == expected


# R52
def test_work_that_is_not_protected_moves_before_protected_work() -> None:
    made = world(PARTS, preemption=dc.replace(GENTLE, min_runtime_s=7200))
    made.put(made.jobs["b2"], ["n2g0"], ran_s=7300)
    assert [row[1] for row in said(made.tick()) if row[2] == "moved" and row[0] == "pause"] == ["b2"]


def test_above_the_fair_share_nothing_is_moved() -> None:
    made = world(PARTS.replace("a 2 of t", "a 0 of t, weight 0").replace("b 2 of t", "b 4 of t"))
    assert said(made.tick()) == []


def test_a_claim_of_several_ranks_moves_the_same_work_once() -> None:
    made = world(
        """
        pool t 3x2
        a 1 of t, limit 1, weight 2
        b 0 of t, notebooks 0.25, weight 7
        c 1 of t, weight 7
        c runs 1 of 0.1 ranks 5 by w priority 70 on n1g0,n1g0,n1g0,n1g0,n1g0
        a runs 1 of 0.333 by u priority 30 on n1g1
        c runs 1 of 0.1 ranks 3 by u priority 70 on n1g0,n1g0,n1g1
        b runs 1 of 0.5 by u priority 30 on n3g1
        c queues 1 of 0.6 ranks 5 by w priority 70
        """,
        within_project="first_come",
    )
    found = [row[:2] for row in said(made.tick())]
    assert len(found) == len(set(found)), "no job is paused twice"
    made.settle()


def test_a_claim_waits_for_moved_work_whose_reserved_devices_are_still_occupied() -> None:
    made = world(
        "pool t 2\na 1 of t\nb 1 of t\na runs 0.45 on n1g1\na runs 0.1 on n1g1\na runs 0.55 on n1g0\n"
        "a runs 0.3 on n1g0\nb queues 0.3 ranks 2 priority 70\nb queues 0.25"
    )
    parts = tuple(Placement(rank=at, device=f"n1g{at}", gpu_milli=300, memory_mib=4800) for at in (0, 1))
    made.reserved["b1"] = Reservation(workload="b1", placements=parts, reserved_at=made.now)
    made.jobs["a4"] = dc.replace(made.jobs["a4"], state=JobState.PAUSING, target=JobTarget.PAUSED)
    made.leaves_at["a4"] = made.now + 10_000
    assert said(made.tick()) == [
        ("pause", "a2", "moved"), ("reserve", "a2", "moved"), ("reserve", "b2", "waits_for_drain"),
    ]  # fmt: skip
    made.settle()
    assert made.jobs["b1"].state is made.jobs["b2"].state is made.jobs["a2"].state is JobState.RUNNING


def test_a_job_stays_where_a_later_claim_of_the_plan_frees_enough_for_both() -> None:
    made = world(
        "pool t 4\na 1 of t\nb 2 of t\nc 0 of t\na runs 0.5 on n1g0\na runs 0.5 on n1g1\n"
        "c runs 1 ranks 2 on n1g2,n1g3\nb queues 2 of 1"
    )
    assert sorted(said(made.tick())) == [
        ("pause", "c1", "reclaimed"), ("reserve", "b1", "waits_for_drain"), ("reserve", "b2", "waits_for_drain"),
    ]  # fmt: skip
    made.settle()
    assert made.picture() == "a 1 / b 2 / c 0"


def test_a_job_stays_where_a_later_claim_fits_where_it_was_to_go() -> None:
    """Nothing is left over on the devices that drain; what is free again is the place that the move gives back."""
    made = world(
        """
        pool t 4
        a 0 of t, priority 60
        b 0 of t, priority 60, weight 3
        c 0 of t, weight 3
        a runs 1 priority 30 on n1g0
        b runs 0.6 on n1g2
        b runs 0.3 on n1g2
        c runs 0.3 on n1g3
        c runs 0.25 on n1g3
        a queues 0.5 priority 70
        a queues 0.6
        a queues 0.1
        a queues 0.1 ranks 3
        a queues 0.3
        """
    )
    assert [row for row in said(made.tick()) if row[0] == "pause"] == [("pause", "c1", "fair_share_reclaimed")]
    made.settle()
    assert made.picture() == "a 2.8 / b 0.9 / c 0.25"


def test_a_job_that_is_moved_counts_as_its_projects_use_while_it_leaves() -> None:
    made = world(
        "pool t 3\na 0 of t, priority 60\nb 0 of t\na runs 0.5 on n1g0\nb runs 0.5 on n1g1\nb runs 1 on n1g2\n"
        "a queues 1"
    )
    made.drain_ticks = 3
    assert ("pause", "a1", "moved") in said(made.tick())
    made.pass_time()
    assert Books(made.snapshot(), made.policy, "t").use()["a"] == 1500


def beside_a_sibling(*, preemptible: bool) -> World:
    """A claim of a full department, whose room is half a sibling's above its quota, and half another's within it."""
    made = World(preemption=PreemptionPolicy(min_runtime_s=2, grace_s=3, lent_grace_s=1))
    made.pool("t", 1, 6)
    made.department("full", "t", training_milli=2000, notebook_milli=1750, limit_milli=3750)
    made.department("other", "t", priority=60, training_milli=2000)
    made.project("a", "t", department="other", training_milli=2000)
    made.project("b", "t", department="full", priority=60, training_milli=1000, notebook_milli=1000)
    made.project("c", "t", department="full", training_milli=1000, notebook_milli=500)
    made.project("d", "t", department="full", priority=60, notebook_milli=250, weight=3)
    made.put(made.submit("a", 1000), ["n1g2"])
    made.put(made.submit("c", 250, preemptible=False), ["n1g5"])
    made.put(made.submit("d", 500), ["n1g3"])
    made.put(made.submit("c", 500, preemptible=preemptible), ["n1g3"])
    made.submit("a", 500, ranks=2)
    made.submit("b", 1000)
    return made


# R36 R43
def test_a_sibling_is_no_victim_for_the_entitlement_where_its_device_stays_taken() -> None:
    assert "d1" not in [name for _, name, _ in said(beside_a_sibling(preemptible=False).tick())], "c2 stays there"


# R40 R52
def test_a_sibling_is_paused_beside_a_move_that_clears_the_rest_of_its_device() -> None:
    rows = said(beside_a_sibling(preemptible=True).tick())
    assert {("pause", "d1", "reclaimed"), ("pause", "c2", "moved")} < set(rows)
    assert [name for what, name, _ in rows if what == "reserve"] == ["c2", "b1"]


def test_work_that_moves_is_not_paused_for_a_later_claim_of_its_project() -> None:
    made = World(preemption=GENTLE)
    made.pool("t", 26, 2)
    made.project("a", "t", training_milli=2000)
    made.project("b", "t", training_milli=50000)
    full = [f"n{node}{device}" for node in range(1, 25) for device in ("g0", "g1")]
    for device, ran_s in [("n25g0", 3600), *((device, 5000) for device in full), ("n26g0", 9000)]:
        made.put(made.submit("b", 1000), [device], ran_s=ran_s)
    made.submit("a", 2000)
    made.submit("b", 1000, priority=70)
    rows = said(made.tick())
    assert [row[:2] for row in rows if row[2] == "moved"] == [("pause", "b1"), ("reserve", "b1")]
    assert [row[1] for row in rows if row[0] == "pause" and row[2] != "moved"] == ["b49"]


# R52
@pytest.mark.parametrize(
    "owner",
    [
        pytest.param("b 1 of t, limit 1", id="the project is above its limit"),
        pytest.param("b 1 of t, limit per user 1", id="its user is above the ceiling for each user"),
        pytest.param("b 2 of s", id="the project has no amounts in the pool"),
        pytest.param("department d 1 of t, limit 1\nb 1 of t in d", id="the department is above its limit"),
    ],
)
def test_work_that_could_not_start_again_is_paused_and_not_moved(owner: str) -> None:
    others = "department c 3 of t\na 2 of t in c" if "department" in owner else "a 2 of t"
    made = world(
        f"""
        pool t 2x2
        pool s 1
        {others}
        {owner}
        b runs 1 of 1 on n1g0 pool t
        b runs 1 of 1 on n2g0 pool t
        a queues 1 of 2
        """.replace("\n", "\n        ")
    )
    pauses = [row for row in said(made.tick()) if row[0] == "pause"]
    assert len(pauses) == 1 and pauses[0][2] != "moved"
    made.settle()
    assert made.running("a") == 2000 and made.running("b") == 1000
