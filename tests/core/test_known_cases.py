"""The known cases of docs/scheduling.md, each a world as text and its outcome, and the demo of Bob and Patty."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import JobState, PreemptionPolicy
from jupyter_gpu_quota.core.plan import Pause, Reserve, Resume, Start
from jupyter_gpu_quota.core.quota.fair_share import Owner, divide
from jupyter_gpu_quota.core.quota.fit import check_quotas
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.messages.quota.sums import refusal_sentence
from tests.core.world import GENTLE, milli, placed, world


@pytest.mark.parametrize(
    ("text", "picture", "paused"),
    [
        # R37
        pytest.param(
            """
            pool t 20
            a 10 of t
            b 10 of t
            a runs 6 of 1
            b runs 13 of 1
            a queues 8
            """,
            "a 6 / b 13",
            [],
            id="an older request of 8 above the fair share of 10 pauses no job",
        ),
        pytest.param(
            """
            pool t 6
            a 0 of t
            b 0 of t
            c 0 of t
            a runs 3 of 1
            b runs 1 of 1
            c runs 2 of 1
            b queues 1
            """,
            "a 2 / b 2 / c 2",
            ["a3"],
            id="three equal projects come to 2 / 2 / 2 with one pause",
        ),
        pytest.param(
            """
            pool t 1x4 X
            pool t 1x3 Y
            e 3 of t
            h 0 of t, priority 60
            e runs 3 model X on n1g0,n1g1,n1g2
            e runs 1 on n1g3
            h queues 4
            """,
            "e 4 / h 0",
            [],
            id="a claim for surplus that would pause both jobs of a guarantee is refused",
        ),
        # R38
        pytest.param(
            """
            pool t 2
            p 1 of t
            q 1 of t
            p runs 2
            q queues 1
            """,
            "p 0 / q 1",
            ["p1"],
            id="an indivisible job over quota is paused for a guarantee",
        ),
        # R18
        pytest.param(
            """
            pool t 8
            p 1 of t, weight 2
            q 1 of t
            r 0 of t, priority 60
            p runs 5 of 1
            q runs 3 of 1
            r queues 3 of 1
            """,
            "p 3 / q 2 / r 3",
            ["p4", "p5", "q3"],
            id="a project of higher priority gets its surplus in one step",
        ),
        pytest.param(
            """
            pool t 4
            a 2 of t
            b 2 of t
            a runs 1
            b runs 2 of 1
            a queues 3
            a queues 1
            """,
            "a 2 / b 2",
            [],
            id="an older 3-GPU job does not block a 1-GPU job that fits the guarantee",
        ),
        pytest.param(
            """
            pool t 4
            a 1 of t, weight 0
            a queues 4 of 1
            """,
            "a 4",
            [],
            id="a project of quota 1 and weight 0 alone on 4 GPUs runs all 4",
        ),
        pytest.param(
            """
            pool t 8
            a 0 of t
            b 0 of t
            c 0 of t
            c queues 100
            a queues 8 of 1
            b queues 8 of 1
            """,
            "a 4 / b 4 / c 0",
            [],
            id="a job of 100 GPUs in a pool of 8 wants nothing and the others share 4 / 4",
        ),
        pytest.param(
            """
            pool t 1
            a 0 of t
            a queues 4 of 0.333
            """,
            "a 0.999",
            [],
            id="1/3 fits a device three times",
        ),
        pytest.param(
            """
            pool t 1
            a 0 of t
            a queues 3 of 0.334
            """,
            "a 0.668",
            [],
            id="0.334 fits a device twice and the third is refused there",
        ),
        # R1, R8
        pytest.param(
            """
            pool t 1
            a 0.3 of t
            a queues 0.1 fixed
            a queues 0.2 fixed
            """,
            "a 0.3",
            [],
            id="0.1 and 0.2 reach a quota of 0.3",
        ),
        # R8
        pytest.param(
            """
            pool t 1
            a 0.3 of t
            a queues 0.1 fixed
            a queues 0.201 fixed
            """,
            "a 0.1",
            [],
            id="one milli above the training quota is not admitted, whatever is idle",
        ),
        pytest.param(
            """
            pool t 3
            a 0.5 of t
            d 1.85 of t, priority 60
            d runs 0.5 fixed on n1g0
            d runs 0.75 fixed on n1g1
            d runs 0.6 fixed on n1g2
            d runs 0.5 on n1g0
            a queues 0.5
            a queues 0.25
            """,
            "a 0.75 / d 1.85",
            ["d4"],
            id="a preemptor within its guarantee is not paused by its victims because of a smaller job on surplus",
        ),
        # R45
        pytest.param(
            """
            pool t 3
            a 0.5 of t
            d 1.85 of t, priority 60
            d runs 0.5 fixed on n1g0
            d runs 0.75 fixed on n1g1
            d runs 0.6 fixed on n1g2
            a runs 0.5 on n1g0
            a runs 0.25 on n1g1
            d queues 0.5
            """,
            "a 0.75 / d 1.85",
            [],
            id="a job that fills its quota is not paused because a smaller one runs beside it on surplus",
        ),
        # R46
        pytest.param(
            """
            pool t 4
            a 0.5 of t
            d 2.75 of t, priority 60
            d runs 0.5 fixed on n1g0
            d runs 0.75 fixed on n1g1
            d runs 0.75 fixed on n1g2
            d runs 0.75 fixed on n1g3
            d runs 0.5 on n1g0
            a queues 0.5
            a queues 3 of 0.25
            """,
            "a 1.25 / d 2.75",
            ["d5"],
            id="a victim of a claim within guarantee does not pause it when its project has started more on surplus",
        ),
        pytest.param(
            """
            pool t 5
            a 3 of t
            d 0 of t, priority 60
            a runs 2 of 2
            d queues 2
            """,
            "a 2 / d 2",
            ["a2"],
            id="of two equal jobs that together exceed the quota one is paused for a fair share",
        ),
        pytest.param(
            """
            pool t 2
            a 1 of t
            d 0 of t, priority 60
            a runs 2
            d queues 2 of 1
            """,
            "a 0 / d 2",
            ["a1"],
            id="a job larger than the quota is paused for a fair share",
        ),
        pytest.param(
            """
            pool t 2
            a 1 of t
            d 0 of t, priority 60
            n 0 of t, notebooks 0.5
            a runs 0.3 on n1g0
            a runs 0.75 on n1g1 lent
            d runs 0.7 on n1g0
            d queues 0.3
            """,
            "a 0.3 / d 1 / n 0",
            ["a2"],
            id="a borrower is paused for a fair share, whatever is left of its project's quota",
        ),
    ],
)
def test_known_cases_reach_the_documented_state(text: str, picture: str, paused: list[str]) -> None:
    made = world(text)
    made.settle()
    assert made.picture() == picture
    assert made.paused() == paused


def test_weights_6_6_and_2_on_7990_and_on_7991_milli_no_share_falls_by_more_than_one() -> None:
    weights = {"a": 6, "b": 6, "c": 2}
    owners = [Owner(name=name, quota_milli=0, wanted_milli=9000, weight=weight) for name, weight in weights.items()]
    shares = [[share.fair_milli for share in divide(owners, amount).values()] for amount in (7990, 7991)]
    assert shares == [[3424, 3424, 1142], [3425, 3425, 1141]]


# R35
def test_p4_claims_within_two_departments_and_pauses_p3_never_p1() -> None:
    made = world(
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
        """
    )
    made.settle()
    assert made.picture() == "p1 2 / p2 0 / p3 1 / p4 1"


