"""``GET projects``: what a submit form needs of each project, for its reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.world import QUOTA, ServiceWorld, service_world

CHOICES = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training], maximum: {time_limit: 2d}}
  - {name: build, selector: {gpu_model: [Simulated 16G]}, uses: [notebook]}
  - {name: empty, selector: {gpu_model: [B200]}, uses: [training, inference]}
departments:
  - {name: research, quota: {train: {training: 3, limit: 3}, build: {notebook: 1}, empty: {}}}
projects:
  - name: vision
    department: research
    members: {users: [bob, olga], leads: [lea]}
    quota:
      train: {training: 2, per_user: {jobs: 1.5}}
      build: {notebook: 0.5, per_user: {notebook: 0.25}}
      empty: {}
    defaults: {environment: torch-2, pool: {training: train}, time_limit: 12h}
    maximum: {time_limit: 3d}
  - name: speech
    department: research
    members: {users: [patty]}
    quota: {train: {training: 1}}
environments:
  - {name: torch-2, python: /opt/torch-2/bin/python, projects: [vision]}
  - {name: shared, python: /opt/shared/bin/python}
  - {name: kaldi, python: /opt/kaldi/bin/python, projects: [speech]}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.apply(CHOICES)
        yield made


def project(world: ServiceWorld, who: str = "bob", name: str = "vision") -> Any:
    return {each["name"]: each for each in world.get("projects", who).json["items"]}[name]


def train(world: ServiceWorld, who: str = "bob", name: str = "vision") -> Any:
    return project(world, who, name)["submit"]["pools"][-1]


def run_jobs(world: ServiceWorld, who: str, *gpus: str) -> None:
    for gpu in gpus:
        world.submit(who, gpu=gpu, pool="train")
    world.step()


def test_a_form_has_its_pools_defaults_and_limits(world: ServiceWorld) -> None:
    assert project(world)["submit"] == {
        "pools": [
            {
                "pool": "empty", "models": [], "simulated": False, "time_limit_s": 43_200, "max_time_limit_s": 259_200,
                "quota_left_milli": 0, "limit_left_milli": None, "user_left_milli": None,
            },
            {
                "pool": "train", "models": [{"model": "Simulated 80G", "memory_mib": 81_920, "devices": 4}],
                "simulated": True, "time_limit_s": 43_200, "max_time_limit_s": 172_800,
                "quota_left_milli": 2000, "limit_left_milli": 3000, "user_left_milli": 1500,
            },
        ],
        "default_pool": "train",
        "environments": ["torch-2", "shared"], "data": [],
        "default_environment": "torch-2",
        "priority": 50,
        "max_priority": 50,
    }  # fmt: skip


@pytest.mark.parametrize(("who", "most"), [("bob", 50), ("lea", 100)])
def test_the_greatest_priority_is_the_one_that_is_accepted(world: ServiceWorld, who: str, most: int) -> None:
    assert project(world, who)["submit"]["max_priority"] == most
    job = {"command": ["x"], "priority": most, "dry_run": True}
    assert world.post("jobs", who, job).status == 200
    if most < 100:
        assert world.post("jobs", who, job | {"priority": most + 1}).json["reason"] == "priority"


def test_running_jobs_of_the_reader_and_of_the_department_use_what_is_left(world: ServiceWorld) -> None:
    run_jobs(world, "bob", "1")
    run_jobs(world, "patty", "0.5")
    left = ("quota_left_milli", "limit_left_milli", "user_left_milli")
    assert [train(world)[name] for name in left] == [1000, 1500, 500]
    assert [train(world, "olga")[name] for name in left] == [1000, 1500, 1500]
    assert [train(world, "patty", "speech")[name] for name in left] == [500, 1500, None]


def test_a_waiting_job_uses_nothing_that_is_left(world: ServiceWorld) -> None:
    world.submit("bob", gpu="1")
    assert train(world)["quota_left_milli"] == 2000


def test_a_project_shows_the_ceilings_with_the_reader_s_use(world: ServiceWorld) -> None:
    run_jobs(world, "bob", "1")
    request = {"user": "bob", "server": "", "project": "vision", "pool": "build", "gpu": "0.125"}
    assert world.post("notebooks", "hub", request).status == 201
    build, _, pool = project(world)["pools"]
    assert (pool["user_jobs_milli"], pool["own_jobs_milli"], pool["own_notebook_milli"]) == (1500, 1000, 0)
    assert (build["user_notebook_milli"], build["own_notebook_milli"], build["own_jobs_milli"]) == (250, 125, 0)
    (above,) = (each for each in project(world)["department"]["pools"] if each["pool"] == "train")
    assert (above["user_jobs_milli"], above["own_jobs_milli"]) == (None, 1000)
    assert project(world, "olga")["pools"][2]["own_jobs_milli"] == 0


def test_a_department_without_the_pool_leaves_nothing_there(world: ServiceWorld) -> None:
    world.apply(CHOICES.replace("notebook: 1}, empty: {}}", "notebook: 1}}"))
    empty = project(world)["submit"]["pools"][0]
    assert (empty["pool"], empty["quota_left_milli"], empty["limit_left_milli"]) == ("empty", 0, 0)


def test_an_admin_who_is_not_a_member_has_no_choices(world: ServiceWorld) -> None:
    assert project(world, "ann")["submit"] is None


def test_the_default_pool_is_none_where_a_job_must_name_one(world: ServiceWorld) -> None:
    world.apply(QUOTA.replace("uses: [notebook]", "uses: [training]").replace("notebook: 0.5", "training: 0.5"))
    assert project(world)["submit"]["default_pool"] is None
    assert world.post("jobs", "bob", {"command": ["x"]}).json["reason"] == "which_pool"
