"""A browser's requests through a real Jupyter server to the real service, with its database."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import jupyter_gpu_quota
from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from tests.api.world import ServiceWorld, service_world
from tests.notebook.jupyter_world import SERVER_TOKEN, JupyterServer, jupyter_server
from tests.patience import until

TOKEN = "token-bob"
"""The server's token of the hub, which no answer may have."""


@dataclass(frozen=True)
class Lab:
    """A Jupyter server of bob, and the service that it sends requests to."""

    world: ServiceWorld
    server: JupyterServer
    folder: Path

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        sent = None if body is None else json.dumps(body).encode()
        answer = self.server.send(method, f"/gpu-quota/{path}", sent, **headers)
        found = answer.read()
        assert TOKEN not in str(answer.headers) + found.decode(errors="replace")
        is_json = answer.headers["Content-Type"] == "application/json" and found
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, json.loads(found) if is_json else found

    def refusal(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        status, _, found = self.ask(method, path, body, **headers)
        assert (found["status"], bool(found["message"])) == (status, True)
        return status, found["reason"]

    def streams(self) -> int:
        return sum(self.world.services.streams._counts.values())

    def submit(self, folder: str, **request: object) -> tuple[int, Any]:
        asked = {"command": ["python", "train.py"], "gpu": "1", **request}
        status, _, found = self.ask("POST", "jobs", {"request": asked, "folder": folder})
        return status, found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    (folder / "home").mkdir()
    share = json.dumps({"notebook": "nb-1", "gpu_milli": 125, "memory_mib": 2_048})
    variables = {
        "JUPYTERHUB_API_TOKEN": TOKEN, "JUPYTER_GPU_QUOTA_PROJECT": "vision", SHARE_VARIABLE: share,
        "HOME": str(folder / "home"),
    }  # fmt: skip
    with service_world(folder, bundle_limit_mib=1) as world:
        world.add("bob", scopes=("read", "submit"), groups=[])
        with jupyter_server(folder / "home", world.port, **variables) as server:
            yield Lab(world, server, folder / "home")
    assert TOKEN not in (folder / "home" / "server.log").read_text()


# --- requests -------------------------------------------------------------------------------------------------------
def test_the_state_of_the_server(lab: Lab) -> None:
    status, _, found = lab.ask("GET", "status")
    assert (status, found) == (
        200,
        {"configured": True, "notebook": "nb-1", "version": jupyter_gpu_quota.__version__, "project": "vision"},
    )


def test_a_job_is_queued_changed_and_read(lab: Lab) -> None:
    status, _, job = lab.ask("POST", "api/jobs", {"command": ["true"]})
    assert (status, job["user"], job["state"]) == (201, "bob", "queued")
    assert lab.ask("POST", f"api/jobs/{job['id']}/actions/hold")[2]["state"] == "held"
    status, _, found = lab.ask("GET", "api/jobs?mine=1&1790000000000", If_None_Match="")
    assert (status, job["id"] in {each["id"] for each in found["items"]}) == (200, True)
    assert lab.ask("GET", f"api/jobs/{job['id']}/logs")[1]["x-next-offset"] == "0"


def test_an_unchanged_answer_is_304_without_a_body(lab: Lab) -> None:
    status, headers, _ = lab.ask("GET", "api/pools")
    again, _, body = lab.ask("GET", "api/pools", If_None_Match=headers["etag"])
    assert (status, again, body) == (200, 304, b"")


def test_a_refusal_of_the_service_passes_with_its_reason(lab: Lab) -> None:
    assert lab.refusal("GET", "api/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV") == (404, "not_found")
    assert lab.refusal("POST", "api/jobs", {"command": ["true"], "gpu": "x"})[0] == 400
    assert lab.refusal("GET", "api/quota/revisions?colour=red") == (400, "invalid")
    assert lab.refusal("POST", "api/quota/preview", {"text": ""}) == (403, "not_allowed")
    assert lab.refusal("DELETE", "api/jobs") == (405, "method_not_allowed")


def test_a_rate_limit_passes_with_its_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.world.services.change_limit, "_burst_ms", 0.0)
    status, headers, found = lab.ask("POST", "api/jobs", {"command": ["true"]})
    assert (status, found["reason"], int(headers["retry-after"]) > 0) == (429, "too_often", True)


@pytest.mark.parametrize("path", ["../../hub/api/users", "jobs/%2e%2e/%2e%2e/ready", "http://127.0.0.1:1/x", "/x", ""])
def test_a_path_that_leads_elsewhere_never_reaches_the_service(lab: Lab, path: str) -> None:
    assert lab.refusal("GET", f"api/{path}") == (400, "bad_path")


def test_a_body_above_the_limit_is_refused(lab: Lab) -> None:
    assert lab.refusal("POST", "api/jobs", {"command": ["x" * (1 << 20)]}) == (413, "too_large")


