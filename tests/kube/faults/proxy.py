"""A proxy in front of an API server that answers some requests with errors, delays others, and cuts watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from tests.kube.control_plane import ControlPlane, free_port

STATUSES = (409, 410, 429, 500, 503)
HOP = {"host", "transfer-encoding", "content-length", "connection", "content-encoding"}


class FaultyProxy:
    """``chance`` of an error for each request, by a seed; a watch ends after at most ``watch_s``.

    Half of the errors come before the request reaches the server, the others after it was carried out.
    """

    def __init__(self, plane: ControlPlane, seed: int, chance: float = 0.3, watch_s: float = 1.0) -> None:
        self._plane, self._chance, self._watch_s = plane, chance, watch_s
        self._random, self._port = random.Random(seed), free_port()
        self._thread, self.errors = LoopThread(), 0
        self._thread.call(self._start(), 10.0)

    def kubeconfig(self, user: str) -> str:
        """The credentials of a user, for this proxy."""
        named = json.loads(Path(self._plane.kubeconfig(user)).read_text())
        named["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._port}"}
        path = self._plane.folder / f"{user}.{self._port}.kubeconfig"
        path.write_text(json.dumps(named))
        return str(path)

    def stop(self) -> None:
        self._thread.call(self._stop(), 10.0)
        self._thread.close()

    async def _start(self) -> None:
        context = ssl.create_default_context(cafile=str(self._plane.folder / "certificates" / "apiserver.crt"))
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0))
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        fails, before = self._random.random() < self._chance, self._random.random() < 0.5
        if fails and before:
            return self._error()
        await asyncio.sleep(self._random.random() * 0.05)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        url = self._plane.url + request.path_qs
        async with self._client.request(request.method, url, headers=headers, data=await request.read()) as answer:
            if "watch" in request.query:
                return await self._stream(request, answer)
            body = await answer.read()
            return self._error() if fails else web.Response(body=body, status=answer.status, headers=_kept(answer))

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        found = web.StreamResponse(status=answer.status, headers=_kept(answer))
        await found.prepare(request)
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._random.random() * self._watch_s):
                async for part in answer.content.iter_any():
                    await found.write(part)
        if request.transport is not None:
            request.transport.close()
        return found

    def _error(self) -> web.Response:
        self.errors += 1
        status = self._random.choice(STATUSES)
        return web.json_response({"kind": "Status", "code": status, "message": "injected"}, status=status)


def _kept(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    return {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
