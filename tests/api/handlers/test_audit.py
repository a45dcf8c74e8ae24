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


def test_a_pause_names_its_preemptor(world: ServiceWorld) -> None:
    [pause] = [row for row in rows(world) if row.startswith("the scheduler paused ")]
    assert pause.startswith('the scheduler paused bob\'s job "train 3". speech asked for 1 GPU for ')


def test_every_kind_of_row_has_a_text(world: ServiceWorld) -> None:
    items = world.get("audit?limit=1000", "ann").json["items"]
    assert [row["kind"] for row in items if row["what"].startswith(f"{row['kind']} ")] == []
    assert len({row["kind"] for row in items}) > 9


@pytest.mark.parametrize(
    ("query", "said"),
    [
        pytest.param("actor=lea", ['lea cancelled bob\'s job "train 3", which was paused'], id="a user"),
        pytest.param("actor=the%20scheduler&action=pause", None, id="a part of the service by its words"),
        pytest.param("actor=system:controller&action=PAUSE", None, id="a part of the service by its id"),
        pytest.param("actor=nobody", [], id="an unknown user"),
        pytest.param("action=quota", ["ann put revision 2", "test put revision 1"], id="the beginning of an action"),
        pytest.param("action=job.submit&project=speech", ['patty queued patty\'s job "claim"'], id="a project"),
        pytest.param(
            "action=Put%20a%20quota", ["ann put revision 2", "test put revision 1"], id="the words of an action"
        ),
        pytest.param("until=2020-01-01T00:00:00Z", [], id="no row before an instant"),
        pytest.param("since=2120-01-01T00:00:00Z", [], id="no row after an instant"),
    ],
)
def test_rows_are_filtered_on_the_server(world: ServiceWorld, query: str, said: list[str] | None) -> None:
    body = world.get(f"audit?limit=1000&{query}", "ann").json
    found = [f"{row['who']} {row['what']}" for row in body["items"]]
    if said is None:
        assert len(found) == 1 and found[0].startswith("the scheduler paused ")
    else:
        assert [row.startswith(words) for row, words in zip(found, said, strict=False)] == [True] * len(said)
        assert body["_pagination"]["total"] == len(said)


def test_a_time_divides_the_rows_in_two(world: ServiceWorld) -> None:
    every = world.get("audit?limit=1000", "ann").json["items"]
    at = every[len(every) // 2]["at"]
    parts = [world.get(f"audit?limit=1000&{word}={at}", "ann").json["items"] for word in ("since", "until")]
    assert parts[0] + parts[1] == every and all(row["at"] >= at for row in parts[0])


def test_a_lead_cannot_name_another_project(world: ServiceWorld) -> None:
    assert world.get("audit?project=speech", "lea").json["items"] == []
    mine = world.get("audit?project=vision", "lea").json["items"]
    assert mine and {row["project"] for row in mine} == {"vision"}
