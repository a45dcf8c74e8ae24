"""Jobs are submitted: defaults, charges, repeated requests, dry runs, secrets and bundles."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.access.work_in_progress import DIRECTORY_CHECKS
from jupyter_gpu_quota.api.handlers import jobs
from jupyter_gpu_quota.api.handlers.submission import name_of
from jupyter_gpu_quota.backends.local.readers import LocalSubmissionChecks
from jupyter_gpu_quota.bundle import pack
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import until


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


# --- a file system that does not answer -------------------------------------------------------------------------------
LIVE = {"command": ["x"], "live": True, "directory": "on-nfs"}


@pytest.fixture
def answers(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until this is set, no check of a directory ends."""
    made = threading.Event()

    def held(checks: LocalSubmissionChecks, user: str | None, directory: str) -> str:
        made.wait()
        return f"/home/{directory}"

    monkeypatch.setattr(LocalSubmissionChecks, "live_directory", held)
    monkeypatch.setattr(jobs, "CHECK_TIMEOUT_S", 0.01)
    yield made
    made.set()


def test_a_directory_without_an_answer_is_refused_and_other_jobs_are_queued(
    world: ServiceWorld, answers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(DIRECTORY_CHECKS.most):
        refused = world.post("jobs", "bob", LIVE)
        assert (refused.status, refused.json["reason"]) == (503, "not_checked")
        assert "The file system of the directory did not answer within 0 s" in refused.json["message"]
    refused = world.post("jobs", "bob", LIVE)
    assert (refused.status, refused.json["reason"]) == (429, "too_many_directory_checks")
    assert world.post("jobs", "olga", LIVE).json["reason"] == "not_checked"
    assert world.submit("bob")["state"] == "queued"
    answers.set()
    until(lambda: not world.services.in_progress._counts)
    monkeypatch.setattr(jobs, "CHECK_TIMEOUT_S", 60.0)
    assert world.submit("bob", **LIVE)["directory"] == "/home/on-nfs"


# --- bundles ----------------------------------------------------------------------------------------------------------
def send_bundle(world: ServiceWorld, folder: Path, who: str = "bob") -> str:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text("print('hello')\n")
    digest = pack(folder / "code", folder / "code.tar.gz").digest
    answer = world.call("PUT", f"bundles/{digest}", who, raw=(folder / "code.tar.gz").read_bytes())
    assert answer.status in (200, 201), answer.body
    return digest


def test_a_bundle_is_uploaded_once_and_usable_only_by_its_owner(world: ServiceWorld, tmp_path: Path) -> None:
    digest = send_bundle(world, tmp_path)
    assert send_bundle(world, tmp_path) == digest
    assert world.submit(bundle=digest, directory="sub/folder")["bundle"] == digest
    guessed = world.post("jobs", "patty", {"command": ["x"], "bundle": digest})
    assert (guessed.status, guessed.json["reason"]) == (404, "no_such_bundle")
    assert world.call("HEAD", f"bundles/{digest}", "patty").status == 404
    assert world.call("HEAD", f"bundles/{digest}", "bob").status == 200


def test_the_next_sweep_keeps_the_bundle_of_a_job_that_is_submitted(world: ServiceWorld, tmp_path: Path) -> None:
    digest = send_bundle(world, tmp_path)
    file = world.services.bundles.path(digest)
    os.utime(file, (1, 1))
    assert world.submit(bundle=digest)["bundle"] == digest
    assert world.services.bundles.sweep(set()) == []
    file.unlink()
    answer = world.post("jobs", "bob", {"command": ["x"], "bundle": digest})
    assert (answer.status, answer.json["reason"]) == (404, "no_such_bundle")


def test_an_interrupted_bundle_upload_leaves_nothing(world: ServiceWorld) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", world.port)) as raw:
        head = f"PUT {world.path('bundles/' + 'a' * 64)} HTTP/1.1\r\nHost: x\r\nAuthorization: token token-bob\r\n"
        raw.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b"x" * 5000)
        incoming = Path(world.services.bundles.directory) / "incoming"
        until(lambda: any(incoming.iterdir()))
    until(lambda: not any(incoming.iterdir()))
