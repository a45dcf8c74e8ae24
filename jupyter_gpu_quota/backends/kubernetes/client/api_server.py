"""Requests to a Kubernetes API server: time-outs, a bounded rate, a pause after failures, and typed errors."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from ...rendering.cluster_names import FENCING
from .credentials import Credentials, read_credentials

Json = dict[str, Any]

REQUEST_TIMEOUT_S = 10.0
CREATE_TIMEOUT_S = 40.0
"""A creation waits for webhooks, each for up to 30 s; after 34 s of them the API server answers 504."""

RATE_PER_S, BURST, AT_ONCE, LATER_AT_ONCE = 200, 400, 32, 8
"""Bounds of one process's requests. Without AT_ONCE the last of thousands would time out in the connection pool.

Of the requests that nothing waits for, LATER_AT_ONCE wait among the others, so that thousands of them delay no order.
"""

LOGS_AT_ONCE = 16
"""Requests for logs have a bound of their own: a kubelet that does not answer holds one for REQUEST_TIMEOUT_S."""

CREATES_AT_ONCE = 32
"""Creations have a bound of their own: a webhook that does not answer holds them."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0
CONNECTIONS = 100
READ_BUFFER_BYTES = 1 << 21
"""More than an object in etcd may have."""

MERGE_PATCH = "application/merge-patch+json"


class RequestFailed(Exception):
    """The API server refused a request; ``status`` is the HTTP status, the message is that of the server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFound(RequestFailed):
    """There is no such object."""


class Conflict(RequestFailed):
    """A precondition does not hold, or another object changed meanwhile, such as a quota."""


class AlreadyExists(Conflict):
    """There is an object of this name."""


class Expired(RequestFailed):
    """The resource version is too old to continue a list or a watch."""


class Refused(RequestFailed):
    """Admission or validation refused the object, or it could not be decoded: the same object is refused again."""


class Forbidden(RequestFailed):
    """A permission is missing, a quota is full, or the object cannot be judged now: it may be accepted later."""


class Replaced(RequestFailed):
    """The request of a leader that was replaced was not sent, because the API server would refuse it."""


class Unavailable(RequestFailed):
    """There was no answer in time, or the server cannot serve the request now. ``status`` 0: no answer."""


class LogTimedOut(Unavailable):
    """Nothing of a log came for a while: its kubelet does not answer, or stopped sending, or the API server is away."""


_BY_STATUS: Mapping[int, type[RequestFailed]] = {
    400: Refused, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired, 413: Refused, 422: Refused,
}  # fmt: skip

FORBIDDEN, INTERNAL_ERROR, GATEWAY_TIMEOUT = 403, 500, 504
JUDGED = re.compile(
    r'violates PodSecurity|admission webhook ".*?" denied the request|ValidatingAdmissionPolicy .*? denied request'
    r"|(?:minimum|maximum) \S+ usage per \w+ is |max limit to request ratio per \w+ is |failed quota: \S+ must specify "
)
"""In the message of a 403 by which Pod Security, a webhook, a policy or a LimitRange refuses the object itself.

A ResourceQuota also refuses a pod without a request or limit that it constrains. An exceeded quota is not matched: it
may have room later.
Source: the admission plugins limitranger and resourcequota.
"""
NOT_CONFIGURED = re.compile(r"denied request: failed to configure (?:policy|binding): ")
"""In the message of a 403 or 422 of an admission policy that judges nothing now, as its parameters are not read yet.

