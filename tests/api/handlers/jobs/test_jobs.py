"""Jobs in the API: submission, repeated requests, changes, reruns, logs and outputs."""

from __future__ import annotations

import http.client
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.api.handlers import logs
from jupyter_gpu_quota.api.handlers.submission import name_of
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.bundle import pack
from jupyter_gpu_quota.client import Client, Refused
from jupyter_gpu_quota.core.facts import RankFact
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def send_bundle(world: ServiceWorld, folder: Path, who: str = "bob") -> str:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text("print('hello')\n")
    digest = pack(folder / "code", folder / "code.tar.gz").digest
    answer = world.call("PUT", f"bundles/{digest}", who, raw=(folder / "code.tar.gz").read_bytes())
    assert answer.status in (200, 201), answer.body
    return digest


# --- submitting -------------------------------------------------------------------------------------------------------
def test_defaults_come_from_the_quota_file(world: ServiceWorld) -> None:
    job = world.submit()
    assert {key: job[key] for key in ("project", "pool", "gpu", "gpu_milli", "priority", "time_limit_s", "name")} == {
        "project": "vision",
        "pool": "train",
        "gpu": "1",
        "gpu_milli": 1000,
        "priority": 50,
        "time_limit_s": 86_400,
        "name": "python train.py",
    }
    assert (job["state"], job["user"], job["simulated"], job["enforcement"]) == ("queued", "bob", True, None)


@pytest.mark.parametrize(
    ("gpu", "milli"),
    [
        pytest.param("1/3", 333, id="a third is floored"),
        pytest.param("0.1", 100, id="a tenth is exact"),
        pytest.param("8GiB", 101, id="memory is charged by the model"),
        pytest.param("2", 2000, id="two whole devices"),
    ],
)
def test_the_charge_is_shown(world: ServiceWorld, gpu: str, milli: int) -> None:
    job = world.submit(gpu=gpu)
    assert (job["gpu"], job["gpu_milli"]) == (gpu, milli)


def test_several_models_are_named_with_commas_and_each_must_be_there(world: ServiceWorld) -> None:
    assert world.submit(gpu_model="80G, Simulated 80G")["gpu_model"] == "Simulated 80G"
    refused = world.post("jobs", "bob", {"command": ["x"], "gpu_model": "80G,H100"})
    assert (refused.status, refused.json["reason"]) == (409, "which_model")
    assert "'H100'" in refused.json["message"]


def test_someone_in_two_projects_names_one(world: ServiceWorld) -> None:
    world.apply(QUOTA.replace("users: [patty]", "users: [patty, bob]"))
    refused = world.post("jobs", "bob", {"command": ["x"]})
    assert (refused.status, refused.json["reason"]) == (400, "which_project")
    assert "speech, vision" in refused.json["message"]
    assert world.submit(project="speech")["project"] == "speech"


# R11
def test_a_lead_may_set_a_higher_priority(world: ServiceWorld) -> None:
    assert world.submit("lea", priority=90)["priority"] == 90


def test_the_response_has_the_location_of_the_job(world: ServiceWorld) -> None:
    answer = world.post("jobs", "bob", {"command": ["x"]})
    assert world.get(answer.headers["location"]).json["id"] == answer.json["id"]


