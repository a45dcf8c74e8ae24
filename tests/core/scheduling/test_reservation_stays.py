"""The backfill reservation stays with its job, and its planned start does not move later without a reason."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import Health, Job, JobState, JobTarget, Placement, Reservation
from tests.core.world import GENTLE, World, add, world

PROTECTED = dc.replace(GENTLE, min_runtime_s=7200)
"""No work may be paused above a guarantee."""

PART = """
pool t 4
a 0 of t, notebooks 1.5
b 0 of t
c 0 of t
d 0 of t
b runs 1 on n1g0 ran 8000 lent
b runs 1 on n1g1 ran 8000 lent
d runs 0.5 on n1g2 minutes 60 ran 0
d runs 1 on n1g3 minutes 80 ran 0
b queues 1
"""
"""Two borrowers on notebook quota, and the reservation of b3 on the device with half a GPU free."""


def holder(made: World) -> tuple[str, int]:
    """The job with the reservation, and its planned start in seconds from the first tick."""
    (kept,) = made.decide().backfill
    assert kept.starts_at is not None
    return kept.workload, kept.starts_at


def started(made: World) -> list[str]:
    return sorted(f"{one.workload} {one.reason.code}" for one in made.tick().actions if hasattr(one, "borrower"))


# R33
@pytest.mark.parametrize(
    "later",
    [
        pytest.param("a notebook", id="a slice waits for a borrower, and the other half of the quota is unbooked"),
        pytest.param("a job", id="another job takes the place of the borrower"),
    ],
)
def test_unbooked_notebook_quota_does_not_move_to_reserved_devices(later: str) -> None:
    made = world(PART, preemption=PROTECTED)
    made.drain_ticks = 3
    made.tick()
    _, before = holder(made)
    if later == "a notebook":
        made.ask("a", 250)
    else:
        made.submit("c", 1000)
    for _ in range(5):
        made.tick()
        assert holder(made)[1] <= before


# R33
def test_a_planned_start_counts_notebook_quota_under_a_job_that_will_borrow_it() -> None:
    """c's job replaces a borrower. When it ends, only half of that device is free."""
    made = world(PART, preemption=PROTECTED)
    made.drain_ticks = 3
    made.submit("c", 1000, time_limit_s=60)
    for _ in range(5):
        made.tick()
        assert {one.device for kept in made.decide().backfill for one in kept.placements} == {"n1g2"}


# R33
def test_work_that_has_not_begun_moves_the_planned_start_once_when_it_begins() -> None:
    """Its end moves with the clock. A plan that followed it would be written at every tick while an image is pulled."""
    made = world("pool t 2\na 0 of t\nb 0 of t\na runs 2 minutes 60\nb queues 2", preemption=PROTECTED)
    made.jobs["a1"] = dc.replace(made.jobs["a1"], state=JobState.STARTING, started_at=None)
    made.tick()
    job, before = holder(made)
    for _ in range(5):
        made.now += 30_000
        assert made.decide().plan.actions == () and holder(made) == (job, before)
    begun_at = made.now
    made.jobs["a1"] = dc.replace(made.jobs["a1"], state=JobState.RUNNING, started_at=begun_at)
    made.tick()
    assert holder(made)[1] == begun_at + (3600 + PROTECTED.grace_s) * 1000 > before
    made.now += 30_000
    assert made.decide().plan.actions == ()


# R33
def test_work_that_moves_and_does_not_end_moves_no_planned_start() -> None:
    """a1 is to go on from n1g0 to n1g1, but does not end in time: n1g0 is quarantined, and b1 waits for n1g1."""
    made = world("pool t 2\na 0 of t\nb 0 of t\na runs 1 on n1g0 minutes 60\nb queues 1", preemption=PROTECTED)
    made.jobs["a1"] = dc.replace(made.jobs["a1"], state=JobState.PAUSING, target=JobTarget.PAUSED)
    place = Placement(rank=0, device="n1g1", gpu_milli=1000, memory_mib=16_001)
    made.reserved["a1"] = Reservation(workload="a1", placements=(place,), reserved_at=made.now)
    made.health("n1g0", Health.QUARANTINED)
    made.tick()
    job, before = holder(made)
    for _ in range(5):
        made.now += 1000
        assert made.decide().plan.actions == () and holder(made) == (job, before)


