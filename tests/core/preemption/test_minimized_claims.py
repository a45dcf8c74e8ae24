"""Claims of a plan whose victims were minimized."""

from __future__ import annotations

from typing import Any

from jupyter_gpu_quota.core.plan import Pause, Reserve
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.core.preemption.test_exhaustive import put
from tests.core.promises import check_plan
from tests.core.world import GENTLE, World, world

RUNNING: tuple[dict[str, Any], ...] = (
    {"project": "b", "gpu": 500, "user": "bob", "priority": 70, "seed": 211, "ran_s": 3600},
    {"project": "a", "gpu": 1000, "user": "bob", "priority": 30, "seed": 818, "ran_s": 3600},
    {"project": "c", "gpu": 1000, "user": "bob", "priority": 50, "seed": 104, "ran_s": 3600},
    {"project": "a", "gpu": 500, "user": "ann", "priority": 50, "seed": 532, "ran_s": 3600},
)


# R43
def test_a_job_that_lost_its_devices_does_not_take_the_claim_of_a_notebook_of_its_size() -> None:
    made = World(preemption=GENTLE)
    made.pool("t", 1, 3)
    for name, training, limit in (("a", 2000, 2500), ("b", 3000, 3500), ("c", 500, 2000)):
        made.project(name, "t", training_milli=training, notebook_milli=500, limit_milli=limit, priority=60)
    for job in RUNNING:
        put(made, ranks=1, least=None, preemptible=True, **job)
    made.submit("a", 500, user="ann", priority=50)
    made.submit("c", 250, user="bob", priority=30)
    for project in "cb":
        made.ask(project, 250)
    reserved = {one.workload for one in decide(made.snapshot(), made.policy).actions if isinstance(one, Reserve)}
    assert reserved >= {"nb-b1", "nb-c1"}


# R23
def test_a_job_that_lost_its_devices_has_the_room_of_a_larger_one_of_lower_priority() -> None:
    made = world(
        """
        pool t 4
        pool t 1 Y
        a 0 of t
        b 0 of t
        c 0 of t
        d 1 of t
        d runs 1 model Y on n2g0 fixed
        a runs 1 priority 70
        a runs 1 on n1g1 ran 100
        a runs 2 on n1g2,n1g3
        c queues 0.25 model Y
        b queues 0.5
        a queues 2 of 0.5 priority 70
        a queues 0.75
        """
    )
    reserved = {one.workload for one in made.tick().actions if isinstance(one, Reserve)}
    assert reserved == {"b1", "a4", "a5"}


def test_what_is_left_over_spares_the_victim_of_a_claim_within_fair_share_first() -> None:
    """c2 frees a GPU more than it needs. f1 gets it, so that y2 continues; s3 is above its fair share."""
    made = world(
        """
        pool t 6
        f 0 of t
        s 0 of t, weight 3
        y 0 of t
        c 0 of t
        y runs 1 on n1g0
        y runs 1 on n1g1
        s runs 1 on n1g2 priority 30
        s runs 1 on n1g3 priority 30
        c runs 2 on n1g4,n1g5 priority 30
        f queues 1
        s queues 2 priority 70
        c queues 1 priority 70
        """
    )
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    assert {one.workload for one in decision.plan.actions if isinstance(one, Pause)} == {"s1", "s2", "c1"}


# R43
def test_the_device_that_a_limit_kept_from_a_claim_spares_the_victim_of_an_earlier_one() -> None:
    """p2 needs the pause of p1 for its limit alone: where it starts on the free n2g0, n1g0 is free for q1."""
    made = world(
        """
        pool t 3
        pool t 1 Y
        p 1 of t limit 1
        q 2 of t
        r 0 of t
        p runs 1 model X priority 30 on n1g0
        r runs 1 model X on n1g1
        q queues 2 model X
        p queues 1 priority 70
        """
    )
    assert [one.workload for one in made.tick().actions if isinstance(one, Pause)] == ["p1"]
