"""Departments: their amounts are divided among their projects, and every rule holds at both levels."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.api.state.quota_states import shares_of
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Health, Placement, Reservation
from jupyter_gpu_quota.core.plan import Pause, Reserve, Start
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.equivalence import check_departments_that_change_nothing
from tests.core.promises import check_plan
from tests.core.world import world


def owners(names: list[str]) -> list[str]:
    """The projects of jobs whose names are a letter, a digit and a number."""
    return [name[:2] for name in names]


@pytest.mark.parametrize(
    ("text", "picture", "paused"),
    [
        # R35
        pytest.param(
            """
            pool t 4
            department D1 2 of t
            department D2 2 of t
            p1 1 of t in D1
            p2 1 of t in D1
            p3 1 of t in D2
            p4 1 of t in D2
            p1 runs 2 of 1
            p3 runs 2 of 1
            p4 queues 1
            """,
            "p1 2 / p2 0 / p3 1 / p4 1",
            ["p3"],
            id="a claim takes from the sibling that is over quota and never from another department at its own",
        ),
        pytest.param(
            """
            pool t 4
            department D1 0 of t
            p1 0 of t in D1
            p2 0 of t in D1
            p1 runs 4 of 1
            p2 queues 4 of 1
            """,
            "p1 2 / p2 2",
            ["p1", "p1"],
            id="siblings share what their department may use",
        ),
        pytest.param(
            """
            pool t 6
            department D1 0 of t
            department D2 0 of t
            department D3 0 of t
            p1 0 of t in D1
            p2 0 of t in D2
            p3 0 of t in D3
            p1 runs 3 of 1
            p2 runs 1 of 1
            p3 runs 2 of 1
            p2 queues 1
            """,
            "p1 2 / p2 2 / p3 2",
            ["p1"],
            id="three equal departments come to 2 / 2 / 2 with one pause",
        ),
        # R15
        pytest.param(
            """
            pool t 8
            department D1 0 of t
            department D2 0 of t
            p1 0 of t in D1
            p2 0 of t in D1
            p3 0 of t in D2
            p3 runs 8 of 1
            p1 queues 3 of 1
            p2 queues 3 of 1
            """,
            "p1 2 / p2 2 / p3 4",
            ["p3", "p3", "p3", "p3"],
            id="the pool is shared between departments and not between projects",
        ),
        # R36
        pytest.param(
            """
            pool t 4
            department D1 2 of t
            department D2 2 of t
            p1 2 of t in D1
            p2 0 of t in D1
            p3 2 of t in D2
            p2 runs 2 of 1
            p3 runs 2 of 1
            p1 queues 2 of 1
            """,
            "p1 2 / p2 0 / p3 2",
            ["p2", "p2"],
            id="a claim within guarantee in a full department reclaims the surplus of a sibling",
        ),
        # R36
        pytest.param(
            """
            pool t 4
            department D1 2 of t, limit 2
            department D2 2 of t
            p1 1 of t in D1
            p2 1 of t in D1
            p3 2 of t in D2
            p2 runs 2 of 1
            p1 queues 1
            """,
            "p1 1 / p2 1 / p3 0",
            ["p2"],
            id="at its department's limit a guarantee takes from a sibling though devices are free",
        ),
        # R12
        pytest.param(
            """
            pool t 4
            department D1 1 of t, limit 2
            department D2 2 of t
            p1 1 of t in D1
            p2 0 of t in D1
            p3 2 of t in D2
            p2 queues 3 of 1
            """,
            "p1 0 / p2 2 / p3 0",
            [],
            id="a department's limit is a ceiling whatever is idle",
        ),
        pytest.param(
            """
            pool t 4
            department D1 1 of t
            department D2 2 of t
            p1 1 of t in D1
            p2 0 of t in D1
            p3 2 of t in D2
            p2 queues 1 fixed
            """,
            "p1 0 / p2 0 / p3 0",
            [],
            id="non-preemptible work stays within its project's quota though its department has more",
        ),
        pytest.param(
            """
            pool t 4
            department D1 4 of t
            department D2 0 of t
            p1 0 of t in D1
            p2 0 of t in D2
            p2 runs 4 of 1
            p1 queues 2 of 1
            """,
            "p1 2 / p2 2",
            ["p2", "p2"],
            id="any project of a department may use its department's guarantee",
        ),
        pytest.param(
            """
            pool t 1x4 X
            pool t 1x3 Y
            department E 3 of t
            department H 0 of t, priority 60
            p1 3 of t in E
            p2 0 of t in H
            p1 runs 3 model X on n1g0,n1g1,n1g2
            p1 runs 1 on n1g3
            p2 queues 4
            """,
            "p1 4 / p2 0",
            [],
            id="a department that would reclaim what it lost below its quota loses nothing",
        ),
        pytest.param(
            """
            pool t 3
            department D1 0 of t, weight 0
            department D2 0 of t
            p1 0 of t in D1, weight 3
            p2 0 of t in D2
            p1 runs 2 of 1
            p2 runs 1 of 1
            p2 queues 2 of 1
            """,
            "p1 0 / p2 3",
            ["p1", "p1"],
            id="a department of weight 0 gets only surplus that no other wants",
        ),
        pytest.param(
            """
            pool t 2
            department D1 0.75 of t
            department D2 1 of t, notebooks 0.25, weight 0
            p1 0.75 of t in D1
            p2 1 of t in D2, notebooks 0.25
            p3 0 of t in D2, limit 1, priority 60, weight 3
            p3 runs 1 lent
            p1 runs 1
            p2 queues 1
            """,
            "p1 1 / p2 1 / p3 0",
            ["p1", "p3"],
            id="a claim within guarantee in a full department pauses a sibling on a device that it cannot use",
        ),
        pytest.param(
            """
            pool t 6
            department D1 0 of t
            department D2 2 of t, weight 2, priority 60
            p1 0 of t in D1
            p2 1 of t in D2
            p3 0 of t in D2
            p1 runs 4
            p3 runs 1 ranks 2
            p2 queues 2 priority 30
            p2 queues 0.5
            p2 queues 1 priority 70
            """,
            "p1 0 / p2 3.5 / p3 2",
            ["p1"],
            id="a sibling continues where the victims of another department already make room for all claims",
        ),
        pytest.param(
            """
            pool t 3
            department D1 1 of t
            department D2 2 of t
            p1 0 of t in D1
            p2 1 of t in D1
            p3 2 of t in D2
            p1 runs 0.1 on n1g0
            p3 runs 0.8 on n1g0
            p2 runs 0.35 on n1g1
            p3 runs 0.6 on n1g1
            p3 runs 1 on n1g2
            p2 queues 0.6
            """,
            "p1 0.1 / p2 0.95 / p3 1.4",
            ["p1", "p3"],
            id="a sibling whose loss entitles the claim outside its department is paused though its room is not needed",
        ),
    ],
)
def test_departments_and_their_projects_end_with_their_shares(text: str, picture: str, paused: list[str]) -> None:
    made = world(text)
    made.settle()
    assert made.picture() == picture
    assert owners(made.paused()) == paused


def test_a_department_at_its_quota_loses_nothing_though_one_of_its_projects_is_over_quota() -> None:
    """The claim needs both devices of model X; p1 has quota 0 and uses one, and D1 uses its 2 and no more."""
    made = world(
        """
        pool t 2 X
        pool t 2 Y
        department D1 2 of t
        department D2 2 of t
        p1 0 of t in D1
        p2 2 of t in D1
        p3 2 of t in D2
        p1 runs 1 on n1g0 model X
        p2 runs 1 on n2g0 fixed
        p3 queues 2 model X
        """
    )
    made.settle()
    assert (made.picture(), made.paused()) == ("p1 1 / p2 1 / p3 0", [])


# R5
def test_a_project_is_guaranteed_no_more_than_what_its_department_has_in_force() -> None:
    """x wants 1 of its 2, so that y's reduced guarantee may take what x runs above that, in a department or not."""
    made = world("pool t 3\nx 2 of t\ny 2 of t\nx runs 1 ranks 1-2 held 2 on n1g0,n1g1\ny queues 2 of 1")
    made.health("n1g2", Health.UNHEALTHY)
    decision = made.decide()
    assert [one.workload for one in decision.plan.actions if isinstance(one, Pause)] == ["x1"]
    check_departments_that_change_nothing(made.snapshot(), made.policy, decision)


