"""The reason with which a job of a project over quota starts."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.plan import Start
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.world import world


@pytest.mark.parametrize("others", ["", "b 3 of t"], ids=["within its fair share", "above its fair share"])
def test_a_non_preemptible_job_of_a_project_over_quota_starts_within_its_quota(others: str) -> None:
    made = world(f"pool t 4\na 1 of t\n{others}\na runs 2 of 1\na runs 0.25 fixed\na queues 0.5 fixed")
    (start,) = made.tick().actions
    assert isinstance(start, Start)
    assert start.reason.code == "non_preemptible_within_quota"
    assert sentence(start.reason) == (
        "a asked for 0.5 GPU that may not be preempted. Its other jobs of this kind use 0.25 of its training quota of "
        "1, so it starts now, and is not preempted, though the project is over quota: with its preemptible jobs it "
        "used 2.25."
    )


def test_a_non_preemptible_job_of_a_project_within_quota_starts_like_any_other() -> None:
    made = world("pool t 4\na 1 of t\na runs 0.5\na queues 0.5 fixed")
    (start,) = made.tick().actions
    assert isinstance(start, Start)
    assert start.reason.code == "within_guarantee"


def test_a_preemptible_job_of_a_project_over_quota_starts_with_its_entitlement() -> None:
    made = world("pool t 4\na 1 of t\na runs 2 of 1\na queues 0.5")
    (start,) = made.tick().actions
    assert isinstance(start, Start)
    assert start.reason.code == "within_fair_share"
