"""The audit as people read it: who did what, to whom, and why; every field stays in the row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.core.facts import RankFact
from tests.api.world import QUOTA, ServiceWorld, service_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    """Bob runs four jobs, Patty's claim pauses one of them, Olga has a notebook, Lea cancels, Ann edits the quotas.

    All tests of this module only read.
    """
    with service_world(tmp_path_factory.mktemp("audit")) as made:
        made.run(made.services.store_view.refresh())
        jobs = [made.submit("bob", project="vision", name=f"train {n}")["id"] for n in range(4)]
        made.step()
        for job in jobs:
            made.see_running(job)
        made.submit("patty", project="speech", name="claim")
        made.post("notebooks", "hub", {"user": "olga", "project": "vision", "pool": "build", "gpu": "1/8"})
        made.step()
        made.run(made.services.store_view.refresh())
        [pausing] = [job["id"] for job in made.get("jobs", "bob").json["items"] if job["state"] == "pausing"]
        made.see(_left(pausing))
        made.step()
        made.post(f"jobs/{pausing}/actions/cancel", "lea")
        header = {"If-Match": '"1"'}
        made.call("PUT", "quota", "ann", {"text": QUOTA + "# more\n", "comment": "as agreed"}, headers=header)
        yield made


def _left(job: str) -> RankFact:
    return RankFact(
        job=job, attempt=1, rank=0, handle="1", started_at=1, ended_at=2, exit_status=75, tree_gone=True,
        pause_requested=True,
    )  # fmt: skip


def rows(world: ServiceWorld) -> list[str]:
    return [f"{row['who']} {row['what']}" for row in world.get("audit?limit=1000", "ann").json["items"]]


@pytest.mark.parametrize(
    "said",
    [
        'bob queued bob\'s job "train 0": 1 GPU in pool train',
        'the scheduler started bob\'s job "train 0" on train-0. vision asked for 1 GPU and used 0 of'
        " its training quota (2 in force), so it started.",
        'the scheduler reported that bob\'s job "train 0" started (attempt 1)',
        "olga requested a slice of 0.125 GPU in pool build for olga's notebook",
        'the scheduler reported that attempt 1 of bob\'s job "train 3" ended with exit status 75; the job is paused',
        'lea cancelled bob\'s job "train 3", which was paused',
        "ann put revision 2 of the quota file in force: as agreed",
    ],
)
def test_a_row_names_actor_action_and_subject(world: ServiceWorld, said: str) -> None:
    assert said in rows(world)


def test_a_pause_names_its_claimer(world: ServiceWorld) -> None:
    [pause] = [row for row in rows(world) if row.startswith("the scheduler paused ")]
    assert pause.startswith('the scheduler paused bob\'s job "train 3". speech asked for 1 GPU for ')


def test_every_kind_of_row_has_a_text(world: ServiceWorld) -> None:
    items = world.get("audit?limit=1000", "ann").json["items"]
    assert [row["kind"] for row in items if row["what"].startswith(f"{row['kind']} ")] == []
    assert len({row["kind"] for row in items}) > 9
