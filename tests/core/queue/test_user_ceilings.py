"""The ceiling for each user: a user of a project or department has at most so much, however idle the pool is."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.api.state.quota_states import shares_of
from jupyter_gpu_quota.core.model import Placement, Reservation
from jupyter_gpu_quota.core.plan import Reserve
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.promises import check_plan
from tests.core.world import world


@pytest.mark.parametrize(
    ("text", "picture"),
    [
        # R12
        pytest.param("a queues 3 of 1 by ann", "a 2", id="one user's jobs stay below the ceiling"),
        pytest.param("a queues 2 of 1 by ann\na queues 2 of 1 by bob", "a 4", id="another user has a ceiling too"),
        pytest.param("a queues 1 of 2 by ann\na queues 1 of 0.001 by ann", "a 2", id="one milli more waits"),
        pytest.param("a queues 1 of 3 by ann\na queues 1 of 1 by ann", "a 1", id="above it alone it never starts"),
    ],
)  # fmt: skip
def test_a_user_starts_jobs_up_to_the_ceiling(text: str, picture: str) -> None:
    made = world(f"pool t 4\na 4 of t, limit per user 2\n{text}")
    made.settle()
    assert made.picture() == picture


def test_a_job_above_its_users_ceiling_does_not_block_another_user() -> None:
    made = world("pool t 4\na 4 of t, limit per user 1\na queues 3 of 1 by ann priority 60\na queues 1 of 1 by bob")
    made.tick()
    assert sorted(made.owned) == ["a1", "a4"]


def test_the_reason_is_the_ceiling() -> None:
    made = world("pool t 4\na 4 of t, limit per user 1\na queues 2 of 1 by ann")
    made.settle()
    assert made.decide().waits["a2"].code == "above_user_ceiling"


# R17
def test_jobs_above_the_ceiling_are_no_demand() -> None:
    made = world("pool t 4\na 0 of t, limit per user 1\nb 0 of t\na queues 4 of 1 by ann\nb queues 4 of 1")
    made.settle()
    assert made.picture() == "a 1 / b 3"


def test_demand_of_non_preemptible_jobs_is_bounded_by_the_quota_too() -> None:
    """ann may have 1.5 and bob queues 1; of 1 that may not be preempted, by bob and carl, the quota admits 0.5."""
    made = world(
        "pool t 4\na 0.5 of t, limit per user 1.5\nb 0 of t, weight 0\na queues 2 of 1 by ann\na queues 1 by bob\n"
        "a queues 0.5 by bob fixed\na queues 0.5 by carl fixed\nb queues 4 of 1"
    )
    assert shares_of(made.snapshot(), made.policy).projects["a", "t"].fair_milli == 3000


def test_a_job_behind_a_ceiling_starts_when_a_reservation_under_it_is_taken_over() -> None:
    """a takes over the reservation of c1 within its guarantee, and c2 of the same user starts at once."""
    made = world(
        "pool t 2\na 1 of t\nc 0 of t, limit per user 1\nc queues 1 by w\nc queues 0.6 by w\n"
        "c runs 0.4 by x on n1g1\na queues 0.7"
    )
    where = (Placement(rank=0, device="n1g0", gpu_milli=1000, memory_mib=16001),)
    made.reserved["c1"] = Reservation(workload="c1", placements=where, reserved_at=made.now)
    made.tick()
    assert {"a1", "c2"} <= made.owned.keys()


# R7
@pytest.mark.parametrize(
    ("asked", "booked"),
    [pytest.param(250, True, id="exactly at it is admitted"), pytest.param(251, False, id="one milli more is not")],
)
def test_a_user_books_slices_up_to_the_ceiling(asked: int, booked: bool) -> None:
    made = world("pool t 2\na 0 of t, notebooks 2, notebooks per user 0.5\na notebook 0.25 by ann")
    made.settle()
    made.ask("a", asked, user="ann")
    made.ask("a", 500, user="bob")
    made.settle()
    assert ("nb-a2" in made.owned, "nb-a3" in made.owned) == (booked, True)


@pytest.mark.parametrize(
    ("lines", "picture"),
    [
        pytest.param(
            "a queues 2 of 1 by ann\nb queues 2 of 1 by ann\nb queues 1 of 1 by bob",
            "a 1 / b 1",
            id="one user's jobs in both projects stay below it, and another user's start",
        ),
        pytest.param(
            "a queues 1 of 0.5 by ann\nb queues 1 of 0.5 by ann", "a 0.5 / b 0.5", id="exactly at it is admitted"
        ),
        pytest.param("a queues 1 of 0.5 by ann\nb queues 1 of 0.501 by ann", "a 0.5 / b 0", id="one milli more waits"),
        pytest.param("a queues 1 of 2 by ann", "a 0 / b 0", id="above it alone it never starts"),
        pytest.param(
            "a runs 1 by ann\nb queues 1 by ann priority 70", "a 1 / b 0", id="no job is paused for room under it"
        ),
    ],
)
def test_the_ceiling_of_a_department_covers_all_its_projects(lines: str, picture: str) -> None:
    made = world("pool t 4\ndepartment D 2 of t, limit per user 1\na 1 of t in D\nb 1 of t in D\n" + lines)
    made.settle()
    assert made.picture() == picture and not made.paused()


def test_the_reason_names_the_department_that_has_the_ceiling() -> None:
    made = world(
        "pool t 4\ndepartment D 2 of t, limit per user 1\na 1 of t in D\nb 1 of t in D\n"
        "a runs 1 by ann\nb queues 0.5 by ann\nb queues 2 by ann"
    )
    waits = made.decide().waits
    assert {waits["b1"].code, waits["b2"].code} == {"above_user_ceiling"}
    assert sentence(waits["b1"]).startswith(
        "ann asked for 0.5 GPU and uses 1; the ceiling for each user of department D is 1."
    )


def test_a_job_that_alone_exceeds_the_ceiling_has_no_estimate() -> None:
    """The user has 1 of 1 in use; 2 would not start once something of it is freed."""
    made = world("pool t 4\na 4 of t, limit per user 1\na runs 1 by ann\na queues 2 by ann\na queues 1 by ann")
    waits = made.decide().waits
    assert sentence(waits["a2"]) == (
        "ann asked for 2 GPU; the ceiling for each user of a is 1. It cannot start until that changes, however many "
        "GPUs are free: ask for less, or for a higher ceiling."
    )
    assert "used_milli" not in figures_of(waits["a2"]), "ann uses 1, which does not matter here, and not 0"
    assert "It starts when enough of what ann uses is freed." in sentence(waits["a3"])


def test_jobs_above_the_ceiling_of_a_department_are_no_demand() -> None:
    made = world(
        "pool t 4\ndepartment D 0 of t, limit per user 1\ndepartment E 0 of t\na 0 of t in D\nb 0 of t in E\n"
        "a queues 4 of 1 by ann\nb queues 4 of 1"
    )
    made.settle()
    assert made.picture() == "a 1 / b 3"


@pytest.mark.parametrize(
    ("asked", "booked"),
    [pytest.param(250, True, id="exactly at it"), pytest.param(251, False, id="one milli more")],
)
def test_the_notebook_ceiling_of_a_department_covers_all_its_projects(asked: int, booked: bool) -> None:
    made = world(
        "pool t 2\ndepartment D 0 of t, notebooks 2, notebooks per user 0.5\na 0 of t in D, notebooks 1\n"
        "b 0 of t in D, notebooks 1\na notebook 0.25 by ann"
    )
    made.settle()
    made.ask("b", asked, user="ann")
    made.settle()
    assert ("nb-b1" in made.owned) == booked


def test_what_a_claim_freed_is_offered_to_no_job_whose_user_has_no_room_any_more() -> None:
    """x1 frees a GPU more than it needs. d3 would be offered half of it, but d2, which goes first, is ann's, too."""
    made = world(
        """
        pool t 4
        d 0 of t, limit per user 1
        x 0 of t
        y 0 of t
        z 0 of t
        y runs 2 on n1g0,n1g1
        y runs 0.5 on n1g2
        y runs 0.5 on n1g2
        y runs 0.5 on n1g3
        d runs 0.5 on n1g3
        x queues 1
        d queues 0.5 by ann
        d queues 0.75 by ann
        z queues 1
        """
    )
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    reserved = {one.workload for one in decision.plan.actions if isinstance(one, Reserve)}
    assert reserved == {"x1", "d2", "z1"}


# R12
def test_a_claim_does_not_start_above_a_lowered_ceiling() -> None:
    made = world("pool t 4\na 4 of t, limit per user 2\nb 0 of t\nb runs 4 of 1\na queues 1 of 2 by ann")
    made.tick()
    assert "a1" in made.reserved
    made.project("a", "t", training_milli=4000, user_jobs_milli=1000)
    made.settle()
    assert "a1" not in made.owned and made.decide().waits["a1"].code == "above_user_ceiling"
    assert made.picture() == "a 0 / b 4"