def test_a_token_of_this_server_in_the_query_is_not_sent_to_the_service(lab: Lab) -> None:
    answer = lab.server.send("GET", f"/gpu-quota/api/me?token={SERVER_TOKEN}", token="")
    assert (answer.status, json.loads(answer.read())["name"]) == (200, "bob")


def test_headers_of_the_browser_are_not_sent(lab: Lab) -> None:
    status, headers, _ = lab.ask("GET", "api/me", Cookie="a=b", X_Forwarded_For="10.0.0.1", Accept_Encoding="gzip")
    assert status == 200 and "content-encoding" not in headers


@pytest.mark.parametrize("path", ["status", "api/me", "api/events", "jobs", "notes"])
def test_a_user_without_a_login_is_refused(lab: Lab, path: str) -> None:
    method = "POST" if path in ("jobs", "notes") else "GET"
    asked = len(lab.world.hub.asked)
    for token in ("", "wrong"):
        answer = lab.server.send(method, f"/gpu-quota/{path}", b"{}" if method == "POST" else None, token=token)
        assert (answer.status, TOKEN in answer.read().decode()) == (403, False)
    assert len(lab.world.hub.asked) == asked


def test_a_change_from_a_browser_needs_its_xsrf_token(lab: Lab) -> None:
    page = lab.server.send("GET", f"/login?token={SERVER_TOKEN}", token="")
    cookies = "; ".join(each.partition(";")[0] for each in page.headers.get_all("Set-Cookie") or [])
    xsrf = next((part[6:] for part in cookies.split("; ") if part.startswith("_xsrf=")), "")
    body = b'{"command": ["true"], "dry_run": true}'
    refused = lab.server.send("POST", "/gpu-quota/api/jobs", body, token="", Cookie=cookies)
    assert (refused.status, "_xsrf" in refused.read().decode()) == (403, True)
    if xsrf:
        sent = lab.server.send("POST", "/gpu-quota/api/jobs", body, token="", Cookie=cookies, X_XSRFToken=xsrf)
        assert (sent.status, "starts_now" in sent.read().decode()) == (200, True)


def test_background_requests_are_no_activity_of_the_user_and_a_change_is(lab: Lab) -> None:
    def last() -> str:
        return str(lab.server.call("GET", "/api/status?no_track_activity=1")[1]["last_activity"])

    until(lambda: lab.server.send("GET", "/gpu-quota/idle?no_track_activity=1").status == 200)
    before = last()
    lab.ask("GET", "idle")
    lab.ask("GET", "api/jobs")
    lab.ask("GET", "status")
    assert lab.ask("POST", "api/jobs", {"command": ["true"], "dry_run": True})[0] == 200
    assert lab.ask("POST", "jobs", {"request": {"command": ["true"], "dry_run": True}})[0] == 200
    assert lab.ask("POST", "notes", {"request": {"command": ["true"]}})[0] == 200
    assert last() == before
    lab.ask("POST", "api/jobs", {"command": ["true"]})
    assert last() > before


# --- streams --------------------------------------------------------------------------------------------------------
def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data" and name != "beat":
            yield name, json.loads(value)


def test_events_pass_as_they_happen_and_the_stream_ends_with_the_browser(lab: Lab) -> None:
    before = lab.streams()
    answer = lab.server.send("GET", "/gpu-quota/api/events", Accept_Encoding="gzip")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    events = _events(answer)
    assert next(events)[0] == "changed"
    assert lab.streams() == before + 1
    job = lab.world.submit("bob")["id"]
    assert any(job in {each["id"] for each in data["jobs"]} for _, data in events)
    answer.close()
    until(lambda: lab.streams() == before)


def test_a_followed_log_ends_with_its_job(lab: Lab) -> None:
    job = lab.world.submit("bob")["id"]
    answer = lab.server.send("GET", f"/gpu-quota/api/jobs/{job}/logs?follow=1")
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    lab.world.post(f"jobs/{job}/actions/cancel")
    assert list(_events(answer)) == [("end", {"state": "cancelled", "attempt": 0})]


def test_a_stream_ends_when_the_service_stops_and_another_continues_from_its_last_event(lab: Lab) -> None:
    answer = lab.server.send("GET", "/gpu-quota/api/events")
    lines = iter(answer)
    seen = next(line for line in lines if line.startswith(b"id: ")).decode()[4:].strip()
    lab.world.services.streams.close()
    try:
        for _ in lines:
            pass
    finally:
        lab.world.services.streams._closed.clear()
    job = lab.world.submit("bob")["id"]
    again = lab.server.send("GET", "/gpu-quota/api/events", Last_Event_ID=seen)
    name, data = next(_events(again))
    assert (name, job in {each["id"] for each in data["jobs"]}) == ("changed", True)
    again.close()
    assert lab.refusal("GET", "api/events", Last_Event_ID="x") == (400, "invalid")


