"""Snapshots in which random worlds found an unneeded victim, or one that was wrongly spared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.outside.documents import state_of
from tests.outside.product import plan_of
from tests.outside.rules import victims
from tests.outside.steps import Step

HERE = Path(__file__).parent


def step_from(name: str) -> Step:
    """The plan for a snapshot."""
    document = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return Step(state_of(document), plan_of(document))


def paused(step: Step) -> set[str]:
    return {one.workload for one in step.of_kind("pause")}


# R43
@pytest.mark.parametrize(
    ("name", "victims_left", "waits"),
    [
        pytest.param(
            "claim_where_a_sibling_of_its_victim_got_the_rest",
            {"j21"},
            "j02",
            id="another victim is paused if the claim were above its fair share once its own victim continues",
        ),
        pytest.param(
            "shrink_where_a_job_above_its_share_got_the_rest",
            set(),
            "j07",
            id="what a job above its fair share has reserved does not count against the guarantee of another claim",
        ),
        pytest.param(
            "victims_of_two_projects_for_what_is_left",
            {"j03", "j04", "j06"},
            "j17",
            id="the victim of a claim within fair share is spared before that of a claim above it",
        ),
        pytest.param(
            "two_jobs_of_a_project_for_what_is_left",
            {"j06"},
            "j09",
            id="a job whose victim continues does not go before a job of higher priority",
        ),
        pytest.param(
            "victim_of_the_project_of_a_later_claim",
            {"j06"},
            "j07",
            id="a victim continues beside a claim of its project that stays within its fair share and balanced",
        ),
    ],
)
def test_a_victim_continues_if_it_is_unneeded_in_the_whole_plan(name: str, victims_left: set[str], waits: str) -> None:
    step = step_from(name)
    assert paused(step) == victims_left
    assert waits not in {one.workload for one in step.giving()}
    assert list(victims.check(step)) == []


# R45
def test_a_project_at_its_quota_gives_up_ranks_though_a_job_of_its_own_waits() -> None:
    """That job fits beside the minimum of the elastic job, but is above its guarantee while this has further ranks."""
    step = step_from("elastic_job_above_the_quota_of_its_project")
    assert [(one.workload, one.preemptor, one.code) for one in step.of_kind("pause")] == [("e", "j", "shrunk")]
