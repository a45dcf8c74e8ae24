"""The limit is a ceiling on everything, and at it a claim within guarantee is served by its own department's work."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.plan import Pause, Reserve
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.preemption.test_search import victims
from tests.core.promises import check_plan
from tests.core.world import world


# R12
def test_exactly_at_the_limit_starts_and_one_more_does_not() -> None:
    made = world("pool t 4\na 1 of t, limit 2\na queues 3 of 1")
    made.settle()
    assert made.picture() == "a 2"
    assert made.decide().waits["a3"].code == "above_limit"


def test_notebook_quota_is_kept_free_under_the_limit() -> None:
    made = world("pool t 4\na 1 of t, notebooks 1, limit 2\na queues 2 of 1\na notebook 1")
    made.settle()
    assert made.picture() == "a 1"


def test_work_that_leaves_counts_until_it_is_gone() -> None:
    made = world("pool t 4\na 1 of t, limit 1\na runs 1\na queues 1")
    made.drain_ticks = 2
    made.cancel("a1")
    made.tick()
    assert made.tick().actions == ()
    assert len(made.tick().actions) == 1


def test_a_job_above_the_limit_can_never_start() -> None:
    made = world("pool t 4\na 1 of t, limit 2\na queues 3")
    made.tick()
    assert made.decide().waits["a1"].code == "above_limit"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param(
            "pool t 4\na 1 of t, limit 2\na queues 3", "above_limit",
            "a asked for 3 GPU; the limit of a is 2, of which 0 is kept for notebooks.",
            id="above its project's limit",
        ),
        pytest.param(
            "pool t 4\na 1 of t, notebooks 1, limit 2\na queues 2", "above_limit",
            "a asked for 2 GPU; the limit of a is 2, of which 1 is kept for notebooks.",
            id="above what the limit leaves beside notebooks",
        ),
        pytest.param(
            "pool t 4\ndepartment D 2 of t, limit 2\na 1 of t in D\na queues 3", "above_limit",
            "a asked for 3 GPU; the limit of its department D is 2, of which 0 is kept for notebooks.",
            id="above its department's limit",
        ),
        pytest.param(
            "pool t 4\na 1 of t\na queues 2 fixed", "above_training_quota",
            "a requested 2 GPU for a non-preemptible job; its training quota is 1.",
            id="above the training quota, and not preemptible",
        ),
    ],
)  # fmt: skip
def test_the_reason_of_a_job_above_the_limit_alone_does_not_say_that_it_waits(text: str, code: str, words: str) -> None:
    made = world(text)
    made.tick()
    reason = made.decide().waits["a1"]
    assert reason.code == code and sentence(reason).startswith(
        f"{words} It cannot start until that changes, however many GPUs are free"
    )


@pytest.mark.parametrize(
    ("text", "paused"),
    [
        pytest.param(
            "pool t 4\na 2 of t, limit 2\na runs 2 of 1\na queues 1 ranks 2 priority 60", ["a1", "a2"],
            id="of its project: a gang preempts rank by rank",
        ),
        pytest.param(
            "pool t 4\ndepartment D 2 of t, limit 3\nb 2 of t in D\nc 0 of t in D\n"
            "c runs 3 of 1\nb queues 1 ranks 2", ["c2", "c3"],
            id="of its department: a gang preempts siblings, whatever is free",
        ),
        pytest.param(
            "pool t 5\ndepartment D 2 of t, limit 3\nb 2 of t in D\nc 0 of t in D\n"
            "c runs 3 of 1\nb queues 1 ranks 2", ["c2", "c3"],
            id="of its department: a gang preempts siblings, though there is room for all of it",
        ),
        pytest.param(
            "pool t 3\ndepartment D 2 of t, limit 2\ndepartment E 0 of t, notebooks 1\n"
            "b 2 of t in D\nc 0 of t in D\ne 0 of t in E, notebooks 1\n"
            "c runs 1 on n1g0\nc runs 1 on n1g1 lent\ne runs 1 on n1g2\nb queues 1 ranks 2", ["c1", "c2", "e1"],
            id="of its department: siblings are paused for the limit, borrowers too, and others for the room",
        ),
    ],
)  # fmt: skip
def test_a_gang_within_guarantee_starts_at_the_limit(text: str, paused: list[str]) -> None:
    made = world(text)
    made.settle()
    assert made.paused() == paused


def test_at_a_department_limit_no_project_ends_below_its_quota_while_devices_are_free() -> None:
    """D is 0.1 short; c2 runs where a3 would fit, but without c2 c would have 0.85 of its 1."""
    made = world(
        """
        pool t 3
        department D 2.5 of t, limit 2.5
        a 0.5 of t in D, priority 60
        c 1 of t in D
        c runs 0.6 on n1g0
        c runs 0.5 on n1g1
        c runs 0.25 on n1g0 priority 30
        a runs 0.5 on n1g1
        a runs 0.25 on n1g2
        a queues 0.5
        """
    )
    made.settle()
    assert (made.picture(), made.paused()) == ("a 1.25 / c 1.1", ["c3"])


def test_a_gang_at_the_limit_does_not_wait_for_a_drain_that_cannot_help_it() -> None:
    text = "pool t 3\ndepartment D 2 of t, limit 2\nb 2 of t in D\nc 0 of t in D\nx 0 of t\n"
    made = world(text + "c runs 2 of 1\nx runs 1\nb queues 1 ranks 2")
    made.cancel("x1")
    assert victims(made.tick()) == ["c2", "c1"]


def test_a_user_at_the_ceiling_has_no_claim_before_the_own_work_has_ended() -> None:
    """u has 1 of 1 in D with b2, which leaves for a1: a2 claims two ticks later. Rule R12."""
    made = world(
        """
        pool t 3
        department D 3 of t, limit per user 1
        a 3 of t in D
        b 0 of t in D
        b runs 2 by w priority 60
        b runs 1 by u
        a queues 1 by v priority 60
        a queues 1 by u
        """
    )
    assert victims(made.tick()) == ["b2"]
    made.settle()
    assert (made.picture(), made.paused()) == ("a 2 / b 0", ["b1", "b2"])


AT_ITS_LIMIT = {
    "of a department": ("department D 2 of t, limit 2.2\np1 1 of t in D\np2 1 of t in D", "p2", "", "p23"),
    "of a project": ("p1 2 of t, limit 2.2", "p1", "priority 90", "p14"),
}


# R43
@pytest.mark.parametrize(("owners", "whose", "priority", "paused"), AT_ITS_LIMIT.values(), ids=AT_ITS_LIMIT)
def test_a_limit_asks_for_no_more_than_it_needs_where_another_device_has_room(
    owners: str, whose: str, priority: str, paused: str
) -> None:
    """0.1 must leave for the limit; where it leaves there is room for 0.3 only if the job of 0.2 leaves, too."""
    made = world(
        f"""
        pool t 3
        {owners}
        p1 runs 0.7 on n1g0
        {whose} runs 1 on n1g1
        {whose} runs 0.2 on n1g0
        {whose} runs 0.1 on n1g0
        p1 queues 0.3 {priority}
        """
    )
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    pause, reserve = decision.plan.actions
    assert isinstance(pause, Pause) and pause.workload == paused
    assert isinstance(reserve, Reserve) and [place.device for place in reserve.placements] == ["n1g2"]


def test_a_victim_is_restored_where_a_later_claim_at_its_limit_frees_enough() -> None:
    """a preempts c; then b2 preempts b1, which only b's limit requires: a gets b1's slot, b2 the free one."""
    made = world(
        """
        pool t 3
        a 0.5 of t
        b 0.5 of t, limit 0.5
        c 0 of t
        e 1.25 of t
        b runs 0.5 on n1g0
        e runs 0.5 fixed on n1g0
        c runs 1 on n1g1
        e runs 0.75 fixed on n1g2
        a queues 0.5
        b queues 0.1 priority 70
        """
    )
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    places = {one.workload: one.placements[0].device for one in decision.plan.actions if isinstance(one, Reserve)}
    assert places == {"a1": "n1g0", "b2": "n1g2"}
    assert [one.workload for one in decision.plan.actions if isinstance(one, Pause)] == ["b1"]
