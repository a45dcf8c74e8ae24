"""Data of the quota file in the API: who may use which, by their groups in the hub, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.core.reasons import DataUnavailable
from jupyter_gpu_quota.hub_api import HubUnavailable
from jupyter_gpu_quota.store.records.commands import ChangeJob
from tests.api.world import QUOTA, ServiceWorld, service_world

DATA = """\
data:
  - {name: images, path: /data/images, groups: [vision-team], until: 2027-01-31}
  - {name: labels, path: /data/labels, groups: [vision-team, annotators]}
  - {name: speech, path: /data/speech, groups: [speech-team]}
"""
LAST_DAY, DAY_AFTER = (int(datetime(*day, tzinfo=UTC).timestamp() * 1000) for day in ((2027, 1, 31), (2027, 2, 1)))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as found:
        found.add("ute", groups=["vision-team"])
        found.clock = lambda: LAST_DAY
        found.apply(QUOTA + DATA)
        yield found


def client(world: ServiceWorld, who: str) -> Client:
    return Client(f"http://127.0.0.1:{world.port}", f"token-{who}", environment={})


def test_a_person_sees_the_data_of_their_groups(world: ServiceWorld) -> None:
    found = {each.name: each for each in client(world, "ute").data()}
    assert list(found) == ["images", "labels"]
    assert (found["images"].path, str(found["images"].until)) == ("/data/images", "2027-01-31")
    assert found["labels"].groups == ["vision-team"]  # not those of others
    assert client(world, "bob").data() == []


def test_ended_data_is_listed_as_ended(world: ServiceWorld) -> None:
    world.clock = lambda: DAY_AFTER
    assert [(each.name, each.has_ended) for each in client(world, "ute").data()] == [
        ("images", True),
        ("labels", False),
    ]


@pytest.mark.parametrize(
    ("asked", "data"),
    [
        pytest.param({}, ["images", "labels"], id="a job that names none has all that its user may use"),
        pytest.param({"data": ["labels"]}, ["labels"], id="a job has the data that it names"),
        pytest.param({"data": ["labels", "labels"]}, ["labels"], id="a name given twice counts once"),
        pytest.param({"data": []}, [], id="an empty list is no data"),
    ],
)
def test_the_data_of_a_job(world: ServiceWorld, asked: dict[str, object], data: list[str]) -> None:
    assert world.submit("ute", **asked)["data"] == data


@pytest.mark.parametrize(
    ("who", "name", "words"),
    [
        pytest.param("ute", "speech", "may use the data images, labels", id="data of other groups"),
        pytest.param("ute", "imges", "may use the data images, labels", id="a name that is not in the file"),
        pytest.param("bob", "images", "may use no data of the quota file", id="a user in no group with data"),
    ],
)
def test_data_that_a_user_may_not_use_is_refused(world: ServiceWorld, who: str, name: str, words: str) -> None:
    reply = world.post("jobs", who, {"command": ["python", "train.py"], "data": [name]})
    assert (reply.status, reply.json["reason"]) == (403, "no_such_data")
    assert words in reply.json["message"]


def test_after_the_last_day_data_is_refused_with_the_day_and_left_out_of_jobs_that_name_none(
    world: ServiceWorld,
) -> None:
    world.clock = lambda: DAY_AFTER
    reply = world.post("jobs", "ute", {"command": ["python", "train.py"], "data": ["images"]})
    assert (reply.status, reply.json["reason"]) == (409, "data_ended")
    assert "2027-01-31 was the last day" in reply.json["message"]
    assert world.submit("ute")["data"] == ["labels"]


def test_the_form_offers_what_may_be_used_now(world: ServiceWorld) -> None:
    """Also to a reader who has the answer of the day before."""
    answer = world.get("projects", "ute")
    assert answer.json["items"][0]["submit"]["data"] == ["images", "labels"]
    world.clock = lambda: DAY_AFTER
    again = world.get("projects", "ute", headers={"If-None-Match": answer.headers["etag"]})
    assert again.json["items"][0]["submit"]["data"] == ["labels"]


def test_a_repeated_request_is_the_same_job_when_its_user_may_use_other_data_now(world: ServiceWorld) -> None:
    request = {"command": ["x"], "idempotency_key": "k"}
    job = world.submit("ute", **request)
    named = world.submit("ute", data=["labels"], idempotency_key="n")
    world.add("ute", groups=["vision-team", "annotators"])
    world.services.people.accounts._known.clear()
    world.clock = lambda: DAY_AFTER
    assert (world.post("jobs", "ute", request).json["id"], job["data"]) == (job["id"], ["images", "labels"])
    again = world.post("jobs", "ute", {"command": ["python", "train.py"], "data": ["labels"], "idempotency_key": "n"})
    assert again.json["id"] == named["id"]
    other = world.post("jobs", "ute", {"command": ["python", "train.py"], "data": [], "idempotency_key": "n"})
    assert other.json["reason"] == "key_reused"


def test_a_rerun_has_the_same_data_and_a_clone_may_have_other(world: ServiceWorld) -> None:
    job = world.submit("ute", data=["labels"])["id"]
    assert world.post(f"jobs/{job}/actions/rerun", "ute").json["data"] == ["labels"]
    assert world.post(f"jobs/{job}/actions/clone", "ute", {"data": ["images"]}).json["data"] == ["images"]


def test_a_clone_of_another_user_s_job_needs_the_data_of_their_own_groups(world: ServiceWorld) -> None:
    job = world.submit("ute", data=["labels"])["id"]
    reply = world.post(f"jobs/{job}/actions/rerun", "bob")
    assert (reply.status, reply.json["reason"]) == (403, "no_such_data")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda world: setattr(world, "clock", lambda: DAY_AFTER), "data_ended", id="the last day is over"),
        pytest.param(lambda world: world.add("ute", groups=[]), "no_such_data", id="its user left the group"),
        pytest.param(lambda world: world.apply(QUOTA), "no_such_data", id="the file has it no more"),
    ],
)
def test_a_held_job_is_not_released_without_its_data(world: ServiceWorld, change: object, reason: str) -> None:
    job = world.submit("ute", data=["images"])["id"]
    world.record(ChangeJob(job=job, actor="system:test", change="hold", why=DataUnavailable(data="images")))
    change(world)  # type: ignore[operator]
    world.services.people.accounts._known.clear()
    reply = world.post(f"jobs/{job}/actions/release", "ann")
    assert reply.json["reason"] == reason
    assert world.get(f"jobs/{job}", "ute").json["state"] == "held"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(QUOTA, "no longer gives the data images to users", id="the file has it no more"),
        pytest.param(QUOTA + DATA.replace("2027-01-31", "2026-12-31"), "no longer gives the data images", id="it ends"),
        pytest.param(QUOTA + DATA.replace("2027-01-31", "2027-02-28"), None, id="it ends later"),
    ],
)
def test_a_preview_names_the_data_that_jobs_lose(world: ServiceWorld, text: str, words: str | None) -> None:
    world.submit("ute", data=["images"])
    warnings = world.post("quota/preview", "ann", {"text": text}).json["warnings"]
    found = [warning for warning in warnings if "data images to" in warning]
    assert [str(words) in each and "that will be held: 1." in each for each in found] == [True] * bool(words)


def test_waiting_jobs_of_a_user_who_left_the_group_are_held(world: ServiceWorld) -> None:
    world.add("bob", groups=["annotators"])
    jobs = {who: world.submit(who, data=["labels"])["id"] for who in ("ute", "bob")}
    without = world.submit("ute", data=[])["id"]
    world.add("ute", groups=["other"])
    world.controllers.turn(world.controllers.reconciliation)
    assert world.get(f"jobs/{jobs['ute']}", "ann").json["state"] == "queued", "one list may be wrong"
    world.controllers.turn(world.controllers.reconciliation)
    states = {job: world.get(f"jobs/{job}", "ann").json["state"] for job in (*jobs.values(), without)}
    assert states == {jobs["ute"]: "held", jobs["bob"]: "queued", without: "queued"}
    assert world.get(f"jobs/{jobs['ute']}", "ann").json["reason"]["code"] == "data_unavailable"


def test_a_hub_that_leaves_out_the_groups_holds_no_job(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit("ute", data=["labels"])["id"]
    with monkeypatch.context() as without:
        without.setattr("tests.api.world._model", lambda name, account: {"name": name, "servers": {}})
        lacks = "lacks the scope read:users:groups; an admin of the hub must grant"
        for _ in range(3):
            with pytest.raises(HubUnavailable, match=lacks):
                world.controllers.turn(world.controllers.reconciliation)
        refused = world.get(f"jobs/{job}", "ann")
        assert refused.status == 503 and lacks in refused.json["message"], "groups that cannot be read are not none"
    assert world.get(f"jobs/{job}", "ann").json["state"] == "queued"


def test_without_jobs_with_data_the_hub_is_not_asked_for_its_users(world: ServiceWorld) -> None:
    world.submit("ute", data=[])
    world.hub.asked.clear()
    world.controllers.turn(world.controllers.reconciliation)
    assert world.hub.asked == []


def test_a_held_job_is_released_when_it_may_use_its_data(world: ServiceWorld) -> None:
    job = world.submit("ute", data=["images"])["id"]
    world.record(ChangeJob(job=job, actor="system:test", change="hold", why=DataUnavailable(data="images")))
    assert "may not use any more" in world.get(f"jobs/{job}", "ute").json["reason"]["message"]
    assert world.post(f"jobs/{job}/actions/release", "ute").json["state"] == "queued"
