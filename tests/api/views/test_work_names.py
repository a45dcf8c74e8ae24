"""Jobs in sentences: by the short id of listings, and by name where the reader may see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.world import QUOTA, ServiceWorld, service_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.apply(QUOTA)
        yield made


def run(world: ServiceWorld, who: str, name: str, **more: object) -> str:
    job = str(world.submit(who, name=name, **more)["id"])
    world.step()
    world.see_running(job)
    return job


def test_a_pause_names_the_job_of_another_project_by_its_short_id_alone(world: ServiceWorld) -> None:
    paused = [run(world, "bob", f"mine {at}") for at in range(4)][-1]
    preemptor = str(world.submit("patty", name="secret", gpu="1")["id"])
    world.step()
    reason = world.get(f"jobs/{paused}", "bob").json["reason"]
    assert reason["figures"]["preemptor"] == preemptor
    assert f"for {preemptor[-8:]}, within" in reason["message"]
    assert preemptor not in reason["message"] and "secret" not in reason["message"]


def test_the_work_that_would_have_to_end_has_its_name_and_short_id(world: ServiceWorld) -> None:
    world.apply(QUOTA.replace("{training: 2}", "{training: 2, limit: 2}", 1))
    mine, hidden = run(world, "bob", "digits"), run(world, "bob", "private one", private=True)
    waits = str(world.submit("olga", gpu="2")["id"])
    found = {who: world.get(f"explain/{waits}", who).json["reason"]["message"] for who in ("olga", "lea")}
    assert f"digits ({mine[-8:]})" in found["olga"] and mine not in found["olga"]
    assert "1 other workload" in found["olga"] and "private one" not in found["olga"]
    assert f"private one ({hidden[-8:]})" in found["lea"]
