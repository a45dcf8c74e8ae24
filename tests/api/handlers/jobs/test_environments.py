"""The environments of the quota file in the API and the client: those that a person's jobs may name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.wire import EnvironmentView
from tests.api.world import QUOTA, ServiceWorld, service_world

ENVIRONMENTS = """\
environments:
  - {name: torch-2, python: /opt/torch-2/bin/python, projects: [vision]}
  - {name: shared, python: /opt/shared/bin/python}
  - {name: kaldi, python: /opt/kaldi/bin/python, projects: [speech]}
  - {name: unused, python: /opt/unused/bin/python, projects: []}
"""
QUOTA_WITH_ENVIRONMENTS = QUOTA.replace("name: vision\n", "name: vision\n    defaults: {environment: torch-2}\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as found:
        found.add("root", admin=True)
        found.add("lea")
        yield found


def seen(world: ServiceWorld, who: str) -> list[EnvironmentView]:
    return Client(f"http://127.0.0.1:{world.port}", f"token-{who}", environment={}).environments()


@pytest.mark.parametrize(
    ("who", "names"),
    [
        pytest.param("bob", ["torch-2", "shared"], id="a member"),
        pytest.param("lea", ["torch-2", "shared"], id="a lead"),
        pytest.param("patty", ["shared", "kaldi"], id="a member of another project"),
        pytest.param("root", [], id="an admin who is in no project"),
    ],
)
def test_a_person_sees_the_environments_that_their_jobs_may_name(
    world: ServiceWorld, who: str, names: list[str]
) -> None:
    world.apply(QUOTA_WITH_ENVIRONMENTS + ENVIRONMENTS)
    assert [each.name for each in seen(world, who)] == names


def test_an_environment_names_only_projects_of_the_reader(world: ServiceWorld) -> None:
    world.apply(QUOTA_WITH_ENVIRONMENTS + ENVIRONMENTS)
    torch, shared = seen(world, "bob")
    assert torch == EnvironmentView(
        name="torch-2", image=None, python="/opt/torch-2/bin/python", projects=["vision"], default_of=["vision"]
    )
    assert (shared.projects, shared.default_of) == (["vision"], [])


def test_each_of_them_can_be_named_by_a_job(world: ServiceWorld) -> None:
    world.apply(QUOTA_WITH_ENVIRONMENTS + ENVIRONMENTS)
    for each in seen(world, "bob"):
        assert world.submit("bob", environment=each.name)["environment"] == each.name


def test_without_a_quota_file_there_is_none(world: ServiceWorld) -> None:
    assert seen(world, "bob") == []