def test_a_window_that_closes_inside_a_grace_period_does_not_change_the_pause() -> None:
    made = world("pool t 2\na 0 of t\nb 1 of t\nb runs 2 of 1\na queues 1\nwindow w from 0 to 3: a 1 of t")
    made.drain_ticks = 4
    made.settle()
    assert (made.picture(), len(made.paused())) == ("a 1 / b 1", 1)


# R77
def test_work_that_never_fits_is_refused_at_once() -> None:
    made = world("pool t 8\nc 0 of t\nc queues 100")
    made.tick()
    assert made.decide().waits["c1"].code == "never_fits"


def test_the_reason_of_the_refused_older_request_is_above_fair_share() -> None:
    made = world("pool t 20\na 10 of t\nb 10 of t\na runs 6 of 1\nb runs 13 of 1\na queues 8")
    made.settle()
    reason = made.decide().waits["a7"]
    assert (reason.code, figures_of(reason)["fair_milli"]) == ("above_fair_share", 10_000)


def test_a_second_notebook_joins_the_first_ones_device_and_the_guarantee_holds() -> None:
    made = world("pool t 2\na 0 of t, notebooks 0.125\nb 0 of t, notebooks 0.125\nc 1 of t\na notebook 0.125")
    first = placed(made.tick(), "nb-a1")
    made.ask("b", 125)
    second = placed(made.tick(), "nb-b1")
    assert [part.device for part in second] == [part.device for part in first]
    made.submit("c", 1000)
    assert placed(made.tick(), "c1")


# R2
def test_a_guarantee_that_may_be_run_as_two_slices_leaves_no_room_for_notebooks_in_that_shape() -> None:
    made = world("pool t 2\na 1.2 of t\nb 0 of t, notebooks 0.8")
    (refusal,) = check_quotas(made.policy, made.devices.values())
    assert refusal.code == "shape"
    assert "0.8 for notebooks of b" in refusal_sentence(refusal)
    assert "need 3 devices and the pool has 2" in refusal_sentence(refusal)


