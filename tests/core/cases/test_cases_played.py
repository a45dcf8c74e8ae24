"""Snapshots from which an earlier release paused a job twice, or for ever, played until nothing changes any more."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.outside.documents import state_of
from tests.outside.play import Play
from tests.outside.steps import Step
from tests.outside.world import World

HERE = Path(__file__).parent
RESTARTS = ("moved", "shrunk", "grown")


def played_from(name: str, seed: int = 0) -> tuple[Play, list[Step]]:
    """Play on from a snapshot with demand and use frozen, until it is quiet; the seed decides how long stops take."""
    steps: list[Step] = []
    state = state_of(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))
    world = World(state=state, seed=0, kind="plain", random=Random(seed), frozen=True)
    play = Play(world, each=lambda tick, world, step: steps.append(step))
    play.until_quiet()
    return play, steps


def pauses_in(steps: list[Step]) -> Counter[str]:
    """The pauses of each job for others."""
    return Counter(
        one.workload for step in steps for one in step.of_kind("pause") if one.code not in RESTARTS and one.preemptor
    )


# R43, R45, R46
@pytest.mark.parametrize(
    ("name", "running"),
    [
        pytest.param("four_projects_on_twelve_gpus", {"j020", "j024"}, id="four projects on twelve GPUs come to rest"),
        pytest.param("claim_beside_three_idle_gpus", {"j006"}, id="a claim beside three idle GPUs moves a job"),
        pytest.param(
            "surplus_start_before_two_claims", {"j015", "j019"}, id="a start on surplus makes no job a victim twice"
        ),
        pytest.param(
            "drain_before_own_surplus_starts", {"B"}, id="a younger job of its project takes no guarantee away"
        ),
        pytest.param(
            "own_job_that_resumes_beside_its_preemptor",
            {"j04"},
            id="above its guarantee no job pauses one of its project that was paused since it was submitted",
        ),
    ],
)
def test_the_queue_comes_to_rest_and_pauses_no_job_twice(name: str, running: set[str]) -> None:
    play, steps = played_from(name)
    assert play.found == []
    pauses = pauses_in(steps)
    assert not {job for job, count in pauses.items() if count > 1}, pauses
    assert running <= {job.id for job in play.world.state.jobs.values() if job.runs}


def test_a_job_that_resumes_while_another_is_being_stopped_may_be_paused_for_that_one() -> None:
    """P8: k0 pauses j14 and j17; j14 resumes on surplus before j17 has left, and is paused again for it."""
    play, steps = played_from("preemptor_that_stops_while_its_victim_resumes", seed=3)
    assert play.found == []
    assert pauses_in(steps)["j14"] == 2
