"""Past use in dividing the surplus: more recent use means a smaller share now; guarantees do not change."""

from __future__ import annotations

import dataclasses as dc
from itertools import pairwise

import pytest

from jupyter_gpu_quota.core.quota.fair_share import Owner, divide
from tests.core.world import World, world


@pytest.mark.parametrize(
    ("text", "picture"),
    [
        # R19
        pytest.param(
            "history 1\na 0 of t\nb 0 of t\na used 100 of t\na queues 4 of 1\nb queues 4 of 1", "a 0 / b 4",
            id="a project with past use comes after one without",
        ),
        # R16
        pytest.param(
            "history 1\na 1 of t\nb 1 of t\na used 100 of t\na queues 4 of 1\nb queues 4 of 1", "a 1 / b 3",
            id="past use does not change guarantees",
        ),
        # R19
        pytest.param(
            "history 0\na 0 of t\nb 0 of t\na used 100 of t\na queues 4 of 1\nb queues 4 of 1", "a 2 / b 2",
            id="k = 0 turns it off",
        ),
        pytest.param(
            "history 1\na 0 of t\nb 0 of t\na used 50 of t\nb used 50 of t\na queues 4 of 1\nb queues 4 of 1",
            "a 2 / b 2",
            id="equal use and equal weight leave the plain rule",
        ),
        pytest.param(
            "history 1\na 0 of t\nb 0 of t, priority 60\nb used 100 of t\na queues 4 of 1\nb queues 4 of 1",
            "a 0 / b 4",
            id="past use has no effect between priorities",
        ),
        pytest.param(
            "history 1\na 0 of t\nb 0 of t\na used 100 of t\na queues 4 of 1\nb queues 1 of 1", "a 3 / b 1",
            id="surplus that others do not want is still used",
        ),
        pytest.param(
            "history 1\ndepartment D 0 of t\ndepartment E 0 of t\na 0 of t in D\nb 0 of t in D\nc 0 of t in E\n"
            "a used 100 of t\nb queues 4 of 1\nc queues 4 of 1", "a 0 / b 0 / c 4",
            id="a department's past is the sum of its projects'",
        ),
    ],
)  # fmt: skip
def test_four_gpus(text: str, picture: str) -> None:
    made = world("pool t 4\n" + text)
    made.frozen = True
    made.settle()
    assert made.picture() == picture


# R19
def test_one_milli_more_lowers_no_share_by_more_than_one_with_history_too() -> None:
    """A new round begins when a demand is met; amounts of earlier rounds stay."""
    owners = [
        Owner(name="a", quota_milli=0, wanted_milli=100, weight=1, past_use_milli_s=0),
        Owner(name="b", quota_milli=0, wanted_milli=9000, weight=1, past_use_milli_s=60),
        Owner(name="c", quota_milli=0, wanted_milli=9000, weight=1, past_use_milli_s=40),
    ]
    shares = [divide(owners, amount, history_milli=1000) for amount in range(2000)]
    for less, more in pairwise(shares):
        for name in "abc":
            assert more[name].fair_milli >= less[name].fair_milli - 1


def test_owners_of_weight_0_share_the_rest_equally_whatever_their_past_use() -> None:
    owners = [
        Owner(name="a", quota_milli=0, wanted_milli=9000, weight=0, past_use_milli_s=60),
        Owner(name="b", quota_milli=0, wanted_milli=9000, weight=0, past_use_milli_s=0),
        Owner(name="c", quota_milli=0, wanted_milli=1000, weight=1, past_use_milli_s=40),
    ]
    shares = divide(owners, 3000, history_milli=1000)
    assert {name: share.fair_milli for name, share in shares.items()} == {"a": 1000, "b": 1000, "c": 1000}


def run_for_ever(made: World, ticks: int) -> dict[str, int]:
    """GPU-ticks of every project with endless demand; the one-GPU jobs last three ticks."""
    got = {project.name: 0 for project in made.policy.projects}
    for at in range(ticks):
        for name in list(made.jobs):
            job = made.jobs[name]
            if job.state == "running" and made.now - (job.started_at or 0) >= 3000:
                made.end(name)
        for project in got:
            while sum(job.project == project and job.state == "queued" for job in made.jobs.values()) < 12:
                made.submit(project, 1000, id=f"{project}-{made.now}-{len(made.jobs)}")
        made.tick()
        for project in got if at > ticks // 10 else ():
            got[project] += made.running(project)
    return got


ENDLESS = [
    pytest.param(1, "a 0 of t\nb 0 of t", {"a": 1, "b": 1}, id="one GPU in equal parts"),
    pytest.param(1, "a 0 of t\nb 0 of t\nc 0 of t", {"a": 1, "b": 1, "c": 1}, id="one GPU in three equal parts"),
    pytest.param(5, "a 1 of t\nb 1 of t, weight 2", {"a": 1, "b": 2}, id="three GPUs of surplus by 1 and 2"),
    pytest.param(1, "a 0 of t\nb 0 of t, weight 2", {"a": 1, "b": 2}, id="one GPU by 1 and 2"),
    pytest.param(4, "a 0 of t\nb 0 of t, weight 2", {"a": 1, "b": 2}, id="four GPUs by 1 and 2"),
    pytest.param(
        10, "a 0 of t\nb 0 of t, weight 2\nc 0 of t, weight 4", {"a": 1, "b": 2, "c": 4}, id="ten GPUs by 1, 2 and 4"
    ),
]


# R22
@pytest.mark.parametrize(
    ("gpus", "text", "weights"),
    ENDLESS,
)
def test_p15_endless_demand_gets_surplus_by_weight_within_five_percent(
    gpus: int, text: str, weights: dict[str, int]
) -> None:
    made = world(f"pool t {gpus}\nhistory 1, half-life 60\n{text}")
    made.policy = dc.replace(made.policy, preemption=dc.replace(made.policy.preemption, min_runtime_s=3600))
    quotas = {one.name: one.amounts["t"].training_milli for one in made.policy.projects}
    ticks = 400
    got = {name: used - quotas[name] * (ticks - ticks // 10 - 1) for name, used in run_for_ever(made, ticks).items()}
    total, parts = sum(got.values()), sum(weights.values())
    for name, weight in weights.items():
        assert abs(got[name] / total - weight / parts) <= 0.05 * weight / parts, got
