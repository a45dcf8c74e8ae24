"""Whether the planned start of a backfill reservation is a bound, or an estimate that other projects may delay."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.plan import Reserve
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from tests.core.world import GENTLE, World, world

PROTECTED = dc.replace(GENTLE, min_runtime_s=7200)
"""No work may be paused above a guarantee."""


def delaying(made: World, name: str = "a1") -> tuple[str, ...] | None:
    reason = made.decide().waits[name]
    return None if getattr(reason, "delaying", None) is None else reason.delayed_by  # type: ignore[union-attr]


# R34
@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        pytest.param(
            "pool t 4\na 4 of t\nb 0 of t, weight 0\na runs 3 of 1 minutes 10 ran 60\na queues 4", "a4", (),
            id="no other project has anything to claim: a bound",
        ),
        pytest.param(
            "pool t 2x2\na 2 of t\nb 2 of t\nb runs 1 on n1g0 minutes 10 fixed ran 60\n"
            "b runs 1 on n2g0 minutes 20 fixed ran 60\na queues 2", "a1", (),
            id="within guarantee, with room for the other guarantee beside it: a bound",
        ),
        pytest.param(
            "pool t 1x2\npool t 1x1\na 2 of t\nb 1 of t\nb runs 1 on n1g0 minutes 10 fixed ran 60\n"
            "c 0 of t\na queues 2", "a1", (),
            id="within guarantee, with room on another node: a bound",
        ),
        pytest.param(
            "pool t 1x2\npool t 2x1\na 2 of t\nb 2 of t\nb runs 1 on n1g0 minutes 10 fixed ran 60\na queues 2",
            "a1", ("b",), id="within guarantee, with that room on two nodes: a rank of two may come first",
        ),
        pytest.param(
            "pool t 4\na 0 of t\nb 2 of t\nc 0 of t, weight 0\nc runs 4 of 1 minutes 10 ran 60\na queues 2",
            "a1", ("b",), id="above guarantee a claim within guarantee starts there first",
        ),
        pytest.param(
            "pool t 4\na 0 of t\nb 2 of t, weight 0\nc 0 of t, weight 0\nb runs 2 of 1 minutes 20 ran 60\n"
            "c runs 2 of 1 minutes 30 ran 60\na queues 2", "a1", ("b",),
            id="the work within the other guarantee ends then, and may be claimed again",
        ),
        pytest.param(
            "pool t 4\na 0 of t\nb 0 of t\nc 0 of t, weight 0\nc runs 4 of 1 minutes 10 ran 60\na queues 2\n"
            "a used 10 of t", "a1", ("b",),
            id="above guarantee a project with a weight and less past use may come first",
        ),
        pytest.param(
            "pool t 4\na 0 of t\nb 0 of t\nc 0 of t, weight 0\nc runs 4 of 1 minutes 10 ran 60\na queues 2\n"
            "b used 10 of t", "a1", (),
            id="one with more past use may not: a bound",
        ),
    ],
)  # fmt: skip
def test_the_projects_that_may_delay_a_planned_start(text: str, name: str, expected: tuple[str, ...]) -> None:
    made = world(text, preemption=PROTECTED)
    assert delaying(made, name) == expected
    found = explain(made.snapshot(), made.policy, name)
    said = explanation_sentence(found)
    assert found.is_bound is (expected == ())
    assert ("at the latest" in said) is (expected == ()) and ("This is an estimate" in said) is (expected != ())
    assert all(project in said.partition("jobs of ")[2] for project in expected)


# R34 R79
def test_quota_that_running_work_uses_is_claimed_only_if_that_work_ends_before_its_time_limit() -> None:
    made = world(
        "pool t 4\na 0 of t\nb 2 of t, weight 0\nc 0 of t, weight 0\nb runs 2 of 1 minutes 20 ran 60\n"
        "c runs 2 of 1 minutes 10 ran 60\na queues 2", preemption=PROTECTED
    )  # fmt: skip
    assert delaying(made) == ()
    assert "jobs of b may start there first" in explanation_sentence(explain(made.snapshot(), made.policy, "a1"))


def test_a_few_of_many_projects_are_named() -> None:
    others = "\n".join(f"p{n} 0.5 of t, weight 0" for n in range(5))
    text = f"pool t 4\na 0 of t\n{others}\nc 0 of t, weight 0\nc runs 4 of 1 minutes 10 ran 60\na queues 2"
    made = world(text, preemption=PROTECTED)
    assert figures_of(made.decide().waits["a1"])["delaying"] == 5
    said = explanation_sentence(explain(made.snapshot(), made.policy, "a1"))
    assert "jobs of p0, p1, p2 and 2 other projects may start there first" in said


@pytest.mark.parametrize("needs", ["model", "cpu"])
def test_with_other_needs_than_gpus_no_room_is_sure(needs: str) -> None:
    made = world(
        "pool t 2x2\na 2 of t\nb 2 of t\nb runs 1 on n1g0 minutes 10 fixed ran 60\n"
        "b runs 1 on n2g0 minutes 20 fixed ran 60\na queues 2"
    )
    if needs == "model":
        made.devices["n2g0"] = dc.replace(made.devices["n2g0"], model="Y")
    else:
        made.jobs["a1"] = dc.replace(made.jobs["a1"], cpu_milli=1000, memory_mib=1000)
    assert delaying(made) == ("b",)


# R27
@pytest.mark.parametrize("other", ["a", "b"])
def test_the_order_of_equal_jobs_in_the_snapshot_does_not_change_the_reserved_devices(other: str) -> None:
    """P14. A borrower and a job that does not borrow end at one instant on one device, and free different amounts."""
    made = world(
        "pool t 1x2\na 0 of t\nb 0 of t\nc 0 of t\nd 0 of t\nz 0 of t, notebooks 0.25\n"
        "a runs 0.5 on n1g0 minutes 10 ran 60 lent\nc runs 0.4 on n1g1 minutes 90 ran 60\nd queues 0.5 ranks 2\n"
        f"{other} runs 0.5 on n1g0 minutes 10 ran 60"
    )
    snapshot = made.snapshot()
    plans = [decide(dc.replace(snapshot, jobs=jobs), made.policy) for jobs in (snapshot.jobs, snapshot.jobs[::-1])]
    assert plans[0] == plans[1] and isinstance(plans[0].actions[0], Reserve)