# --- a folder as a job ------------------------------------------------------------------------------------------------
def test_a_folder_becomes_a_job_with_its_bundle(lab: Lab) -> None:
    work = lab.folder / "my work"
    work.mkdir()
    (work / "train.py").write_text("print(1)")
    status, job = lab.submit("my work")
    assert (status, job["state"], job["project"], len(job["bundle"])) == (201, "queued", "vision", 64)
    assert lab.submit("my work/")[1]["bundle"] == job["bundle"]
    assert lab.world.services.bundles.touch(job["bundle"])


def test_a_job_has_notes_on_the_files_that_were_not_sent(lab: Lab) -> None:
    work = lab.folder / "left\u3000out"  # a folder's name may have such a space
    work.mkdir()
    (work / "train.py").write_text("print(1)")
    (work / "link").symlink_to("train.py")
    (work / "weights.pt").touch()
    (work / ".gitignore").write_text("*.pt")
    status, job = lab.submit(work.name)
    assert (status, job["state"], job["notes"][0]) == (201, "queued", "link is a link, and was left out")
    assert job["notes"][1].startswith("Not sent, because .gitignore names them: weights.pt.")
    assert "notes" not in lab.submit(work.name, dry_run=True)[1]


def test_a_live_job_runs_in_the_folder_and_nothing_is_packed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.folder / "live").mkdir()
    monkeypatch.setenv("HOME", str(lab.folder))  # of the service: it has the home of the notebook
    status, job = lab.submit("live", live=True)
    assert (status, job["bundle"], job["directory"]) == (201, None, f"{lab.folder}/live")
    monkeypatch.setenv("HOME", str(lab.folder.parent))  # jobs have another home than the notebook
    assert "There is no folder" in lab.submit("live", live=True)[1]["message"]


def test_a_dry_run_packs_nothing(lab: Lab) -> None:
    status, found = lab.submit("no such folder", dry_run=True)
    assert (status, found["starts_now"] in (True, False)) == (200, True)


@pytest.mark.parametrize(
    ("command", "folder", "said"),
    [
        pytest.param(["python", "other.py"], "noted", "other.py is not in the folder", id="no such script"),
        pytest.param(
            ["train.ipynb", "-p", "a", "1"], "noted", "train.ipynb is not in the folder", id="no such notebook"
        ),
        pytest.param(["python", "train.py"], "nowhere", "There is no folder 'nowhere'", id="no such folder"),
        pytest.param(["python", "train.py"], "noted", "", id="the script is there"),
        pytest.param(["python", 3], "noted", "", id="no command"),
        pytest.param([], "noted", "", id="an empty command"),
    ],
)
def test_the_notes_name_files_that_the_job_would_not_find(
    lab: Lab, command: list[object], folder: str, said: str
) -> None:
    (lab.folder / "noted").mkdir(exist_ok=True)
    (lab.folder / "noted" / "train.py").write_text("")
    status, _, found = lab.ask("POST", "notes", {"request": {"command": command}, "folder": folder})
    assert (status, [note[: len(said)] for note in found["notes"]]) == (200, [said] if said else [])
    assert lab.refusal("POST", "notes", []) == (400, "invalid")


def test_a_job_that_is_not_submitted_says_why(lab: Lab) -> None:
    (lab.folder / "small").mkdir()
    (lab.folder / "file.py").write_text("")
    rows = [
        ("small", {"gpu": "x"}, 400, "not_an_amount"), ("small", {"colour": "red"}, 400, "invalid"),
        ("small", {"project": "speech"}, 403, "no_such_project"), ("small", {"command": []}, 400, "invalid"),
        ("missing", {}, 404, "no_such_folder"), ("file.py", {}, 404, "no_such_folder"),
        ("../..", {}, 400, "bad_path"), ("small/../../x", {}, 400, "bad_path"), ("small\0", {}, 400, "bad_path"),
    ]  # fmt: skip
    for folder, request, status, reason in rows:
        answered, found = lab.submit(folder, **request)
        assert (answered, found["reason"], found["status"]) == (status, reason, status), (folder, found)
    for body in (b"", b"[]", b"{", b'{"request": 1}', b'{"request": {}, "folder": 3}', b"[" * 100_000):
        answer = lab.server.send("POST", "/gpu-quota/jobs", body)
        assert (answer.status, json.loads(answer.read())["reason"]) == (400, "invalid")


def test_an_absolute_folder_is_one_below_the_root(lab: Lab) -> None:
    assert lab.submit("/etc")[1]["reason"] == "no_such_folder"


def test_a_folder_above_the_limit_passes_the_refusal_on(lab: Lab) -> None:
    (lab.folder / "huge").mkdir()
    (lab.folder / "huge" / "weights.bin").write_bytes(os.urandom(2 << 20))
    status, found = lab.submit("huge")
    assert (status, found["reason"], ".gpuquotaignore" in found["message"]) == (413, "too_large", True)
