"""The backfill reservation for the first job that cannot start, and the jobs that may overtake it."""

from __future__ import annotations

import dataclasses as dc
import itertools

import pytest

from jupyter_gpu_quota.core.plan import Pause
from jupyter_gpu_quota.core.reason_figures import figures_of
from tests.core.promises import check_order_is_irrelevant
from tests.core.world import GENTLE, World, world

GANG = """
pool t 1x4
a 0 of t
a runs 2 of 1
a queues 1 of 4 by ann
"""
"""Two of four devices are free and a job of all four waits, first in its project's order."""


def started(made: World) -> list[str]:
    return sorted(one.workload for one in made.tick().actions)


def with_limits(made: World, running_s: int) -> World:
    for name, job in made.jobs.items():
        if job.state == "running":
            made.jobs[name] = dc.replace(job, time_limit_s=running_s, started_at=made.now)
    return made


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        # R30
        pytest.param("a queues 1 of 1 by bob minutes 5", ["a4"], id="a job that ends before that start overtakes"),
        pytest.param("a queues 1 of 1 by bob minutes 70", ["a4"], id="a job that would run longer borrows the devices"),
        # R31
        pytest.param(
            "a queues 1 of 1 by bob priority 20 minutes 70", [],
            id="a job of lower priority does not: the large job could pause it at once",
        ),
        # R30
        pytest.param(
            "a queues 1 of 1 by bob minutes 70 priority 20 fixed", [],
            id="a non-preemptible job waits",
        ),
    ],
)  # fmt: skip
def test_a_large_job_is_not_overtaken_for_ever(later: str, expected: list[str]) -> None:
    made = with_limits(world(GANG + later), running_s=3600)
    assert started(made) == expected


# R27
def test_the_reason_of_the_large_job_names_its_latest_start() -> None:
    made = with_limits(world(GANG), running_s=3600)
    made.submit("a", 1000, user="bob", time_limit_s=60)
    decision = made.decide()
    assert figures_of(decision.waits["a3"])["within_s"] == 3603
    (kept,) = decision.backfill
    assert (kept.workload, kept.starts_at, len(kept.placements)) == ("a3", made.now + 3_603_000, 4)


# R30
def test_a_backfill_reservation_never_blocks_a_claim_within_guarantee() -> None:
    made = with_limits(world(GANG.replace("a 0 of t", "a 0 of t\nb 1 of t") + "b queues 1 of 1"), running_s=3600)
    assert "b1" in started(made)


def test_a_job_of_another_project_overtakes_where_the_large_one_may_preempt_it() -> None:
    text = GANG.replace("a 0 of t", "a 2 of t\nb 0 of t") + "b queues 1 of 1 minutes 70"
    assert started(with_limits(world(text), running_s=3600)) == ["b1"]


# R27
def test_only_the_first_blocked_job_has_a_backfill_reservation() -> None:
    made = with_limits(world(GANG + "a queues 1 of 4 by bob\na queues 1 of 1 by carl minutes 5"), running_s=3600)
    assert [kept.workload for kept in made.decide().backfill] == ["a3"]


# R27
def test_the_first_blocked_job_is_independent_of_the_order_of_the_projects() -> None:
    """Inside their department x comes before y; alone, x comes after z, and z after y."""
    made = world(
        """
        pool t 7
        department da 0 of t
        department db 0 of t
        v 1 of t, limit 1
        x 0 of t in da, weight 2
        y 0 of t in da
        z 0 of t in db
        v runs 1 of 1 priority 30
        x runs 1 of 1 minutes 90
        y runs 2 of 1 minutes 90
        z runs 3 of 1 minutes 90
        v queues 1 of 1
        x queues 1 of 2
        y queues 1 of 0.25
        z queues 1 of 1
        """
    )
    found = set[str]()
    for projects in itertools.permutations(made.policy.projects):
        made.policy = dc.replace(made.policy, projects=projects)
        found |= {one.workload for one in made.decide().backfill}
    assert found == {"z4"}


def test_the_backfill_reservation_is_on_the_devices_that_are_free_first() -> None:
    made = world(
        "pool t 2x2\na 0 of t\na runs 1 of 1 on n1g0\na runs 1 of 1 on n2g0\n"
        "a queues 1 of 2 by ann\na queues 1 of 1 by bob minutes 1",
        preemption=dc.replace(GENTLE, min_runtime_s=7200),
    )
    first, second = "a2", "a1"
    made.jobs[first] = dc.replace(made.jobs[first], time_limit_s=600, started_at=made.now)
    made.jobs[second] = dc.replace(made.jobs[second], time_limit_s=6000, started_at=made.now)
    (kept,) = made.decide().backfill
    assert {one.device[:2] for one in kept.placements} == {"n2"}


def test_a_job_that_gets_other_devices_in_the_plan_loses_its_backfill_reservation() -> None:
    """a1 has the reservation when b3 is served; then a1 may preempt b2, as b is above its fair share."""
    made = world(
        "pool t 2x4\na 1 of t\nb 0 of t\nb runs 2 fixed\nb runs 3\nb queues 1 by x\nb queues 3\na queues 3 priority 80"
    )
    made.settle()
    assert (made.picture(), made.backfill[0].workload) == ("a 3 / b 3", "b4")