# R53, R54
def test_one_job_and_a_stream_of_small_claims_is_paused_k_times_and_then_safe() -> None:
    rules = dc.replace(GENTLE, max_pauses=2)
    made = world("pool t 2\nbig 0 of t\nsmall 1 of t\nbig queues 2", preemption=rules)
    for _ in range(12):
        made.settle()
        claim = made.submit("small", 1000)
        made.settle()
        made.cancel(claim.id)
    made.settle()
    assert len(made.jobs["big1"].paused_at) == 2
    assert made.decide().waits["big1"].code == "pauses_used_up"
    made.now += rules.per_s * 1000
    made.settle()
    assert made.jobs["big1"].state is JobState.RUNNING


# R61
def test_eight_slices_lent_to_one_whole_gpu_job_return_with_one_pause() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t\nb queues 1")
    made.settle()
    assert made.jobs["b1"].borrower
    made.ask("a", 125)
    (pause, reserve) = made.tick().actions
    assert isinstance(pause, Pause)
    assert isinstance(reserve, Reserve)
    assert (pause.grace_s, pause.reason.code) == (GENTLE.lent_grace_s, "borrower_returns")
    made.settle()
    assert (made.picture(), len(made.jobs["b1"].paused_at)) == ("a 0 / b 0", 1)


def test_a_device_is_not_lent_again_as_a_whole_before_all_its_slices_are_idle() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t\nb queues 1\na notebook 0.125")
    for _ in range(5):
        made.tick()
        assert not made.jobs["b1"].borrower
    made.close("nb-a1")
    made.settle()
    assert (made.jobs["b1"].borrower, made.picture()) == (True, "a 0 / b 1")


def test_two_projects_with_only_two_gpu_jobs_that_keep_coming_run_in_turn() -> None:
    made = world("pool t 2\na 1 of t\nb 1 of t")
    order = []
    for at in range(8):
        made.now += 1000
        made.submit("ab"[at % 2], 2000)
    for _ in range(8):
        made.settle()
        (running,) = [job for job in made.jobs.values() if job.state is JobState.RUNNING]
        order.append(running.project)
        made.end(running.id)
    assert order == ["a", "b"] * 4


def test_a_quota_lowered_during_a_preemption_pauses_no_job_twice() -> None:
    made = world("pool t 4\na 2 of t\nb 2 of t\na runs 4 of 1\nb queues 1")
    made.drain_ticks = 3
    made.tick()
    made.project("a", "t", training_milli=1000)
    made.settle()
    assert made.picture() == "a 3 / b 1"
    assert [len(job.paused_at) for job in made.jobs.values() if job.paused_at] == [1]


class TestBobAndPatty:
    """Two projects, each guaranteed 2 of 4 GPUs: the scenario of the demo."""

    def world(self):  # type: ignore[no-untyped-def]
        made = world("pool train 4\nbob 2 of train\npatty 2 of train\nbob queues 6 of 1")
        made.tick()
        return made

    def test_bobs_jobs_run_on_all_four_gpus(self) -> None:
        assert self.world().picture() == "bob 4 / patty 0"

    def test_pattys_claim_pauses_two_of_bobs_and_no_more(self) -> None:
        made = self.world()
        made.tick()
        made.submit("patty", 1000)
        made.submit("patty", 1000)
        actions = made.tick().actions
        assert [type(action) for action in actions] == [Pause, Reserve, Pause, Reserve]
        assert {action.preemptor for action in actions if isinstance(action, Pause)} == {"patty1", "patty2"}

    def test_no_job_is_paused_again_while_bobs_jobs_stop(self) -> None:
        made = self.world()
        made.tick()
        made.drain_ticks = 4
        made.submit("patty", 1000)
        made.submit("patty", 1000)
        made.tick()
        assert [made.tick().actions for _ in range(3)] == [(), (), ()]
        assert {type(action) for action in made.tick().actions} == {Start}
        assert made.picture() == "bob 2 / patty 2"

    def test_when_pattys_jobs_finish_bobs_paused_jobs_resume_before_his_newer_ones(self) -> None:
        made = self.world()
        made.submit("patty", 1000)
        made.submit("patty", 1000)
        made.settle()
        paused = made.paused()
        made.end("patty1")
        made.end("patty2")
        actions = made.tick().actions
        assert sorted(action.workload for action in actions) == paused
        assert all(isinstance(action, Resume) and action.attempt == 2 for action in actions)

    def test_carols_notebook_starts_at_once_beside_full_training(self) -> None:
        made = self.world()
        made.pool("build", 1, 1)
        made.project("carol", "build", notebook_milli=milli("0.125"))
        made.ask("carol", 125, pool="build")
        assert placed(made.tick(), "nb-carol1")


def test_a_recorded_plan_is_reproduced() -> None:
    made = world(
        "pool t 4\na 2 of t\nb 2 of t\na runs 4 of 1\nb queues 2 of 1", preemption=PreemptionPolicy(min_runtime_s=0)
    )
    assert decide(made.snapshot(), made.policy) == decide(made.snapshot(), made.policy)