# R36
def test_the_loss_of_siblings_is_no_gain_of_the_department() -> None:
    """p1 claims 2 within guarantee; its department, over quota by p2, may take one from D2 once p2 has lost one."""
    made = world(
        """
        pool t 4
        department D1 2 of t
        department D2 1 of t
        p1 2 of t in D1
        p2 0 of t in D1
        p3 1 of t in D2
        p2 runs 1 on n1g0
        p3 runs 3 of 1
        p1 queues 2
        """
    )
    pauses = [action for action in made.tick().actions if isinstance(action, Pause)]
    assert sorted(owners([action.workload for action in pauses])) == ["p2", "p3"]
    made.settle()
    assert made.picture() == "p1 2 / p2 0 / p3 2"


def test_a_reservation_that_is_taken_over_counts_as_the_loss_of_a_sibling() -> None:
    """Without the 0.6 reserved for p2, D1 is within its guarantee with p1's claim, and D2 is above its own."""
    made = world(
        """
        pool t 2
        department D1 1 of t
        department D2 1 of t
        p1 1 of t in D1
        p2 0 of t in D1
        p3 1 of t in D2
        p3 runs 0.4 on n1g0
        p3 runs 1 on n1g1
        p2 queues 0.6
        p1 queues 1
        """
    )
    where = (Placement(rank=0, device="n1g0", gpu_milli=600, memory_mib=9600),)
    made.reserved["p21"] = Reservation(workload="p21", placements=where, reserved_at=made.now)
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    taken = {(action.workload, action.reason.code) for action in decision.plan.actions}
    assert {("p21", "drain_taken_over"), ("p31", "reclaimed"), ("p11", "waits_for_drain")} <= taken