Source: the dispatchers of the admission plugin policy.
"""
WEBHOOK_FAILED = "failed calling webhook"
"""In the message of a 500 where a webhook does not answer: other objects may be accepted."""


class ApiServer:
    """One API server. All calls belong to the event loop in which ``open`` was awaited.

    After an answer of 429 or 5xx, or no answer, requests are dropped for a while: they raise Unavailable at once. That
    does not follow from a creation that takes too long: its webhook may not answer, while the API server does.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._credentials: Credentials | None = None
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None
        self._rate = TokenBucket(RATE_PER_S, BURST)
        self._at_once, self._later_at_once = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(LATER_AT_ONCE)
        self._logs_at_once, self._creates_at_once = asyncio.Semaphore(LOGS_AT_ONCE), asyncio.Semaphore(CREATES_AT_ONCE)
        self._pause_s, self._paused_until, self._trouble = 0.0, 0.0, ""
        self.requests = 0
        self.newest_leader: int | None = None
        """Requests with a lower fencing number are dropped: thousands of them may wait when a leader is replaced."""

    async def open(self) -> None:
        """Read the credentials: of ``kubeconfig``, or those of this pod. Raises CredentialsMissing."""
        found = self._credentials = await read_credentials(self._kubeconfig, self._context)
        self._proxy = found.proxy or proxy_for(found.host)
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=found.tls)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=READ_BUFFER_BYTES)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, **query: str | int) -> Json:
        """One object, or one page of a list."""
        return await self._json("GET", path, query)

    async def create(self, path: str, body: Json, **query: str | int) -> Json:
        """Create an object. Raises AlreadyExists."""
        limit = aiohttp.ClientTimeout(total=CREATE_TIMEOUT_S, connect=REQUEST_TIMEOUT_S)
        request = _Answer(self, "POST", path, list(query.items()), body, "application/json", limit, is_create=True)
        async with self._creates_at_once, request as answer:
            found: Json = json.loads(await answer.read())
            return found

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object. Raises Conflict where it has another resource version than the body."""
        return await self._json("PUT", path, {}, body)

    async def patch(self, path: str, body: Json, *, later: bool = False) -> Json:
        """Merge these fields into an object. ``later``: nothing waits for that."""
        return await self._json("PATCH", path, {}, body, MERGE_PATCH, later=later)

    async def delete(self, path: str, body: Json, *, later: bool = False) -> Json:
        """Delete an object; ``body`` are delete options. ``later``: nothing waits for that."""
        return await self._json("DELETE", path, {}, body, later=later)

    async def read_log(self, path: str, limit: int, *, newest: bool = False, **query: str | int) -> bytes:
        """The first, or the ``newest``, ``limit`` bytes of a log.

        Its kubelet may not answer, which delays no request of the API server. A long log may take its time: the request
        times out when nothing comes for REQUEST_TIMEOUT_S.
        """
        silence = aiohttp.ClientTimeout(connect=REQUEST_TIMEOUT_S, sock_read=REQUEST_TIMEOUT_S)
        request = _Answer(self, "GET", path, list(query.items()), None, "text/plain", silence, is_log=True)
        async with self._logs_at_once, request as answer:
            found = bytearray()
            async for part in answer.content.iter_any():
                found += part
                if newest:
                    del found[: max(0, len(found) - limit)]
                elif len(found) >= limit:
                    break
            return bytes(found[:limit])

    async def watch(
        self, path: str, timeout_s: int, opened: Callable[[], None], **query: str | int
    ) -> AsyncIterator[Json]:
        """Events until the watch ends: after ``timeout_s``, or when its connection breaks. An error event raises.

        ``opened`` is called when the server accepted the watch, which may be long before the first event.
        """
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": timeout_s}
        async with self._answer("GET", path, query, None, "application/json", timeout_s + REQUEST_TIMEOUT_S) as answer:
            opened()
            rest = b""
            while part := await _next_part(answer):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    event: Json = json.loads(line)
                    if event["type"] == "ERROR":
                        raise failure(int(event["object"].get("code", 0)), event["object"].get("message", ""))
                    yield event

    async def _json(
        self, method: str, path: str, query: Mapping[str, str | int], body: Json | None = None,
        content_type: str = "application/json", *, later: bool = False,
    ) -> Json:  # fmt: skip
        request = self._answer(method, path, query, body, content_type, REQUEST_TIMEOUT_S)
        async with self._later_at_once if later else nullcontext(), self._at_once, request as answer:
            found: Json = json.loads(await answer.read())
            return found

    def _answer(
        self, method: str, path: str, query: Mapping[str, str | int], body: Json | None, content_type: str,
        timeout_s: float,
    ) -> _Answer:  # fmt: skip
        limit = aiohttp.ClientTimeout(total=timeout_s, connect=REQUEST_TIMEOUT_S)
        return _Answer(self, method, path, list(query.items()), body, content_type, limit)

    async def send(
        self, method: str, path: str, query: list[tuple[str, str | int]], body: Json | None, content_type: str,
        limit: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:  # fmt: skip
        """Send one request within the rate, and return its answer; the caller closes it."""
        session, known = self._session, self._credentials
        assert session is not None and known is not None, "open the API server first"
        if time.monotonic() < self._paused_until:
            raise Unavailable(0, self._trouble)
        number = _fencing_of(body)
        if number is not None and self.newest_leader is not None and number < self.newest_leader:
            raise Replaced(0, f"leader {number} was replaced: the newest is {self.newest_leader}")
        await self._rate.take()
        self.requests += 1
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if (authorization := await known.authorization()) is not None:
            headers["Authorization"] = authorization
        return await session.request(
            method, f"{known.host}{path}?{urlencode(query)}" if query else known.host + path,
            data=None if body is None else json.dumps(body), headers=headers, proxy=self._proxy,
            server_hostname=known.server_hostname, timeout=limit,
        )  # fmt: skip

    def note(self, trouble: Unavailable | None) -> None:
        """Pause after a failure, longer each time; an answer ends that."""
        if trouble is None:
            self._pause_s = 0.0
        elif time.monotonic() >= self._paused_until:
            self._pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self._paused_until, self._trouble = time.monotonic() + self._pause_s, str(trouble)


def proxy_for(address: str) -> str | None:
    """The proxy that the environment names for an address.

    It is looked for once. aiohttp would look for it and for ~/.netrc in a thread, for each of thousands of requests,
    behind those that wait for the disk.
    """
    parts = urlsplit(address)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


class _Answer:
    """The answer of one request while it is read. Errors of the connection and of HTTP are raised as typed errors."""

    def __init__(self, server: ApiServer, *request: Any, is_log: bool = False, is_create: bool = False) -> None:
        self._server, self._request, self._is_log, self._is_create = server, request, is_log, is_create
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            self._answer = await self._server.send(*self._request)
            if self._answer.status >= 400:
                raise failure(self._answer.status, *problem_of(await self._answer.read()))
        except BaseException as error:
            raise self._close(error) from error
        return self._answer

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        closed = self._close(error)
        if closed is not error and closed is not None:
            raise closed from error

    def _close(self, error: BaseException | None) -> Any:
        """Close the connection; returns the typed error."""
        if self._answer is not None:
            self._answer.close()
        pauses = not self._is_log and not (self._is_create and _took_too_long(error))
        if self._is_log and isinstance(error, TimeoutError):
            error = LogTimedOut(0, f"its kubelet did not send it within {REQUEST_TIMEOUT_S:g} s")
        if isinstance(error, aiohttp.ClientError | TimeoutError | OSError | ValueError):
            error = Unavailable(0, f"the API server does not answer: {str(error) or 'time-out'}")
        answered = error is None or (isinstance(error, RequestFailed) and not isinstance(error, Replaced))
        if answered and pauses:
            self._server.note(error if isinstance(error, Unavailable) else None)
        return error


def _took_too_long(error: BaseException | None) -> bool:
    """Whether a request was sent and not answered in time; the time-out of a connection is another error."""
    if isinstance(error, RequestFailed):
        return error.status == GATEWAY_TIMEOUT
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ServerTimeoutError)


def _fencing_of(body: Json | None) -> int | None:
    """The number of the leader that a request is made for; None for one without a number."""
    annotations: Json = (body or {}).get("metadata", {}).get("annotations") or {}
    number = annotations.get(FENCING)
    return None if number is None else int(number)


async def _next_part(answer: aiohttp.ClientResponse) -> bytes:
    """The next bytes of a watch; none where it ended or its connection broke."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return b""


def failure(status: int, message: str, reason: str = "") -> RequestFailed:
    """The error of an HTTP status, and the reason that the server gives for it."""
    if reason == "AlreadyExists":
        return AlreadyExists(status, message)
    if NOT_CONFIGURED.search(message):
        return Forbidden(status, message)
    if status == FORBIDDEN and JUDGED.search(message):
        return Refused(status, message)
    if status == INTERNAL_ERROR and WEBHOOK_FAILED in message:
        return Forbidden(status, message)
    retried = status == 429 or status >= 500
    return _BY_STATUS.get(status, Unavailable if retried else RequestFailed)(status, message)


def problem_of(body: bytes) -> tuple[str, str]:
    """The sentence and the reason in an answer with an error status."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return str(found.get("message", "")), str(found.get("reason", ""))
    return body[:400].decode(errors="replace"), ""


class TokenBucket:
    """Bounds a rate: at most ``rate`` per second on average, and ``burst`` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, float(burst), time.monotonic()

    async def take(self) -> None:
        """Wait until one more is allowed."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - 1
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)
