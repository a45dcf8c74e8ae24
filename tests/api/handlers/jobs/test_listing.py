"""``GET jobs``: filters, order and search on the server, and what a row says of its queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.scheduling.cycle import SchedulingCycle
from jupyter_gpu_quota.core.scheduling.plan_builder import PlanBuilder
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import until

T0 = 1_800_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.clock = lambda: T0
        yield made


def at(world: ServiceWorld, seconds: int) -> None:
    world.clock = lambda: T0 + seconds * 1000


def listed(world: ServiceWorld, query: str, who: str = "ann") -> list[str]:
    answer = world.get(f"jobs?{query}", who)
    assert answer.status == 200, answer.body
    assert answer.json["_pagination"]["total"] == len(answer.json["items"])
    return [job["name"] for job in answer.json["items"]]


@pytest.fixture
def jobs(world: ServiceWorld) -> dict[str, str]:
    """Four jobs: bob's ran for 20 s and ended, patty's runs since second 20, olga's is held, lea's waits."""
    found = {}
    for number, (who, more) in enumerate(
        [
            ("bob", {"name": "Bert tuning", "priority": 10}),
            ("patty", {"name": "speech-1", "gpu": "4"}),
            ("olga", {"name": "x_y", "command": ["python", "100%.py"]}),
            ("lea", {"name": "late", "gpu": "4", "priority": 90}),
        ]
    ):
        at(world, number)
        found[who] = world.submit(who, **more)["id"]
    world.post(f"jobs/{found['olga']}/actions/hold", "lea")
    world.post(f"jobs/{found['lea']}/actions/hold", "lea")
    world.post(f"jobs/{found['patty']}/actions/hold", "patty")
    world.step()
    at(world, 10)
    world.see_running(found["bob"])
    at(world, 30)
    end = {"ended_at": world.clock(), "exit_status": 0, "tree_gone": True}
    world.see(RankFact(job=found["bob"], attempt=1, rank=0, handle="100", started_at=None, **end))
    world.post(f"jobs/{found['patty']}/actions/release", "patty")
    world.step()
    at(world, 40)
    world.see_running(found["patty"])
    world.post(f"jobs/{found['lea']}/actions/release", "lea")
    at(world, 100)
    return found


ROWS = [
    pytest.param("", ["late", "x_y", "speech-1", "Bert tuning"], id="newest first"),
    pytest.param("sort=submitted_at", ["Bert tuning", "speech-1", "x_y", "late"], id="oldest first"),
    pytest.param("sort=user", ["Bert tuning", "late", "x_y", "speech-1"], id="by the name of the user"),
    pytest.param("sort=-project", ["late", "x_y", "Bert tuning", "speech-1"], id="by project, then newest first"),
    pytest.param("sort=state", ["late", "speech-1", "x_y", "Bert tuning"], id="in the order of a job's life"),
    pytest.param("sort=-priority", ["late", "x_y", "speech-1", "Bert tuning"], id="the highest priority first"),
    pytest.param("sort=-duration", ["speech-1", "Bert tuning", "late", "x_y"], id="the longest first"),
    pytest.param("sort=duration", ["Bert tuning", "speech-1", "late", "x_y"], id="those that never started are last"),
    pytest.param("user=olga", ["x_y"], id="of one user"),
    pytest.param("user=nobody", [], id="of a user who was never seen"),
    pytest.param("state=held,running", ["x_y", "speech-1"], id="in several states"),
    pytest.param("since=2027-01-15T08:00:01.500Z", ["late", "x_y"], id="submitted since"),
    pytest.param("search=BERT", ["Bert tuning"], id="in the name, in any case"),
    pytest.param("search=train.py", ["late", "speech-1", "Bert tuning"], id="in the command"),
    pytest.param("search=%25", ["x_y"], id="a percent sign is text"),
    pytest.param("search=x_y", ["x_y"], id="an underscore is text"),
    pytest.param("search=train&sort=-priority&state=running,queued", ["late", "speech-1"], id="all together"),
]


@pytest.mark.parametrize(("query", "expected"), ROWS)
def test_jobs_are_filtered_and_sorted(
    world: ServiceWorld, jobs: dict[str, str], query: str, expected: list[str]
) -> None:
    assert listed(world, query) == expected


def test_a_search_finds_a_part_of_an_id(world: ServiceWorld, jobs: dict[str, str]) -> None:
    """Fewer than 4 characters would be in many ids by chance: they are the beginning."""
    assert listed(world, f"search={jobs['olga'].lower()}") == ["x_y"]
    assert listed(world, f"search={jobs['olga'][-12:].lower()}") == ["x_y"]
    assert listed(world, f"search={jobs['olga'][:3]}") == listed(world, "")
    assert listed(world, f"search={jobs['olga'][-3:]}") == []


def test_a_search_finds_no_job_that_the_reader_may_not_see(world: ServiceWorld, jobs: dict[str, str]) -> None:
    assert listed(world, "search=speech-1", "bob") == []
    assert listed(world, "sort=user&user=patty", "bob") == []


def test_a_page_of_another_order(world: ServiceWorld, jobs: dict[str, str]) -> None:
    page = world.get("jobs?sort=user&offset=1&limit=2", "ann").json
    assert [job["name"] for job in page["items"]] == ["late", "x_y"]
    assert page["_pagination"] == {"offset": 1, "limit": 2, "total": 4}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sort=size", "sort was 'size'; it is one of submitted_at, state, user, project, priority, duration"),
        ("since=yesterday", "since was 'yesterday'"),
        ("mine=1&user=olga", "mine and user='olga' were given"),
        ("search=%00", "NUL"),
    ],
)
def test_a_wrong_filter_is_refused(world: ServiceWorld, query: str, said: str) -> None:
    answer = world.get(f"jobs?{query}", "bob")
    assert (answer.status, answer.json["reason"]) == (400, "invalid")
    assert said in answer.json["message"]


# --- what a row says --------------------------------------------------------------------------------------------------
def job(world: ServiceWorld, name: str, who: str = "ann") -> Any:
    return world.get(f"jobs/{name}", who).json


def test_a_job_names_the_person_who_held_or_cancelled_it(world: ServiceWorld, jobs: dict[str, str]) -> None:
    assert job(world, jobs["olga"])["stopped_by"] == "lea"
    world.post(f"jobs/{jobs['olga']}/actions/release", "olga")
    assert job(world, jobs["olga"])["stopped_by"] is None
    world.post(f"jobs/{jobs['olga']}/actions/cancel", "ann")
    assert job(world, jobs["olga"])["stopped_by"] == "ann"
    world.post(f"jobs/{jobs['patty']}/actions/cancel", "leo")
    assert (job(world, jobs["patty"])["state"], job(world, jobs["patty"])["stopped_by"]) == ("running", "leo")


def test_the_first_start_stays_when_a_job_starts_again(world: ServiceWorld) -> None:
    id = world.submit("bob")["id"]
    assert job(world, id)["first_started_at"] is None
    for attempt in (1, 2):
        world.step()
        at(world, 100 * attempt)
        world.see_running(id, attempt)
        left = {"ended_at": world.clock(), "exit_status": 75, "tree_gone": True}
        world.see(RankFact(job=id, attempt=attempt, rank=0, handle="100", started_at=None, **left))
    found = job(world, id)
    assert (found["attempt"], found["state"]) == (2, "paused")
    assert datetime.fromisoformat(found["first_started_at"]).timestamp() == T0 / 1000 + 100


def positions(world: ServiceWorld, who: str = "ann") -> dict[str, int | None]:
    return {job["name"]: job["queue_position"] for job in world.get("jobs", who).json["items"]}


def test_waiting_jobs_have_their_position_in_the_queue(world: ServiceWorld) -> None:
    for who, name, more in [
        ("bob", "runs", {"gpu": "4"}),
        ("bob", "bob 1", {}),
        ("bob", "bob 2", {}),
        ("olga", "olga 1", {}),
        ("lea", "urgent", {"priority": 80}),
        ("olga", "held", {}),
    ]:
        last = world.submit(who, name=name, **more)["id"]
        if name == "runs":
            world.step()
            world.see_running(last)
    world.post(f"jobs/{last}/actions/hold", "olga")
    # a higher priority first; then users in turn: bob uses 4 GPUs, olga none
    assert positions(world) == {"runs": None, "held": None, "urgent": 1, "olga 1": 2, "bob 1": 3, "bob 2": 4}
    assert positions(world, "bob")["bob 2"] == 4
    world.submit("patty", name="patty 1")
    until(lambda: positions(world)["patty 1"] == 1)  # within its project's training quota
    assert positions(world)["urgent"] == 2


def test_a_job_that_no_limit_admits_is_last(world: ServiceWorld) -> None:
    world.apply(QUOTA.replace("{training: 2}", "{training: 2, limit: 2}"))
    world.submit("bob", name="huge", gpu="3", priority=50)
    world.submit("bob", name="small", priority=10)
    assert positions(world) == {"huge": 2, "small": 1}


def test_the_job_with_the_backfill_reservation_has_its_planned_start(world: ServiceWorld) -> None:
    runs = world.submit("bob", gpu="2", time_limit="1h", preemptible=False)["id"]
    world.step()
    world.see_running(runs)
    waits = world.submit("bob", gpu="4")["id"]
    behind = world.submit("bob", gpu="4")["id"]
    estimate = datetime.fromisoformat(job(world, waits)["estimate_at"]).timestamp() - T0 / 1000
    assert 3600 <= estimate <= 3700
    assert [job(world, id)["estimate_at"] for id in (runs, behind)] == [None, None]


def test_listings_are_filtered_and_paged(world: ServiceWorld) -> None:
    mine = [world.submit(name=f"j{n}")["id"] for n in range(5)]
    world.submit("olga")
    world.submit("patty")
    world.post(f"jobs/{mine[0]}/actions/cancel")

    def names(query: str, who: str = "bob") -> list[str]:
        return [job["name"] for job in world.get(f"jobs?{query}", who).json["items"]]

    assert names("mine=1&limit=2&offset=1") == ["j3", "j2"]
    assert len(names("")) == 6 and len(names("", "ann")) == 7
    assert names("state=cancelled") == ["j0"] and "j0" not in names("live=1")
    assert world.get("jobs?project=speech").status == 404 and len(names("project=speech", "ann")) == 1


def test_a_waiting_job_shows_its_reason(world: ServiceWorld) -> None:
    for _ in range(4):
        world.submit()
    world.step()
    waiting = world.submit()["id"]
    reason = next(job["reason"] for job in world.get("jobs").json["items"] if job["id"] == waiting)
    assert reason["code"] and "fair share" in reason["message"]
    found = world.get(f"explain/{waiting}").json
    assert all(
        one["message"].startswith("It would start if ") and one["message"].endswith(".") for one in found["would_start"]
    )
    assert found["would_start"] and found["reason"]["code"] == reason["code"]


@pytest.mark.parametrize(
    ("who", "query", "status", "said"),
    [
        pytest.param(
            "bob", "project=nix", 404, "no project 'nix', or you may not see it", id="a project that is not there"
        ),
        pytest.param("bob", "project=speech", 404, "no project 'speech', or", id="a project that is another's"),
        pytest.param("bob", "project=vision", 200, None, id="one's own, without jobs"),
        pytest.param("bob", "stat=running", 400, "'stat' is not a parameter of GET jobs", id="a misspelt filter"),
        pytest.param("bob", "stat=running", 400, "project, mine, user, state, live", id="the filters that there are"),
    ],
)
def test_a_filter_by_an_unknown_project_is_refused(
    tmp_path: Path, who: str, query: str, status: int, said: str | None
) -> None:
    with service_world(tmp_path) as world:
        found = world.get(f"jobs?{query}", who)
        assert found.status == status, found.body
        assert said is None or said in found.json["message"]


def test_jobs_are_listed_where_a_defect_ends_the_decision(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(cycle: SchedulingCycle) -> PlanBuilder:
        raise IndexError

    monkeypatch.setattr(SchedulingCycle, "run", run)
    name = world.submit("bob", name="waits")["name"]
    assert listed(world, "state=queued", "bob") == [name]