# R27
def test_a_job_is_planned_on_unbooked_notebook_quota_if_it_fits_nowhere_else() -> None:
    """n1g0 has a slice and too little room for the rest of the notebook quota, which is on n1g1, too."""
    made = world(
        "pool t 2\na 0 of t, notebooks 0.5\nb 0 of t\nd 0 of t\nb runs 1 on n1g1 minutes 60 ran 0 lent\n"
        "d runs 0.75 on n1g0 minutes 90 ran 0\nb queues 1",
        preemption=PROTECTED,
    )
    made.book(made.ask("a", 125), "n1g0")
    (kept,) = made.decide().backfill
    assert (kept.workload, [one.device for one in kept.placements]) == ("b2", ["n1g1"])
    made.end("b1")
    assert started(made) == ["b2 borrows_notebook_quota"]


# R6
def test_a_claim_within_guarantee_starts_as_a_borrower_where_notebook_quota_is_reserved() -> None:
    made = world(
        "pool t 2\na 1 of t, notebooks 0.5\nb 0 of t\na runs 1 on n1g0 priority 20 lent\nb runs 1 on n1g1\n"
        "a queues 1 priority 70",
    )
    made.drain_ticks = 3
    made.settle()
    assert {(one.id, one.borrower) for one in _running(made) if one.project == "a"} == {("a2", True)}


# R29
def test_a_reservation_does_not_pass_while_a_part_of_its_device_is_idle_for_it() -> None:
    """b2 fits in the free quarter, which is kept for b1; b3 has the higher priority."""
    made = world("pool t 1\na 0 of t\nb 0 of t\na runs 0.75 on n1g0\nb queues 0.5")
    made.tick()
    assert holder(made)[0] == "b1"
    made.submit("b", 125, user="ann")
    made.submit("b", 1000, user="bob", priority=70)
    assert started(made) == ["b2 borrows_reserved_devices"]
    assert made.backfill[0].workload == "b1"


# R28
def test_a_reservation_returns_from_a_job_that_is_served_elsewhere() -> None:
    """The reservation of a4 passes to a5, which has the higher priority and pauses b1; b1's other device is kept."""
    made = world(
        "pool t 1\npool t 1x4\na 4 of t\nb 0 of t\nc 0 of t\na runs 1 on n1g0 fixed\na runs 1 on n2g0 fixed\n"
        "b runs 2 on n2g2,n2g3\na runs 1 on n2g1 fixed\na queues 4 priority 30"
    )
    made.tick()
    assert holder(made)[0] == "a4"
    made.submit("a", 1000)
    made.submit("c", 1000)
    plan = made.tick()
    assert [one.workload for one in plan.actions if hasattr(one, "placements")] == ["a5"]
    assert made.backfill[0].workload == "a4"


# R27
def test_a_reservation_ends_if_its_job_waits_for_a_limit_since_a_victim_was_spared() -> None:
    """a1 and a2 take the three GPUs of b1; b2, a victim at first, runs on, and the department is at its limit."""
    made = world(
        "pool t 6\ndepartment d 3 of t, limit 4\na 3 of t in d, weight 0\nb 0 of t in d\nb runs 3\nb runs 1 ran 60\n"
        "b queues 1\na queues 1 priority 70 by ann\na queues 2 by bob"
    )
    plan = made.tick()
    assert [one.workload for one in plan.actions] == ["a1", "b1", "a2"]
    assert made.backfill == []


