"""Connections: the hub's proxy sends requests of all users on the same ones, so no request may break the next."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.requests import resource
from tests.api.world import PREFIX, ServiceWorld, service_world
from tests.patience import PATIENCE_S, until

BOB = {"Authorization": "token token-bob"}
BUNDLE = "bundles/" + "a" * 64


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("connections")) as world:
        yield world


@pytest.fixture
def connection(world: ServiceWorld) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection("127.0.0.1", world.port, timeout=PATIENCE_S)
    yield found
    found.close()


def send(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> http.client.HTTPResponse:
    connection.request(method, f"{PREFIX}api/v1/{path}", body=body, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer


@pytest.mark.parametrize(
    ("status", "method", "path", "headers", "body"),
    [
        pytest.param(401, "GET", "jobs", {}, None, id="nobody"),
        pytest.param(401, "POST", "jobs", {"Authorization": "token wrong"}, b"x" * 70_000, id="an unknown token"),
        pytest.param(401, "PUT", BUNDLE, {}, b"x" * 700_000, id="a bundle of nobody"),
        pytest.param(403, "PUT", "quota", BOB, b"{}", id="no admin"),
        pytest.param(404, "GET", "nothing", BOB, None, id="no such path"),
        pytest.param(405, "DELETE", "me", BOB, None, id="another method"),
        pytest.param(400, "GET", "jobs?nonsense=1", BOB, None, id="an unknown parameter"),
        pytest.param(400, "POST", "jobs", BOB, b"{", id="no JSON"),
        pytest.param(413, "POST", "jobs", BOB, b"x" * 2_000_000, id="too large"),
    ],
)
def test_a_refused_request_leaves_its_connection_to_the_next(
    connection: http.client.HTTPConnection, status: int, method: str, path: str, headers: dict[str, str],
    body: bytes | None,
) -> None:  # fmt: skip
    refused = send(connection, method, path, headers, body)
    assert (refused.status, refused.headers["Connection"]) == (status, None)
    used = connection.sock
    assert send(connection, "GET", "me", BOB).status == 200
    assert connection.sock is used


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        pytest.param("POST", "jobs", {"Content-Length": str(17 << 20)}, 413, id="a body far too large"),
        pytest.param("PUT", BUNDLE, {"Content-Length": str(17 << 20)}, 401, id="a large bundle of nobody"),
        pytest.param("POST", "jobs", {"Content-Length": "5, 5"}, 400, id="two lengths"),
        pytest.param("POST", "jobs", {"Content-Length": "5, 6"}, 400, id="two different lengths"),
        pytest.param("POST", "jobs", {"Content-Length": "-5"}, 400, id="a negative length"),
        pytest.param("POST", "jobs", {"Content-Length": "0x5"}, 400, id="a length in hexadecimal digits"),
        pytest.param("FETCH", "jobs", {}, 405, id="a method that does not exist"),
    ],
)
def test_a_connection_that_is_closed_is_announced(
    world: ServiceWorld, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"{method} {PREFIX}api/v1/{path} HTTP/1.1\r\nHost: x\r\n{lines}\r\nhello".encode())
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        assert json.loads(answer.read())["status"] == answer.status == status
        assert answer.headers["Connection"] == "close"


def test_answers_state_how_long_an_idle_connection_lasts(connection: http.client.HTTPConnection) -> None:
    timeout = send(connection, "GET", "me", BOB).headers["Keep-Alive"]
    assert int(timeout.removeprefix("timeout=")) < resource.IDLE_S


@pytest.mark.parametrize(
    "head", ["", "POST {} HTTP/1.1\r\nHost: x\r\n", "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_connection_on_which_a_request_does_not_arrive_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(resource, "BODY_GRACE_S", 0.2)
    monkeypatch.setattr("jupyter_gpu_quota.api.main.IDLE_S", 0.2)
    with (
        service_world(tmp_path) as world,
        socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE_S) as raw,
    ):
        raw.sendall(head.format(f"{PREFIX}api/v1/jobs").encode())
        assert raw.recv(1) == b""


def test_an_upload_that_its_sender_ends_leaves_no_request(world: ServiceWorld) -> None:
    async def requests() -> int:
        return sum("_execute" in repr(task.get_coro()) for task in asyncio.all_tasks())

    head = f"PUT {world.path('bundles/' + '0' * 64)} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
    with socket.create_connection(("127.0.0.1", world.port)) as sender:
        sender.sendall(f"{head}Authorization: token token-bob\r\n\r\n".encode() + b"part")
        until(lambda: sum(world.services.arriving.values()))
        assert world.run(requests()) == 1
    until(lambda: not world.run(requests()))
