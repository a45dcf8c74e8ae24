"""The requests of a user's browser: log in, start a server, run code in a kernel of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect

CALL_TIMEOUT_S = 30.0
SPAWN_TIMEOUT_S = 120.0
CODE_TIMEOUT_S = 60.0
NO_ANSWER = 599
"""Tornado's code for a request without an answer, such as after a time-out."""


class Unexpected(RuntimeError):
    """An unexpected answer, or none; the message says which, in one sentence."""


class KernelNotReached(Unexpected):
    """A kernel was started, and the socket to it was not opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user who is logged in: name, token, and the hub's public address."""

    name: str
    token: str
    url: str

    @property
    def server_url(self) -> str:
        return f"{self.url}/user/{quote(self.name)}"


async def call(method: str, url: str, token: str | None, body: object = None, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """One JSON call. Returns the answer, None for an empty one. Raises Unexpected for no answer, 4xx and 5xx."""
    headers = {"Authorization": f"token {token}"} if token else {}
    payload = None if body is None and method in ("GET", "DELETE") else json.dumps(body if body is not None else {})
    request = HTTPRequest(url, method, headers, body=payload, request_timeout=timeout_s, allow_nonstandard_methods=True)
    client = SimpleAsyncHTTPClient(force_instance=True, max_body_size=1 << 30)
    try:
        answer = await client.fetch(request, raise_error=False)
    except OSError as error:
        raise Unexpected(f"{method} {url} got no answer: {error}") from error
    text = answer.body.decode(errors="replace") if answer.buffer else ""
    if answer.code >= 400:
        raise Unexpected(f"{method} {url} {_refusal(answer, text)}")
    return json.loads(text) if text.strip() else None


def _refusal(answer: HTTPResponse, text: str) -> str:
    """The message of a 4xx or 5xx: the sentence of the hub or the service; of a page, only its status."""
    if answer.code == NO_ANSWER:
        return f"got no answer: {answer.error}"
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return f"answered {answer.code}: {json.loads(text)['message']}"
    return f"answered {answer.code} {answer.reason}"


async def log_in(url: str, name: str, password: str) -> User:
    """Log in at the hub with a password, as the login page does; the token is the user's own."""
    body = {"auth": {"username": name, "password": password}, "note": "the demo", "expires_in": 86_400}
    answer = await call("POST", f"{url}/hub/api/users/{quote(name)}/tokens", None, body)
    return User(name=name, token=answer["token"], url=url)


async def start_server(user: User, options: Mapping[str, str], on_message: Callable[[str], None]) -> float:
    """Start the user's server through the hub; ``on_message`` receives each message of its progress.

    Returns the seconds from the request until the server is ready. Raises Unexpected where it fails.
    """
    begun, api = time.monotonic(), f"{user.url}/hub/api/users/{quote(user.name)}"
    await call("POST", f"{api}/server", user.token, dict(options), SPAWN_TIMEOUT_S)
    while time.monotonic() - begun < SPAWN_TIMEOUT_S:
        last = await _follow(f"{api}/server/progress", user.token, on_message)
        if last.get("failed"):
            raise Unexpected(f"{user.name}'s server did not start: {last.get('message')}")
        if last.get("ready"):
            return time.monotonic() - begun
        await asyncio.sleep(0.2)
    raise Unexpected(f"{user.name}'s server was not ready after {SPAWN_TIMEOUT_S:.0f} s")


async def _follow(url: str, token: str, on_message: Callable[[str], None]) -> dict[str, Any]:
    """Read the events of one spawn as they come. Returns the last, {} if the stream closed before the first."""
    rest, last = b"", dict[str, Any]()

    def on_chunk(chunk: bytes) -> None:
        nonlocal rest, last
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                last = json.loads(line.removeprefix(b"data:"))
                if not (last.get("ready") or last.get("failed")):
                    on_message(str(last.get("message", "")))

    headers = {"Authorization": f"token {token}"}
    request = HTTPRequest(url, headers=headers, request_timeout=SPAWN_TIMEOUT_S, streaming_callback=on_chunk)
    await SimpleAsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)
    return last


class Kernel:
    """A kernel of a user's server and the socket to it."""

    def __init__(self, socket: WebSocketClientConnection, name: str) -> None:
        self.socket, self.name = socket, name

    @staticmethod
    async def start(user: User, name: str = "python3") -> Kernel:
        """Start a kernel, as soon as it has its GPU, and connect to it.

        A kernel that does not answer is replaced once: ipykernel 7 may not read the first request, with which its
        server opens the socket. Source: ipython/ipykernel, issue 1554.
        """
        try:
            return await Kernel._start(user, name)
        except KernelNotReached:
            return await Kernel._start(user, name)

    @staticmethod
    async def _start(user: User, name: str) -> Kernel:
        kernel = await call("POST", f"{user.server_url}/api/kernels", user.token, {"name": name})
        url = f"{user.server_url}/api/kernels/{kernel['id']}"
        address = f"{url}/channels".replace("http", "ws", 1)
        request = HTTPRequest(address, headers={"Authorization": f"token {user.token}"}, request_timeout=CALL_TIMEOUT_S)
        try:
            return Kernel(await websocket_connect(request), str(kernel["id"]))
        except (HTTPClientError, OSError) as error:
            with contextlib.suppress(Unexpected):
                await call("DELETE", url, user.token)
            raise KernelNotReached(f"the socket to a kernel of {user.name} was not opened: {error}") from error

    async def run(self, code: str, timeout_s: float = CODE_TIMEOUT_S) -> str:
        """Run one cell. Returns what it printed. Raises Unexpected with the traceback where it failed."""
        message = execute_request(code)
        await self.socket.write_message(json.dumps(message))
        try:
            async with asyncio.timeout(timeout_s):
                return await self._output_of(message["header"]["msg_id"])
        except TimeoutError:
            raise Unexpected(f"a cell in kernel {self.name} did not end within {timeout_s:.0f} s") from None

    async def _output_of(self, request: str) -> str:
        printed: list[str] = []
        while True:
            raw = await self.socket.read_message()
            if raw is None:
                raise Unexpected(f"the socket to kernel {self.name} closed before its cell ended: {''.join(printed)}")
            message = json.loads(raw)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                raise Unexpected(f"a cell failed: {content['ename']}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(printed)

    def close(self) -> None:
        self.socket.close()


def execute_request(code: str) -> dict[str, Any]:
    header = {
        "msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": uuid.uuid4().hex,
        "date": datetime.now(UTC).isoformat(), "version": "5.3",
    }  # fmt: skip
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
    return {
        "header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell", "buffers": []
    }  # fmt: skip
