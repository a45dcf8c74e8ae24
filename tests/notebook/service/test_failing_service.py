"""A service that is away, breaks off or answers something else; a browser that leaves; a server without a service."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_gpu_quota
from jupyter_gpu_quota.backends.rendering.variables import SECRET_HEADER, SECRET_VARIABLE, SHARE_VARIABLE
from tests.notebook.jupyter_world import TOKEN, JupyterServer, free_port, jupyter_server
from tests.notebook.service.raw_service import HANG, RawService, answer, beginning, raw_service
from tests.patience import until

EVENTS = "text/event-stream"
SECRET = "nb-1.sliceofann"


@pytest.fixture(scope="module")
def raw() -> Iterator[RawService]:
    with raw_service() as made:
        yield made


@pytest.fixture(scope="module")
def server(raw: RawService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    folder = tmp_path_factory.mktemp("server")
    with jupyter_server(folder, raw.port, **{SHARE_VARIABLE: None, SECRET_VARIABLE: SECRET}) as made:
        yield made
    log = (folder / "server.log").read_text()
    assert TOKEN not in log and SECRET not in log and "Traceback" not in log and "never retrieved" not in log, log


def ask(server: JupyterServer, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    found = server.send(method, f"/gpu-quota/{path}", body)
    text = found.read()
    assert not any(hidden in text + str(found.headers).encode() for hidden in (TOKEN.encode(), SECRET.encode()))
    return found.status, json.loads(text or b"null")


# --- answers of something else --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "parts"),
    [
        pytest.param("html", [answer("503 Away", "text/html", b"<h1>away</h1>")], id="the page of a proxy"),
        pytest.param("page", [answer("200 OK", "text/html", b"<script>alert(1)</script>")], id="any page"),
        pytest.param("login", [answer("302 Found", "text/html", b"", "Location: /api/v1/followed")], id="a redirect"),
        pytest.param("moved", [answer("307 Go", "application/json", b"{}", "Location: /x")], id="a redirect with JSON"),
        pytest.param("cut", [beginning("application/json", b'{"items": [', 1000)], id="an answer that breaks off"),
        pytest.param("none", [b"HTTP/1.1 "], id="no answer"),
        pytest.param("noise", [b"\x00\xff not HTTP\r\n\r\n"], id="no HTTP"),
        pytest.param("long", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n"], id="endless headers"),
    ],
)
def test_only_answers_of_the_service_are_passed(
    raw: RawService, server: JupyterServer, path: str, parts: list[bytes]
) -> None:
    raw.answers[path] = parts
    status, found = ask(server, f"api/{path}")
    assert (status, found["status"], found["reason"]) == (503, 503, "service_unavailable")
    assert "Jobs continue to run" in found["message"] and "followed" not in raw.paths()


def test_a_change_without_an_answer_may_have_been_stored(raw: RawService, server: JupyterServer) -> None:
    raw.answers["jobs"] = [b"HTTP/1.1 "]
    status, found = ask(server, "api/jobs", "POST", b"{}")
    assert (status, found["reason"], "may have been stored" in found["message"]) == (503, "service_unavailable", True)


def test_only_the_named_headers_pass_in_both_directions(raw: RawService, server: JupyterServer) -> None:
    hidden = ("Set-Cookie: a=b", "Location: /x", "X-Evil: 1", "Access-Control-Allow-Origin: *")
    raw.answers["me"] = [answer("200 OK", "application/json", b"{}", 'ETag: "7"', "Retry-After: 3", *hidden)]
    sent = {"Cookie": "c=d", "X_Secret": "s", "If_None_Match": '"6"', "Accept_Encoding": "gzip", "Origin": server.url}
    found = server.send("GET", "/gpu-quota/api/me", **sent)
    assert (found.status, found.headers["ETag"], found.headers["Retry-After"], found.read()) == (200, '"7"', "3", b"{}")
    assert not {"Location", "X-Evil"} & set(found.headers.keys())
    assert "a=b" not in str(found.headers) and "*" not in found.headers.get_all("Access-Control-Allow-Origin", [])
    lines = dict(line.split(": ", 1) for line in raw.head_of("me").strip().split("\r\n")[1:])
    assert (lines.pop("Authorization"), lines.pop("If-None-Match")) == (f"token {TOKEN}", '"6"')
    assert lines.pop(SECRET_HEADER.title()) == SECRET
    assert lines.keys() == {"Host", "Connection", "Content-Type", "User-Agent"}


# --- streams ---------------------------------------------------------------------------------------------------------
def test_the_connection_to_the_service_is_closed_with_the_browsers(raw: RawService, server: JupyterServer) -> None:
    raw.answers["events"] = [beginning(EVENTS, b"event: changed\ndata: {}\n\n"), HANG]
    found = server.send("GET", "/gpu-quota/api/events")
    assert found.readline() == b"event: changed\n"
    assert "events" not in raw.closed
    found.close()
    until(lambda: "events" in raw.closed)


def test_a_request_without_an_answer_is_closed_with_the_browsers(raw: RawService, server: JupyterServer) -> None:
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", "/gpu-quota/api/waits", headers={"Authorization": f"token {'t' * 20}"})
    until(lambda: "waits" in raw.paths())
    connection.close()
    until(lambda: "waits" in raw.closed)


def test_a_stream_ends_when_the_service_dies(raw: RawService, server: JupyterServer) -> None:
    raw.answers["events"] = [beginning(EVENTS, b"event: changed\ndata: {}\n\n", 1000)]
    assert server.send("GET", "/gpu-quota/api/events").read() == b"event: changed\ndata: {}\n\n"


def test_a_file_that_breaks_off_is_not_taken_for_a_whole_one(raw: RawService, server: JupyterServer) -> None:
    raw.answers["jobs/1/outputs/model"] = [beginning("application/octet-stream", b"half", 1000)]
    found = server.send("GET", "/gpu-quota/api/jobs/1/outputs/model")
    assert found.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    with pytest.raises(http.client.IncompleteRead):
        found.read()


def test_a_large_file_passes_whole(raw: RawService, server: JupyterServer) -> None:
    body = bytes(range(256)) * (1 << 16)
    raw.answers["jobs/1/outputs/large"] = [answer("200 OK", "application/octet-stream", body)]
    assert server.send("GET", "/gpu-quota/api/jobs/1/outputs/large").read() == body


# --- no service ----------------------------------------------------------------------------------------------------
def test_without_a_listener_nothing_was_stored(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with jupyter_server(tmp_path, free_port()) as server:
        assert ask(server, "api/jobs")[1]["reason"] == "service_unavailable"
        status, found = ask(server, "api/jobs", "POST", b"{}")
        assert (status, "Nothing was stored" in found["message"]) == (503, True)
        body = json.dumps({"request": {"command": ["true"]}, "folder": "work"}).encode()
        status, found = ask(server, "jobs", "POST", body)
        assert (status, found["reason"], "No job was queued" in found["message"]) == (503, "service_unavailable", True)
        assert ask(server, "status")[1]["configured"] is True


def test_a_server_of_another_hub_has_the_routes_and_says_so(tmp_path: Path) -> None:
    none = dict.fromkeys(("JUPYTER_GPU_QUOTA_URL", "JUPYTERHUB_API_TOKEN", SHARE_VARIABLE))
    with jupyter_server(tmp_path, 1, **none) as server:
        version = jupyter_gpu_quota.__version__
        state = {"configured": False, "notebook": None, "version": version, "project": None}
        assert ask(server, "status") == (200, state)
        for path, method, body in (("api/jobs", "GET", None), ("jobs", "POST", b"{}"), ("api/events", "GET", None)):
            status, found = ask(server, path, method, body)
            assert (status, found["reason"]) == (404, "not_configured")
        until(lambda: server.send("GET", "/gpu-quota/idle").status == 200)
        assert ask(server, "idle") == (200, {"idle": None, "waiting": [], "shut_down": []})
        assert ask(server, "keep", "POST", b"{}")[1]["reason"] == "no_slice"
        assert server.kernels() == set()