def test_a_claim_entitled_by_the_loss_of_a_sibling_is_placed_on_a_free_device() -> None:
    """D2 has 0.45 left under its limit; once p2 has lost 0.1, p1 fits on the free device, and p3 loses nothing."""
    made = world(
        """
        pool t 5
        department D1 0 of t
        department D2 2 of t, limit 2
        p1 1.5 of t in D2
        p2 0.5 of t in D2
        p3 0 of t in D1
        p1 runs 1 on n1g0
        p2 runs 0.45 fixed on n1g1
        p2 runs 0.1 on n1g2
        p3 runs 0.5 on n1g1
        p3 runs 0.6 on n1g2
        p3 runs 2 of 0.5 on n1g3
        p1 queues 0.5
        """
    )
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    assert [action.workload for action in decision.plan.actions] == ["p22", "p12"]
    (place,) = decision.plan.actions[-1].placements
    assert place.device == "n1g4"


# R17
def test_a_job_that_can_never_start_is_no_demand() -> None:
    made = world("pool t 8\na 0 of t\nb 0 of t\nc 0 of t\na queues 8 of 1\nb queues 8 of 1\nc queues 100")
    shares = shares_of(made.snapshot(), made.policy).projects
    assert [shares[name, "t"].fair_milli for name in ("a", "b", "c")] == [4000, 4000, 0]


# R17
def test_a_user_waiting_in_two_projects_of_a_department_reduces_neither_quota() -> None:
    """The demand of D1 is one GPU, the ceiling of its user; each of the two projects keeps its guarantee of one."""
    made = world(
        """
        pool t 2
        department D1 2 of t, limit per user 1
        department D2 0 of t
        p1 1 of t in D1
        p2 1 of t in D1
        p3 0 of t in D2
        p3 runs 2 of 1
        p1 queues 1 by w
        p2 queues 1 by w
        """
    )
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    taken = [(type(action), action.workload) for action in decision.plan.actions]
    assert taken == [(Pause, "p32"), (Reserve, "p11")]


