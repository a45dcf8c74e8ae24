"""Several claims of one plan shrink the same elastic job: it restarts once, with what they leave it."""

from __future__ import annotations

import dataclasses as dc
from collections import Counter

import pytest

from jupyter_gpu_quota.core.model import WHOLE_DEVICE, JobState
from jupyter_gpu_quota.core.plan import Pause, Reserve
from jupyter_gpu_quota.core.reasons import Reclaimed
from tests.core.promises import check_plan
from tests.core.world import world

POOL = "pool t 4\na 2 of t\nb 2 of t\ne 0 of t\ne runs 1 of 1 ranks 1-4 held 4\n"


# R51
@pytest.mark.parametrize(
    ("claims", "left"),
    [
        pytest.param("a queues 1 of 1", 3, id="one claim"),
        pytest.param("a queues 2 of 1", 2, id="two claims of a project"),
        pytest.param("a queues 1 of 1\nb queues 1 of 1", 2, id="two claims of two projects"),
        pytest.param("a queues 1 of 1\nb queues 2 of 1", 1, id="three claims"),
        pytest.param("a queues 1 of 2\nb queues 1 of 1", 1, id="a claim of two devices, and one of one"),
    ],
)
def test_an_elastic_job_restarts_once_with_the_ranks_that_all_claims_leave_it(claims: str, left: int) -> None:
    made = world(POOL + claims)
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    plan = decision.plan
    assert [one.workload for one in plan.actions if isinstance(one, Pause)] == ["e1"]
    (kept,) = [one for one in plan.actions if isinstance(one, Reserve) and one.workload == "e1"]
    assert len(kept.placements) == left
    made.settle()
    assert made.picture() == f"a {made.running('a') // 1000} / b {made.running('b') // 1000} / e {left}"
    assert all(job.state is JobState.RUNNING for job in made.jobs.values())


# R51
def test_the_minimum_of_a_job_that_is_shrunk_is_not_paused_in_the_same_plan() -> None:
    made = world(POOL + "a queues 1 of 2\nb queues 2 of 1")
    plan = made.decide().plan
    assert [one.workload for one in plan.actions if isinstance(one, Pause)] == ["e1"]
    (kept,) = [one for one in plan.actions if isinstance(one, Reserve) and one.workload == "e1"]
    assert len(kept.placements) == 1


# R45
@pytest.mark.parametrize(
    ("beside", "paused"),
    [
        pytest.param("ranks 1-2 held 2", [], id="an elastic job, which gives up a rank"),
        pytest.param("ranks 2", ["v1"], id="a job of two ranks"),
    ],
)
def test_a_job_is_not_paused_where_its_project_could_claim_with_what_its_elastic_job_gives_up(
    beside: str, paused: list[str]
) -> None:
    made = world(
        f"""
        pool t 12
        f 2 of t
        v 6 of t, weight 0
        p 0 of t
        f runs 2 of 1 fixed
        v runs 1 of 1 ranks 8
        v runs 1 of 1 {beside}
        v queues 1 of 1 ranks 5
        p queues 1 of 1 ranks 3
        """
    )
    plan = made.decide().plan
    assert [one.workload for one in plan.actions if isinstance(one, Pause)] == paused


# R51
@pytest.mark.parametrize("trouble", ["n2 cordoned", "n2g0 quarantined"])
def test_a_job_with_ranks_on_unavailable_devices_is_not_shrunk_to_the_others(trouble: str) -> None:
    """It would lose those ranks as well, which the claim does not need and its reason would not count."""
    made = world(
        f"""
        pool t 2x4
        a 1 of t
        b 3 of t
        b runs 1 of 1 ranks 1-8 held 8
        {trouble}
        a queues 1 of 1
        """
    )
    made.jobs["b1"] = dc.replace(made.jobs["b1"], cpu_milli=1000)
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    (paused,) = [one for one in decision.plan.actions if isinstance(one, Pause)]
    assert isinstance(paused.reason, Reclaimed) and paused.reason.used_milli == 8000
    made.settle()
    assert made.running("a") == 1000 and made.running("b") == (3000 if "cordoned" in trouble else 6000)


# R66
@pytest.mark.parametrize(
    ("limit", "code"),
    [
        pytest.param(3, "shrunk", id="it may restart with fewer ranks"),
        pytest.param(1, "reclaimed", id="it may not restart with its minimum"),
    ],
)
def test_a_job_above_a_lowered_limit_is_shrunk_only_if_it_may_restart(limit: int, code: str) -> None:
    made = world(f"pool t 4\na 1 of t\nb 1 of t, limit {limit}\nb runs 1 of 1 ranks 2-4 held 4\na queues 1 of 1")
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    (paused,) = [one for one in decision.plan.actions if isinstance(one, Pause)]
    assert paused.reason.code == code


def test_what_an_elastic_job_gives_up_for_one_rank_of_a_claim_is_not_given_up_for_the_next() -> None:
    """In a pool with so much running work the ranks are placed one after the other."""
    made = world(
        "pool t 52x1\na 3 of t\nb 49 of t\nc 0 of t\nb runs 49 of 1\n"
        "c runs 0.5 ranks 2-3 on n50g0,n52g0,n51g0\nc runs 0.5 ranks 1-3 on n50g0,n52g0,n51g0\na queues 0.5 ranks 3"
    )
    reserved = [action for action in made.tick().actions if isinstance(action, Reserve) and action.starts_at is None]
    promised = Counter[str]()
    for part in (part for action in reserved for part in action.placements):
        promised[part.device] += part.gpu_milli
    assert max(promised.values(), default=0) <= WHOLE_DEVICE