@pytest.mark.parametrize("by_header", [True, False], ids=["key in the header", "key in the body"])
def test_the_same_key_is_the_same_job(world: ServiceWorld, by_header: bool) -> None:
    body = {"command": ["x"]} if by_header else {"command": ["x"], "idempotency_key": "k1"}
    headers = {"Idempotency-Key": "k1"} if by_header else {}
    answers = [world.post("jobs", "bob", body, headers=headers) for _ in range(3)]
    assert [answer.status for answer in answers] == [201, 200, 200]
    assert len({answer.json["id"] for answer in answers}) == 1
    assert world.get("jobs").json["_pagination"]["total"] == 1
    assert world.post("jobs", "olga", body, headers=headers).json["id"] != answers[0].json["id"]


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        pytest.param({"command": ["y"]}, "command", id="another command"),
        pytest.param({"variables": {"A": "2"}}, "variables", id="another variable"),
        pytest.param({"secrets": {"B": "2"}}, "secret_names", id="a secret that it had not"),
        pytest.param({"priority": 40}, "priority", id="another priority"),
    ],
)
def test_the_same_key_for_another_job_is_refused(world: ServiceWorld, more: dict[str, object], differs: str) -> None:
    body = {"command": ["x"], "idempotency_key": "k1", "variables": {"A": "1"}}
    first = world.post("jobs", "bob", body).json["id"]
    answer = world.post("jobs", "bob", body | more)
    assert (answer.status, answer.json["reason"]) == (409, "key_reused")
    assert first in answer.json["message"] and differs in answer.json["message"]
    assert world.get("jobs").json["_pagination"]["total"] == 1
    assert world.post("jobs", "bob", body).json["id"] == first


def test_concurrent_submissions_are_each_stored_once(world: ServiceWorld) -> None:
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(world.submit()["id"])) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 40 == world.get("jobs").json["_pagination"]["total"]


def test_a_dry_run_lists_the_jobs_it_would_pause_and_stores_nothing(world: ServiceWorld) -> None:
    mine = [world.submit()["id"] for _ in range(4)]
    world.step()
    for job in mine:
        world.see_running(job)
    before = world.store.version()
    for who in ("patty",):
        answer = world.post("jobs", who, {"command": ["x"], "dry_run": True})
        assert (answer.status, answer.json["starts_now"], answer.json["charged_milli"]) == (200, False, 1000)
        assert answer.json["reason"]["code"] == "waits_for_drain"
        said = answer.json["reason"]["message"]
        assert "would start within the grace of" in said and "is reserved;" not in said, "a dry run reserves nothing"
        assert [victim["effect"] for victim in answer.json["pauses"]] == ["paused"]
        [victim] = answer.json["pauses"]
        assert (victim["job"], victim["project"], victim["user"]) == (None, None, None)
        assert victim["message"].startswith("A job that you may not see would be paused for it")
        assert "bob" not in answer.body.decode() and "hidden" not in answer.body.decode()
    assert world.store.version() == before


def test_a_dry_run_of_an_elastic_job_shows_both_charges(world: ServiceWorld) -> None:
    asked = {"command": ["x"], "dry_run": True, "nodes": 4, "min_nodes": 2}
    answer = world.post("jobs", "bob", asked).json
    assert (answer["charged_least_milli"], answer["charged_milli"]) == (2000, 4000)


def test_values_of_variables_are_only_in_the_jobs_own_document(world: ServiceWorld) -> None:
    with world.stream("events") as events:
        next(events)
        job = world.submit(variables={"API_KEY": "hunter2-hunter2"})
        found = [job, next(events)[1], world.get("jobs").json]
        found += [world.post(f"jobs/{job['id']}/actions/hold").json, next(events)[1]]
    assert "hunter2" not in str(found)
    assert world.get(f"jobs/{job['id']}").json["variables"] == {"API_KEY": "hunter2-hunter2"}
    assert world.get(f"jobs/{job['id']}", "olga").json["variables"] == {"API_KEY": "hunter2-hunter2"}


def test_the_limit_of_waiting_jobs_per_user_is_enforced(tmp_path: Path) -> None:
    with service_world(tmp_path, waiting_jobs_limit=3) as small:
        first = small.submit(command=["x"], idempotency_key="first")
        held, last = small.submit(), small.submit()
        small.post(f"jobs/{held['id']}/actions/hold")
        for refused in (small.post("jobs", body={"command": ["x"]}), small.post(f"jobs/{last['id']}/actions/rerun")):
            assert (refused.status, refused.json["reason"]) == (429, "queue_full")
            assert "bob has 3 jobs" in refused.json["message"] and "3 is the limit" in refused.json["message"]
        again = small.post("jobs", body={"command": ["x"], "idempotency_key": "first"})
        assert (again.status, again.json["id"]) == (200, first["id"])
        small.submit("olga")
        small.post(f"jobs/{held['id']}/actions/cancel")
        small.submit()
        assert small.post("jobs", body={"command": ["x"]}).status == 429
        small.step()
        small.submit()