# R26
@pytest.mark.parametrize("quota", [0, 1], ids=["which is above its quota with it alone", "which is not"])
def test_a_claim_within_the_quota_of_its_project_alone_takes_over_no_reservation_of_another_department(
    quota: int,
) -> None:
    """p1 claims 1 within its quota, which D1 uses by p2 already; D2, with the reservation of p3, is above its share."""
    made = world(
        f"""
        pool t 4
        department D1 1 of t
        department D2 1 of t
        p1 1 of t in D1
        p2 0 of t in D1
        p3 {quota} of t in D2
        p2 runs 1 on n1g0
        p3 runs 2 of 1
        p3 queues 1
        p1 queues 1
        """
    )
    where = (Placement(rank=0, device="n1g3", gpu_milli=1000, memory_mib=16001),)
    made.reserved["p33"] = Reservation(workload="p33", placements=where, reserved_at=made.now)
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    assert {action.workload: type(action) for action in decision.plan.actions} == {
        "p21": Pause,
        "p11": Reserve,
        "p33": Start,
    }


# R37
@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        pytest.param("0.5", True, id="exactly at it is admitted"),
        pytest.param("0.501", False, id="one milli more is not"),
    ],
)
def test_the_quota_of_a_department_bounds_its_non_preemptible_work(asked: str, runs: bool) -> None:
    """The projects' quotas come to more than their department's: an overcommitment that a window can lead to."""
    made = world(
        f"pool t 2\ndepartment D1 1 of t\np1 1 of t in D1\np2 1 of t in D1\np1 runs 0.5 fixed\np2 queues {asked} fixed"
    )
    made.settle()
    assert (made.running("p2") > 0) is runs


@pytest.mark.parametrize(
    ("asked", "booked"),
    [pytest.param(500, True, id="exactly at it is admitted"), pytest.param(501, False, id="one milli more is not")],
)
def test_the_notebook_quota_of_a_department_is_a_ceiling(asked: int, booked: bool) -> None:
    made = world(
        "pool t 2\ndepartment D1 0 of t, notebooks 1\np1 0 of t in D1, notebooks 1\np2 0 of t in D1, notebooks 1\n"
        "p1 notebook 0.5"
    )
    made.settle()
    made.ask("p2", asked)
    made.settle()
    assert ("nb-p21" in made.owned) is booked


def test_the_reason_of_a_job_at_its_departments_limit_has_the_figures_of_the_department() -> None:
    made = world(
        """
        pool t 4
        department D1 1 of t, limit 2
        department D2 2 of t
        p1 1 of t in D1
        p2 0 of t in D1
        p3 2 of t in D2
        p2 runs 2 of 1
        p2 queues 1
        """
    )
    assert (
        "p2 asked for 1 GPU; the limit of its department D1 is 2, of which 0 is kept for notebooks, and 2 is in use."
    ) in explanation_sentence(explain(made.snapshot(), made.policy, "p23"))
    assert sentence(reason_from(ReasonCode.ABOVE_LIMIT)) == (
        "Its project, or the department of its project, is at its limit."
    )


# R35
def test_a_department_does_not_bound_a_claim_that_moves_work_of_its_own_projects() -> None:
    """b3 uses more than b wants, so that the department of all uses more than its fair share; a moves only its own."""
    made = world(
        """
        pool t 2x4
        a 0.5 of t
        b 0 of t, weight 0
        c 0 of t
        b runs 1 on n1g3
        a runs 0.25 ranks 2-3 held 3 on n1g0,n1g0,n1g0
        c runs 0.3 on n1g1
        a runs 0.25 on n1g1
        a runs 0.6 on n2g0
        b runs 1 ranks 1-2 held 2 on n2g1,n2g2
        a queues 1
        a queues 0.6 ranks 2-3
        """
    )
    check_departments_that_change_nothing(made.snapshot(), made.policy, made.decide())


# R43, P6
def test_a_job_above_its_fair_share_makes_no_victim_in_a_department_that_is_above_its_quota() -> None:
    """What c1's victim leaves over is enough for a4, which needs no victim of its own project."""
    made = world(
        """
        pool t 2x4
        department d 2 of t
        a 1 of t in d, priority 60
        b 0 of t in d, weight 0
        c 1 of t in d
        a runs 3 on n1g0,n1g1,n1g2
        a runs 1 on n1g3 priority 30
        a runs 1 on n2g0 priority 30
        b runs 3 on n2g1,n2g2,n2g3
        c queues 1 ranks 2 priority 70
        a queues 1 fixed priority 70
        b queues 1
        """
    )
    paused = [one.workload for one in made.decide().plan.actions if isinstance(one, Pause)]
    assert paused == ["b1"]