# R33
def test_devices_that_are_idle_until_a_planned_start_which_moved_are_lent() -> None:
    """c1 starts on n1g1 within its guarantee, and a1 waits for its end; meanwhile b3 borrows n1g0."""
    made = world(
        "pool t 3\na 0 of t\nb 0 of t\nc 1 of t\nb runs 1 on n1g0 minutes 1 ran 0\nb runs 1 on n1g2 minutes 200 ran 0\n"
        "a queues 2",
        preemption=PROTECTED,
    )
    made.tick()
    before = holder(made)
    made.submit("c", 1000, time_limit_s=600)
    assert started(made) == ["c1 within_guarantee"]
    assert holder(made)[1] > before[1] + 500_000
    made.end("b1")
    made.submit("b", 1000, time_limit_s=6000)
    assert started(made) == ["b3 borrows_reserved_devices"]


def _running(made: World) -> list[Job]:
    return [job for job in made.jobs.values() if job.state == "running"]


# R28
def test_of_two_recorded_reservations_the_newer_one_is_dropped() -> None:
    made = world("pool t 1\na 0 of t\nb 0 of t\na runs 1 on n1g0 ran 0\nb queues 1\nb queues 1", preemption=PROTECTED)
    made.tick()
    (first,) = made.backfill
    made.reserved["b2"] = dc.replace(first, workload="b2", reserved_at=first.reserved_at + 1)
    made.tick()
    assert first.workload == "b1"
    assert made.backfill == [first]


# R29
def test_a_reservation_does_not_pass_to_a_job_behind_one_that_is_still_to_be_served() -> None:
    text = "pool t 4\nb 0 of t\nc 1 of t\nb queues 1\nb queues 2\nb queues 2 priority 70\nb queues 0.5\n"
    made = world(text + "c queues 1\nc queues 1\nc queues 1")
    made.settle()
    assert holder(made)[0] == "c3"
    made.project("b", "t", training_milli=3000)  # the past use of c is larger from now on
    made.tick()
    assert made.paused() == ["b1", "b4"], "b3 has higher priority than b2 and claims its devices"


CIRCLE = """
pool t 4
a 1 of t
b 1 of t
c 0 of t, weight 0
a runs 1 on n1g0 ran 0 priority 60
b runs 0.75 on n1g1 by ann ran 0 priority 60
b runs 0.25 on n1g1 by bob ran 0 priority 60
c runs 2 of 1 ran 0
a queues 1
"""
"""Nothing may be paused, and one more GPU is within the fair shares of a and of b."""


# R28
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "later",
    [
        pytest.param("a queues 2 priority 70\nb queues 1\nb queues 2 priority 70", id="two jobs of each"),
        pytest.param(
            "a queues 2 priority 70\nb queues 1 by ann\nb queues 0.5 by bob\nb queues 0.25 by carol\n"
            "b queues 2 by dan priority 70",
            id="several small ones",
        ),
    ],
)
def test_the_reservation_stays_where_small_and_large_jobs_precede_each_other(later: str) -> None:
    """A small job within its fair share is let in where another project's large one has the reservation (R32).

    A large one of higher priority precedes the small ones of its own project (R23).
    """
    made = world(CIRCLE, preemption=PROTECTED)
    made.tick()
    add(made, later)
    held = list[tuple[str, int]]()
    for _ in range(8):
        made.tick()
        held.append(holder(made))
    assert held == held[:1] * 8


def test_notebook_quota_beyond_a_slice_that_waits_does_not_end_a_reservation() -> None:
    """The slice takes a part of c's reservation, so that the rest of the quota needs no other device."""
    made = world(
        """
        pool t 2
        a 0 of t, notebooks 0.875
        b 1 of t
        c 0 of t
        b runs 1 on n1g0 lent
        b runs 1 on n1g1
        """
    )
    made.drain_ticks = 3
    made.submit("c", 250)
    made.submit("b", 500)
    made.submit("b", 1000)
    made.tick()
    made.ask("a", 250)
    made.tick()
    assert holder(made)[0] == "b4"
    made.end("b2")
    made.ask("a", 125)
    assert started(made) == ["b4 idle_surplus"]