def test_a_secret_is_shown_nowhere(world: ServiceWorld) -> None:
    job = world.submit(secrets={"TOKEN": "hunter2-hunter2"})
    assert job["secret_names"] == ["TOKEN"] and "TOKEN" not in world.get(f"jobs/{job['id']}").json["variables"]
    assert world.store.secrets(job["id"]) == {"TOKEN": "hunter2-hunter2"}
    pages = [
        f"jobs/{job['id']}",
        "jobs",
        f"explain/{job['id']}",
        "audit",
        "snapshot",
        f"/services/gpu-quota/jobs/{job['id']}",
    ]
    for path in pages:
        assert b"hunter2" not in world.get(path, "ann").body, path


def test_without_a_quota_file_the_message_reports_that(tmp_path: Path) -> None:
    world = ServiceWorld(tmp_path)
    try:
        world.add("bob")
        assert world.get("me").json["projects"] == {}
        assert world.post("jobs", "bob", {"command": ["x"]}).json["reason"] == "no_quota"
        assert world.get("/services/gpu-quota/").status == 200
    finally:
        world.close()


# --- bundles ----------------------------------------------------------------------------------------------------------
def test_a_bundle_is_uploaded_once_and_usable_only_by_its_owner(world: ServiceWorld, tmp_path: Path) -> None:
    digest = send_bundle(world, tmp_path)
    assert send_bundle(world, tmp_path) == digest
    assert world.submit(bundle=digest, directory="sub/folder")["bundle"] == digest
    guessed = world.post("jobs", "patty", {"command": ["x"], "bundle": digest})
    assert (guessed.status, guessed.json["reason"]) == (404, "no_such_bundle")
    assert world.call("HEAD", f"bundles/{digest}", "patty").status == 404
    assert world.call("HEAD", f"bundles/{digest}", "bob").status == 200


def test_an_interrupted_bundle_upload_leaves_nothing(world: ServiceWorld) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", world.port)) as raw:
        head = f"PUT {world.path('bundles/' + 'a' * 64)} HTTP/1.1\r\nHost: x\r\nAuthorization: token token-bob\r\n"
        raw.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b"x" * 5000)
        incoming = Path(world.services.bundles.directory) / "incoming"
        until(lambda: any(incoming.iterdir()))
    until(lambda: not any(incoming.iterdir()))