def test_a_short_job_above_its_fair_share_starts_on_reserved_devices() -> None:
    """b6 ends before the planned start of a3, and an earlier reservation was dropped."""
    made = world(
        """
        pool t 4
        department d2 5 of t
        department d3 1.5 of t, priority 60
        a 2 of t in d2, priority 60, weight 2
        b 0.5 of t in d3, weight 2
        c 2 of t in d2
        b runs 0.5 by v ranks 2 priority 70 on n1g0,n1g1
        a runs 0.1 by u on n1g0
        b runs 0.25 by v on n1g0
        b runs 1 by v on n1g2
        a runs 0.6 by u on n1g3
        b queues 0.1 by u ranks 2 priority 70
        a queues 0.6 by w ranks 2-3
        c queues 0.25 by u priority 70
        b queues 1 by w
        b queues 0.25 by w
        """
    )
    made.jobs["b6"] = dc.replace(made.jobs["b6"], time_limit_s=20)
    assert "b6" in started(made)


def test_the_assumed_end_of_equal_jobs_is_independent_of_input_order() -> None:
    """a2 and b2 are alike and end at one instant; the devices reserved for b3 depend on the order."""
    made = world(
        """
        pool t 2
        department d2 0 of t, priority 60
        a 0.5 of t in d1, limit 2.5
        b 0.5 of t in d1
        d 0 of t in d2
        b runs 0.25 fixed on n1g1 minutes 999
        a runs 0.3 on n1g0
        b runs 0.1 fixed on n1g1 minutes 999 ran 6
        a runs 0.1 on n1g1 minutes 999 ran 6 priority 30
        d runs 0.6 on n1g0 minutes 1 ran 46
        d runs 0.25 on n1g1
        a runs 0.1 ranks 2-3 held 2 on n1g1,n1g1
        b queues 0.5 minutes 1
        a queues 0.3
        """
    )
    made.pass_time()
    for seed in range(8):
        check_order_is_irrelevant(made.snapshot(), made.policy, made.decide().plan, seed)


def test_a_backfill_reservation_does_not_block_its_own_job() -> None:
    """In the end a5 gets another device, and d3 fits on a part of its reservation and on n1g0."""
    made = world(
        """
        pool t 3
        a 1.5 of t, weight 0, priority 60, limit per user 1
        b 0 of t, priority 60, limit per user 2
        c 1 of t
        d 0.5 of t, priority 60
        d runs 0.3 by u ran 3 minutes 999999
        a runs 0.25 by w ran 60 minutes 999999
        b runs 0.1 by u ran 3600 minutes 999999
        c runs 0.25 by u ran 60 minutes 999999
        c runs 0.3 ranks 2-3 held 2 priority 30 by w ran 3 minutes 999999
        a runs 0.25 by u ran 60 minutes 999999
        d runs 0.3 by u ran 3 minutes 999999
        a queues 0.5 priority 70 by v minutes 999999
        a queues 0.5 ranks 2-4 priority 70 by u minutes 999999 fixed
        a queues 0.25 ranks 2 by v minutes 999999
        c queues 0.6 ranks 3 by u minutes 999999
        d queues 0.1 ranks 3 by v minutes 999999
        c queues 0.25 by u minutes 999999
        """
    )
    assert "d3" in started(made)


@pytest.mark.parametrize(
    ("other_quota", "expected"),
    [
        # R32
        pytest.param(0, ["c1 Start"], id="a rank of a checked shape starts on the reserved devices"),
        # R3 R32
        pytest.param(2, ["c1 Reserve", "d1 Pause", "d2 Pause"], id="a larger one pauses work beside them"),
    ],
)
def test_a_claim_within_guarantee_enters_the_reservation_of_another_project(
    other_quota: int, expected: list[str]
) -> None:
    """Beside two quotas of 2, no node of 3 devices has room for a third one: the checked shape is 1 then."""
    made = world(
        f"""
        pool t 2x3
        a 2 of t
        b {other_quota} of t
        c 2 of t
        d 0 of t
        a runs 1 on n1g0 fixed
        d runs 1 on n1g1 minutes 900
        d runs 1 on n1g2 minutes 900
        d runs 1 on n2g0 minutes 120
        d queues 3
        """
    )
    made.tick()
    assert [one.workload for one in made.backfill] == ["d4"]
    made.submit("c", 2000, preemptible=False, time_limit_s=86_400)
    assert sorted(f"{one.workload} {type(one).__name__}" for one in made.tick().actions) == expected


# R42
def test_what_a_project_frees_beside_its_own_claim_goes_to_its_jobs_within_guarantee_first() -> None:
    """Without the job of two GPUs a is below its quota; the reservation is for a job above the quota of b."""
    made = world(
        """
        pool t 1x3
        a 2 of t
        b 0 of t
        c 0 of t
        a used 40 of t
        c runs 1 of 1 minutes 9000
        a runs 1 of 2 minutes 900
        a queues 1 of 1 by bob
        b queues 1 of 1
        """
    )
    made.tick()
    assert [one.workload for one in made.backfill] == ["b1"]
    made.submit("a", 250, user="ann", priority=70)
    paused = [one.workload for one in made.tick().actions if isinstance(one, Pause)]
    assert (paused, [one.workload for one in made.backfill]) == (["a1"], ["b1"])
