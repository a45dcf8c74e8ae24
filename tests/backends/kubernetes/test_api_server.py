"""Requests to an API server that is a small web server here: which failures delay later requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from jupyter_gpu_quota.backends.kubernetes.client import api_server
from jupyter_gpu_quota.backends.kubernetes.client.api_server import (
    AT_ONCE,
    CREATES_AT_ONCE,
    LATER_AT_ONCE,
    ApiServer,
    Forbidden,
    LogTimedOut,
    Refused,
    RequestFailed,
    Unavailable,
    failure,
)
from tests.backends.kubernetes.test_proxy import kubeconfig
from tests.patience import until_in_loop

SLOW_PARTS, TIMEOUT_S = 5, 1.0


async def _well(request: web.Request) -> web.Response:
    return web.json_response({"kind": "Pod"})


async def _ill(request: web.Request) -> web.Response:
    return web.json_response({"message": "no answer of the kubelet"}, status=503)


async def _log(request: web.Request) -> web.Response:
    return web.Response(body=b"0123456789")


async def _slow_log(request: web.Request) -> web.StreamResponse:
    """A log that takes longer than a request may be silent, and is never silent for so long."""
    answer, begun = web.StreamResponse(), time.monotonic()
    await answer.prepare(request)
    for number in range(SLOW_PARTS):
        await answer.write(b"ab")
        next_at = begun + (number + 1) * 1.5 * TIMEOUT_S / SLOW_PARTS
        await until_in_loop(lambda at=next_at: time.monotonic() >= at)  # type: ignore[misc]
    return answer


async def _log_that_stops(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"ab")
    await asyncio.Event().wait()  # until the server ends
    return answer


async def _slow_webhook(request: web.Request) -> web.Response:
    """A creation that takes longer than another request may take."""
    until = time.monotonic() + 1.5 * TIMEOUT_S
    await until_in_loop(lambda: time.monotonic() >= until)
    return await _well(request)


async def _hung_webhook(request: web.Request) -> web.Response:
    request.app[HELD].append(request.path)
    await asyncio.Event().wait()  # until the server ends
    return await _well(request)


async def _late(request: web.Request) -> web.Response:
    return web.json_response({"message": "request did not complete within requested timeout"}, status=504)


async def _held(request: web.Request) -> web.Response:
    return web.json_response({"held": len(request.app[HELD])})


HELD = web.AppKey("held", list[str])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    app = web.Application()
    app.add_routes([web.get("/log", _log), web.get("/slow", _slow_log), web.get("/stops", _log_that_stops)])
    app.add_routes([web.get("/well", _well), web.get("/ill", _ill), web.patch("/{any}", _well)])
    app.add_routes([web.post("/ill", _ill), web.post("/late", _late), web.get("/held", _held)])
    app.add_routes([web.post("/slow", _slow_webhook), web.post("/hung", _hung_webhook)])
    app[HELD] = []
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address,) = runner.addresses
    made = ApiServer(kubeconfig(tmp_path, f"http://127.0.0.1:{address[1]}"))
    await made.open()
    yield made
    await made.close()
    await runner.cleanup()


async def test_a_server_that_is_unavailable_gets_no_request_for_a_while(server: ApiServer) -> None:
    with pytest.raises(Unavailable, match="no answer"):
        await server.get("/ill")
    with pytest.raises(Unavailable, match="no answer"):
        await server.get("/well")
    assert server.requests == 1


async def test_requests_that_nothing_waits_for_delay_few_others(server: ApiServer) -> None:
    done: list[str] = []

    async def send(path: str, *, later: bool) -> None:
        await server.patch(path, {}, later=later)
        done.append(path)

    many = [asyncio.create_task(send("/later", later=True)) for _ in range(4 * AT_ONCE)]
    await asyncio.sleep(0)
    await send("/now", later=False)
    assert done.index("/now") <= LATER_AT_ONCE
    await asyncio.gather(*many)


async def test_creations_that_a_webhook_holds_delay_no_other_request(server: ApiServer) -> None:
    many = [asyncio.create_task(server.create("/hung", {})) for _ in range(2 * CREATES_AT_ONCE)]
    while (await server.get("/held"))["held"] < CREATES_AT_ONCE:
        assert await server.patch("/well", {}) == {"kind": "Pod"}
    for each in many:
        each.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_a_creation_may_wait_longer_than_another_request(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "REQUEST_TIMEOUT_S", TIMEOUT_S)
    assert await server.create("/slow", {}) == {"kind": "Pod"}


@pytest.mark.parametrize(("path", "why"), [("/hung", "time-out"), ("/late", "did not complete")])
async def test_after_a_creation_that_took_too_long_other_requests_are_sent(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, path: str, why: str
) -> None:
    monkeypatch.setattr(api_server, "CREATE_TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match=why):
        await server.create(path, {})
    assert await server.get("/well") == {"kind": "Pod"}


async def test_after_a_creation_that_the_server_cannot_serve_it_gets_no_request_for_a_while(server: ApiServer) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable, match="no answer"):
            await server.create("/ill", {})
    assert server.requests == 1


async def test_a_log_that_its_kubelet_does_not_give_delays_no_request(server: ApiServer) -> None:
    with pytest.raises(Unavailable, match="no answer"):
        await server.read_log("/ill", 100)
    assert await server.get("/well") == {"kind": "Pod"}


async def test_a_log_times_out_when_nothing_comes_and_not_because_it_is_long(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "REQUEST_TIMEOUT_S", TIMEOUT_S)
    assert await server.read_log("/slow", 100) == b"ab" * SLOW_PARTS
    with pytest.raises(LogTimedOut):
        await server.read_log("/stops", 100)


async def test_the_first_or_the_newest_bytes_of_a_log_are_read(server: ApiServer) -> None:
    assert await server.read_log("/log", 4) == b"0123"
    assert await server.read_log("/log", 4, newest=True) == b"6789"
    assert await server.read_log("/log", 20, newest=True) == b"0123456789"


POD = 'pods "gq-j-1-0" is forbidden: '


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        pytest.param(400, "json: cannot unmarshal number", Refused, id="a field of another type"),
        pytest.param(413, "Request entity too large", Refused, id="too large an object"),
        pytest.param(422, "spec.containers[0].env: Invalid value", Refused, id="an invalid value"),
        pytest.param(
            403, POD + 'violates PodSecurity "restricted:latest": runAsNonRoot != true', Refused, id="Pod Security"
        ),
        pytest.param(
            403, 'admission webhook "images.example.org" denied the request: no such registry', Refused, id="a webhook"
        ),
        pytest.param(
            403, POD + "ValidatingAdmissionPolicy 'images' with binding 'all' denied request: no digest", Refused,
            id="a policy",
        ),
        pytest.param(
            422, POD + "ValidatingAdmissionPolicy 'images' with binding 'all' denied request: failed to configure "
            "binding: paramKind kind `v1, Kind=ConfigMap` not yet synced to use for admission", Forbidden,
            id="a policy whose parameters are not read yet",
        ),
        pytest.param(
            403, POD + "ValidatingAdmissionPolicy 'images' denied request: failed to configure policy: no such kind",
            Forbidden, id="a policy that cannot be evaluated now",
        ),
        pytest.param(
            422, POD + "ValidatingAdmissionPolicy 'images' with binding 'all' denied request: no digest", Refused,
            id="an invalid value by a policy",
        ),
        pytest.param(
            403, POD + 'User "system:serviceaccount:hub:gq" cannot create resource "pods" in API group ""', Forbidden,
            id="a missing permission",
        ),
        pytest.param(
            403, POD + "maximum cpu usage per Container is 8, but limit is 16", Refused,
            id="more than a LimitRange allows",
        ),
        pytest.param(
            403, POD + "[minimum memory usage per Pod is 1Gi, but request is 64Mi, minimum cpu usage per Pod is 1. "
            " No request is specified]", Refused, id="less than a LimitRange allows",
        ),
        pytest.param(
            403, POD + "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000", Refused,
            id="another ratio than a LimitRange allows",
        ),
        pytest.param(
            403, POD + "failed quota: all: must specify limits.cpu for: job", Refused,
            id="a pod without an amount that a quota counts",
        ),
        pytest.param(403, POD + "status unknown for quota: all, resources: pods", Forbidden, id="a quota that is new"),
        pytest.param(403, POD + "exceeded quota: all, requested: pods=1, used: pods=9", Forbidden, id="a full quota"),
        pytest.param(403, POD + "not yet ready to handle request", Forbidden, id="a server that has just started"),
        pytest.param(
            500, 'Internal error occurred: failed calling webhook "images.example.org": failed to call webhook: Post '
            '"https://images.hub.svc:443/?timeout=10s": connection refused', Forbidden, id="a webhook that is away",
        ),
        pytest.param(500, "etcdserver: request timed out", Unavailable, id="a server without its database"),
        pytest.param(429, "too many requests", Unavailable, id="a server with too much to do"),
    ],
)  # fmt: skip
def test_only_a_verdict_on_the_object_itself_is_a_refusal(status: int, message: str, kind: type[RequestFailed]) -> None:
    assert type(failure(status, message)) is kind