# --- changing ---------------------------------------------------------------------------------------------------------
def test_hold_release_and_cancel_are_repeatable(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    seen = [
        world.post(f"jobs/{job}/actions/{change}").json["state"]
        for change in ("hold", "hold", "release", "cancel", "cancel")
    ]
    assert seen == ["held", "held", "queued", "cancelled", "cancelled"]
    refused = world.post(f"jobs/{job}/actions/hold")
    assert (refused.status, refused.json["reason"]) == (409, "ended")
    assert world.get(f"jobs/{job}").json["ended_at"] is not None


def test_a_released_job_is_not_described_as_held(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    held = world.post(f"jobs/{job}/actions/hold").json
    assert (held["state"], held["target"], held["reason"]["code"]) == ("running", "held", "held_by_person")
    world.step()
    released = world.post(f"jobs/{job}/actions/release").json
    assert (released["state"], released["target"], released["reason"]) == ("pausing", "paused", None)
    found = world.get(f"explain/{job}").json["reason"]["message"]
    assert found == "The job is pausing: it saves what it has, then it is queued again at its old position."
    world.see(_gone(job))
    (listed,) = world.get("jobs").json["items"]
    assert listed["state"] == "paused" and "held" not in (listed["reason"] or {}).get("message", "")


def test_an_ended_job_is_not_described_as_starting(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    for found in (world.get(f"jobs/{job}").json["reason"], world.get(f"explain/{job}").json["reason"]):
        assert "so it started." in found["message"] and "now" not in found["message"], "it runs already"
    world.see_running(job, ended_at=world.clock(), exit_status=3, tree_gone=True)
    found = [world.get(f"{resource}/{job}").json["reason"] for resource in ("jobs", "explain")]
    found += [each["reason"] for each in world.get("jobs").json["items"]]
    assert {each["message"] for each in found} == {
        "The command on node node-1 ended with exit status 3. Its log may have the cause."
    }
    assert found[0]["figures"] == {"exit_status": 3, "node": "node-1"}


TAINT = "Unschedulable: 0/2 nodes are available: 1 node(s) had untolerated taint(s)"


def test_a_job_that_its_node_does_not_take_says_why_and_what_to_do(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()

    def reasons() -> set[str]:
        world.run(world.services.store_view.refresh())
        return {world.get(f"{each}/{job}").json["reason"]["message"] for each in ("jobs", "explain")}

    waits = RankFact(job=job, attempt=1, rank=0, handle=None, started_at=None, trouble=TAINT)
    world.see(waits)
    (said,) = reasons()
    assert f" The command has not begun on node node-1: {TAINT}. Tolerate the taint" in said
    assert world.get(f"jobs/{job}").json["rank_records"][0]["trouble"] == TAINT
    world.see(replace(waits, ended_at=world.clock(), tree_gone=True, trouble=None, why_lost=TAINT))
    for said in reasons():
        assert f"Attempt 1 was lost on node node-1: {TAINT}. Tolerate the taint" in said
    (rank,) = world.get(f"jobs/{job}").json["rank_records"]
    assert rank["exit_text"] == f"lost: {TAINT}"


def test_a_paused_job_shows_its_present_reason_and_the_cause_of_the_pause(world: ServiceWorld) -> None:
    mine = [world.submit("bob", project="vision", name=f"mine {n}")["id"] for n in range(4)]
    world.step()
    for job in mine:
        world.see_running(job)
    theirs = world.submit("patty", project="speech")["id"]
    world.step()
    world.run(world.services.store_view.refresh())
    [paused] = [job for job in world.get("jobs").json["items"] if job["state"] == "pausing"]
    world.see(_gone(paused["id"]))
    world.step()
    world.see_running(theirs)
    world.run(world.services.store_view.refresh())
    [listed] = [job for job in world.get("jobs").json["items"] if job["id"] == paused["id"]]
    shown = world.get(f"jobs/{paused['id']}").json
    explained = world.get(f"explain/{paused['id']}").json["reason"]
    assert listed["reason"]["code"] == shown["reason"]["code"] == explained["code"] == "above_fair_share"
    assert listed["paused_because"]["code"] == "reclaimed" == paused["reason"]["code"]
    assert shown["paused_because"]["message"].startswith("speech asked for 1 GPU")
    world.post(f"jobs/{mine[0] if mine[0] != listed['id'] else mine[1]}/actions/cancel")
    world.step()
    assert world.get(f"jobs/{listed['id']}").json["paused_because"]["code"] == "reclaimed"


def test_a_held_job_is_not_described_with_a_grace_period(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    world.post(f"jobs/{job}/actions/hold")
    world.step()
    assert "s to save" in world.get(f"jobs/{job}").json["reason"]["message"]
    world.see(_gone(job))
    held = world.get(f"jobs/{job}").json
    assert held["state"] == "held"
    assert held["reason"]["message"] == "bob held the job. It waits until it is released."


@pytest.mark.parametrize(("change", "says"), [("hold", "lea held the job."), ("cancel", "lea cancelled the job.")])
def test_another_user_who_held_or_cancelled_a_job_is_named(world: ServiceWorld, change: str, says: str) -> None:
    job = world.submit("bob")["id"]
    world.post(f"jobs/{job}/actions/{change}", "lea")
    for shown in (world.get(f"jobs/{job}").json, world.get(f"explain/{job}").json, *world.get("jobs").json["items"]):
        assert shown["reason"]["message"].startswith(says)
        assert shown["reason"]["figures"] == {"by": "lea"}


def _gone(job: str) -> RankFact:
    return RankFact(
        job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=75,
        pause_requested=True, tree_gone=True,
    )  # fmt: skip


def test_a_lead_may_cancel_and_another_member_may_not(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    refused = world.post(f"jobs/{job}/actions/cancel", "olga")
    assert (refused.status, refused.json["reason"]) == (403, "not_yours")
    assert "bob" in refused.json["message"]
    assert world.post(f"jobs/{job}/actions/cancel", "lea").json["state"] == "cancelled"


def test_rerun_queues_the_same_spec_as_a_new_job(world: ServiceWorld, tmp_path: Path) -> None:
    digest = send_bundle(world, tmp_path)
    old = world.submit(bundle=digest, gpu="0.5", variables={"SEED": "1"}, time_limit="90m", name="first")
    new = world.post(f"jobs/{old['id']}/actions/rerun", "olga").json
    old, new = (world.get(f"jobs/{job['id']}").json for job in (old, new))
    same = ("command", "gpu", "gpu_milli", "bundle", "variables", "time_limit_s", "project", "pool", "name")
    assert {key: new[key] for key in same} == {key: old[key] for key in same}
    assert (new["user"], new["clone_of"], new["id"] != old["id"]) == ("olga", old["id"], True)


@pytest.mark.parametrize("again", ["rerun", "clone"])
def test_a_job_named_after_its_command_can_run_again(world: ServiceWorld, again: str) -> None:
    old = world.submit(command=["python", "scripts/train.py", "--lr=0.1"])
    answer = world.post(f"jobs/{old['id']}/actions/{again}", "bob", {})
    assert (answer.status, answer.json["name"]) == (201, old["name"])


def test_a_copy_may_differ(world: ServiceWorld) -> None:
    old = world.submit("lea", priority=90)
    copy = world.post(f"jobs/{old['id']}/actions/clone", "bob", {"name": "copy", "gpu": "2"}).json
    assert (copy["name"], copy["gpu_milli"], copy["priority"]) == ("copy", 2000, 50)
    more = {"cpu_milli": 300, "memory_mib": 64, "time_limit": "90m", "nodes": 1}
    other = world.post(f"jobs/{old['id']}/actions/clone", "bob", more).json
    assert (other["cpu_milli"], other["memory_mib"], other["time_limit_s"], other["ranks"]) == (300, 64, 5400, 1)
    before = len(world.get("jobs", "bob").json["items"])
    dry = world.post(f"jobs/{old['id']}/actions/clone", "bob", {"gpu": "2", "dry_run": True})
    assert dry.json["charged_milli"] == 2000 and len(world.get("jobs", "bob").json["items"]) == before
    refused = world.post(f"jobs/{old['id']}/actions/clone", "bob", {"priority": 90})
    assert (refused.status, refused.json["reason"]) == (403, "priority")


def test_a_job_with_secrets_is_not_repeated_without_them(world: ServiceWorld) -> None:
    old = world.submit(secrets={"TOKEN": "hunter2"})
    refused = world.post(f"jobs/{old['id']}/actions/rerun")
    assert (refused.status, refused.json["reason"]) == (409, "had_secrets")
    assert "TOKEN" in refused.json["message"]


def test_a_job_with_secrets_is_repeated_with_them(world: ServiceWorld) -> None:
    old = world.submit(secrets={"TOKEN": "hunter2", "KEY": "k"})
    some = world.post(f"jobs/{old['id']}/actions/rerun", "bob", {"secrets": {"KEY": "k"}})
    assert some.status == 409 and "TOKEN" in some.json["message"] and "KEY" not in some.json["message"]
    both = world.post(f"jobs/{old['id']}/actions/rerun", "bob", {"secrets": {"KEY": "k", "TOKEN": "new"}})
    assert (both.status, both.json["secret_names"]) == (201, ["KEY", "TOKEN"])
    assert world.store.secrets(both.json["id"]) == {"KEY": "k", "TOKEN": "new"}
    assert b"hunter2" not in both.body and b"new" not in both.body


def test_the_client_repeats_a_job_with_the_keys_of_trackers(world: ServiceWorld) -> None:
    environment = {"JUPYTER_GPU_QUOTA_TRACKER_VARIABLES": "WANDB_*", "WANDB_API_KEY": "k", "WANDB_MODE": "offline"}
    client = Client(f"http://127.0.0.1:{world.port}", "token-bob", environment=environment)
    old = client.submit("python train.py", dir=None)
    assert (old.view.secret_names, client.job(old.id).variables) == (["WANDB_API_KEY"], {"WANDB_MODE": "offline"})
    assert world.store.secrets(client.rerun(old.id).id) == {"WANDB_API_KEY": "k"}
    other = client.submit("python train.py", dir=None, secrets={"TOKEN": "t"})
    with pytest.raises(Refused, match="TOKEN"):
        client.rerun(other.id)
    assert client.rerun(other.id, secrets={"TOKEN": "t"}).view.secret_names == ["TOKEN", "WANDB_API_KEY"]


# --- listing ----------------------------------------------------------------------------------------------------------
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


# --- logs and outputs -------------------------------------------------------------------------------------------------
def running(world: ServiceWorld, **request: object) -> tuple[str, RotatingLog]:
    job = world.submit(**request)["id"]
    world.step()
    world.see_running(job)
    return job, RotatingLog(rank_paths(str(world.state_dir), job, 1, 0).log, 1 << 20)


def test_a_log_is_read_on_from_where_one_was(world: ServiceWorld) -> None:
    job, log = running(world)
    log.write("zwölf\n".encode())
    first = world.get(f"jobs/{job}/logs")
    assert (first.body.decode(), first.headers["content-type"]) == ("zwölf\n", "text/plain; charset=utf-8")
    log.write(b"next\n")
    assert world.get(f"jobs/{job}/logs?offset={first.headers['x-next-offset']}").body == b"next\n"
    assert world.get(f"jobs/{job}/logs?limit=3").body == b"zw"


def test_a_followed_log_is_streamed_and_ends_with_the_job(world: ServiceWorld) -> None:
    job, log = running(world)
    log.write(b"one\n")
    with world.stream(f"jobs/{job}/logs?follow=1") as events:
        assert next(events)[1]["text"] == "one\n"
        log.write(b"two\n")
        assert next(events) == ("log", {"begins": 4, "offset": 8, "attempt": 1, "text": "two\n"})
        world.see_running(job, ended_at=world.clock(), exit_status=0, tree_gone=True)
        assert next(events) == ("end", {"state": "succeeded", "attempt": 1})


def test_a_follower_who_loses_the_project_stops_receiving_the_log(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.api.access.people.RECHECK_S", 0.2)
    job, log = running(world)
    with world.stream(f"jobs/{job}/logs?follow=1", "olga") as events:
        log.write(b"0\n")
        next(events)
        world.apply(QUOTA.replace("bob, olga", "bob"))
        world.run(world.services.store_view.refresh())
        for number in range(1, 200):
            log.write(f"{number}\n".encode())
            if next(events, None) is None:
                return
    pytest.fail("a stream that nobody may read any more went on")


def archived(world: ServiceWorld, job: str) -> dict[str, bytes]:
    """The files of the archive of a job's outputs."""
    given = world.get(f"jobs/{job}/outputs?archive=1")
    assert (given.status, given.headers["content-type"]) == (200, "application/gzip")
    assert given.headers["content-disposition"] == f"attachment; filename*=UTF-8''{job}.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(given.body), mode="r:gz") as tar:
        entries = tar.getmembers()
        assert all(entry.isreg() for entry in entries)
        return {entry.name: tar.extractfile(entry).read() for entry in entries}  # type: ignore[union-attr]


def test_outputs_are_one_archive_without_links(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    assert archived(world, job) == {}
    long_name = "n" * 120 + "/" + "é" * 60
    files = {"a.txt": b"a", "empty": b"", long_name: b"b" * 512, "big/weights": os.urandom(3 << 20)}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    assert archived(world, job) == files
    assert world.get(f"jobs/{job}/outputs?archive=1", "patty").status == 404


def test_an_archive_without_its_end_is_not_taken_for_a_whole_one(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(os.urandom(2 << 20))
    stated = logs.os.fstat

    def longer(fd: int) -> object:
        return SimpleNamespace(st_size=stated(fd).st_size + 1)

    monkeypatch.setattr(logs, "os", SimpleNamespace(fstat=longer))
    with pytest.raises(http.client.IncompleteRead):
        world.get(f"jobs/{job}/outputs?archive=1")


def test_an_archive_of_too_many_files_is_refused(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()["id"]
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    folder.mkdir(parents=True)
    for name in "abc":
        (folder / name).touch()
    monkeypatch.setattr(logs, "MAX_OUTPUTS", 2)
    refused = world.get(f"jobs/{job}/outputs?archive=1")
    assert (refused.status, refused.json["reason"]) == (413, "too_many_files")


def test_outputs_are_listed_and_given_as_downloads(world: ServiceWorld) -> None:
    job, _ = running(world)
    folder = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "a b.html").write_text("<script>alert(1)</script>")
    (folder / "link").symlink_to("/etc/passwd")
    assert [each["path"] for each in world.get(f"jobs/{job}/outputs").json["items"]] == ["plots/a b.html"]
    given = world.get(f"jobs/{job}/outputs/plots/a%20b.html")
    assert given.body == b"<script>alert(1)</script>"
    assert given.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in given.headers["content-security-policy"]
    for trick in ("link", "../status.json", "plots/../../x", "%2fetc%2fpasswd"):
        assert world.get(f"jobs/{job}/outputs/{trick}").status == 404, trick


@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(["python", "train.py"], "python train.py", id="plain"),
        pytest.param(["sh", "-c", "rm -rf /; echo <b>"], "sh -c rm -rf /; echo b", id="with signs a name cannot hold"),
        pytest.param(
            ["python", "-m", "jupyter_gpu_quota.notebook_job", "train.ipynb", "-p", "n", "3"],
            "train.ipynb -p n 3",
            id="a notebook",
        ),
        pytest.param(["…"], "job", id="nothing that a name can hold"),
        pytest.param(["x" * 500], "x" * 59 + "…", id="one long word"),
        pytest.param(
            ["python", "train.py", "--data", "/data/digits-of-everybody", "--epochs", "60"],
            "python train.py --data /data/digits-of-everybody --epochs 60"[:60],
            id="exactly as long as a name may be",
        ),
        pytest.param(
            ["python", "train.py", "--data=/data/digits-of-all-people", "--lr", "0.1", "--epochs", "60"],
            "python train.py --data=/data/digits-of-all-people --lr 0.1 …"[:60],
            id="cut before the figure that would be another one",
        ),
    ],
)
def test_a_job_without_a_name_is_called_by_its_command(command: list[str], name: str) -> None:
    assert name_of(command) == name


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


def test_a_time_limit_above_the_maximum_is_refused_with_the_maximum(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        text = (
            world.get("quota", "ann")
            .json["text"]
            .replace("uses: [training]", "uses: [training], maximum: {time_limit: 7d}")
        )
        assert world.call("PUT", "quota", "ann", {"text": text}).status == 200
        refused = world.post("jobs", "bob", {"command": ["x"], "time_limit": "900d"})
        assert (refused.status, refused.json["reason"]) == (400, "too_large")
        assert refused.json["message"] == "time_limit was '900d'; the maximum of pool train is 7d. Nothing was stored."
        assert world.post("jobs", "bob", {"command": ["x"], "time_limit": "7d"}).status == 201
