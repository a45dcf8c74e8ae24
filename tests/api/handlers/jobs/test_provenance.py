"""The provenance of a job over REST, in the client and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.client import Client
from tests.api.world import QUOTA, ServiceWorld, service_world

DATA = "data:\n  - {name: images, path: /data/images, groups: [vision-team]}\n"
RECORD = {
    "python": "/opt/torch/bin/python",
    "python_from": "command",
    "version": "3.11.7",
    "distributions": {"numpy": "2.1.0", "torch": "2.6.0"},
    "data": {"GPU_QUOTA_DATA_IMAGES": {"path": "/data/images", "version": "2026-11"}},
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as found:
        found.apply(QUOTA + DATA)
        yield found


def started(world: ServiceWorld, record: dict[str, Any], **request: Any) -> str:
    """A job of lea whose first attempt recorded its provenance."""
    job = str(world.submit("lea", **request)["id"])
    world.step()
    path = Path(rank_paths(str(world.state_dir), job, 1, 0).provenance)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    return job


def client(world: ServiceWorld, who: str = "lea") -> Client:
    return Client(f"http://127.0.0.1:{world.port}", f"token-{who}", environment={})


def test_a_job_keeps_its_command_its_python_with_the_distributions_and_the_state_of_its_data(
    world: ServiceWorld,
) -> None:
    found = client(world).provenance(started(world, RECORD))
    assert (found.attempt, found.command, found.bundle) == (1, ["python", "train.py"], None)
    assert (found.python, found.python_version) == ("/opt/torch/bin/python", "3.11.7")
    assert found.distributions == RECORD["distributions"]
    assert [(each.name, each.path, each.version) for each in found.data] == [("images", "/data/images", "2026-11")]


def test_equal_environments_have_equal_digests(world: ServiceWorld) -> None:
    """Wherever they are; another version of one distribution makes another digest."""
    elsewhere = {**RECORD, "python": "/opt/other/bin/python"}
    newer = {**RECORD, "distributions": {"numpy": "2.1.1", "torch": "2.6.0"}}
    digests = [client(world).provenance(started(world, each)).environment_digest for each in (RECORD, elsewhere, newer)]
    assert digests[0] is not None and digests[0] == digests[1] != digests[2]


def test_a_value_that_was_not_recorded_is_null(world: ServiceWorld) -> None:
    found = client(world).provenance(world.submit("lea")["id"])
    assert (found.attempt, found.python, found.environment_digest, found.data) == (0, None, None, [])


def test_an_attempt_that_a_job_has_not_had_is_refused(world: ServiceWorld) -> None:
    job = started(world, RECORD)
    reply = world.get(f"jobs/{job}/provenance?attempt=2", "lea")
    assert (reply.status, reply.json["reason"]) == (404, "no_such_attempt")


def test_the_provenance_of_a_private_job_is_hidden_like_the_job(world: ServiceWorld) -> None:
    job = started(world, RECORD, private=True)
    assert world.get(f"jobs/{job}/provenance", "lea").status == 200
    assert world.get(f"jobs/{job}/provenance", "bob").json == world.get(f"jobs/{job}", "bob").json


def test_the_command_line_shows_it(world: ServiceWorld) -> None:
    job = started(world, RECORD)
    of = ["--url", f"http://127.0.0.1:{world.port}", "--token", "token-lea"]
    shown = CliRunner().invoke(main, ["provenance", job, *of])
    assert shown.exit_code == 0, shown.output
    for words in ("/opt/torch/bin/python (3.11.7), of the command", "/data/images, version 2026-11", "numpy", "2.1.0"):
        assert words in shown.output
