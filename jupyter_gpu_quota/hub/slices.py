"""The hub's client for notebook slices: request one, wait for it, return it.

It runs in the hub's event loop with the service's own token. Every call has a time limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError
from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..settings import SERVICE_NAME
from ..wire import ErrorView, NotebookRequest, NotebookView, RequestedSliceView
from ..wire.status import MeView

CONNECT_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 6.0
"""Time limit of a request, a restart of the service included; the API waits up to 2 s for a decision."""

READ_TIMEOUT_S = 3.0
RETURN_TIMEOUT_S = 3.0
RETRY_EVERY_S = 2.0
RETRY_FOR_S = 180.0

POLL_S = 20
"""Duration of one long poll of a waiting notebook."""

RETRY_S = 0.25

View = TypeVar("View", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The service refused: its status, its reason's code and its sentence."""

    status: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The service did not answer, or with an error of its own. ``may_be_processed``: it may have got the request."""

    message: str
    may_be_processed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceClient:
    """The service's address and token."""

    service_url: str
    base_url: str
    api_token: str
    request_timeout_s: float = REQUEST_TIMEOUT_S
    retry_every_s: float = RETRY_EVERY_S
    _http: SimpleAsyncHTTPClient = field(
        default_factory=lambda: SimpleAsyncHTTPClient(force_instance=True, max_clients=1000)
    )

    async def me(self, user: str) -> MeView | Refusal | Unavailable:
        """The projects and sizes with which a user can start a notebook."""
        return await self._fetch_model(MeView, READ_TIMEOUT_S, "GET", f"me?{urlencode({'user': user})}")

    async def request_slice(self, request: NotebookRequest) -> RequestedSliceView | Refusal | Unavailable:
        """Request a slice; the answer is usually the decision."""
        body = request.model_dump_json(exclude_none=True)
        return await self._fetch_model(RequestedSliceView, self.request_timeout_s, "POST", "notebooks", body)

    async def wait(self, seen: NotebookView, wait_s: float) -> NotebookView | Refusal | Unavailable:
        """The notebook as soon as its state or reason changes, or after ``wait_s`` seconds."""
        bounded_s = max(0, min(POLL_S, int(wait_s)))
        query = {"wait_s": bounded_s, "seen_state": seen.state, "seen_reason": seen.reason.code if seen.reason else ""}
        path = f"notebooks/{quote(seen.id, safe='')}?{urlencode(query)}"
        return await self._fetch_model(NotebookView, READ_TIMEOUT_S + bounded_s, "GET", path)

    async def return_slice(self, notebook: str) -> Refusal | Unavailable | None:
        """Return a slice; an unknown or returned one is not an error.

        There is one attempt: a hub that shuts down stops its service first, and must not wait for it.
        """
        request = self._request("DELETE", f"notebooks/{quote(notebook, safe='')}", None, RETURN_TIMEOUT_S)
        answer = await self._send(request)
        if isinstance(answer, Unavailable):
            return answer
        return None if answer.code in (200, 204, 404) else _refusal(answer)

    async def slices_of(self, user: str, server: str) -> list[str] | Unavailable:
        """The requested and booked slices of one server; used after a lost answer."""
        answer = await self._fetch(READ_TIMEOUT_S, "GET", f"notebooks?{urlencode({'limit': 1000})}")
        if isinstance(answer, Unavailable) or answer.code != 200:
            return answer if isinstance(answer, Unavailable) else Unavailable(message=_refusal(answer).message)
        items = [NotebookView.model_validate(item) for item in json.loads(answer.body).get("items", ())]
        live = [item for item in items if item.state in ("requested", "booked", "lent")]
        return [item.id for item in live if (item.user, item.server) == (user, server)]

    async def return_slices_later(self, find_slices: Callable[[], Awaitable[list[str] | Unavailable]]) -> None:
        """Return the slices that ``find_slices`` lists, as soon as the service answers.

        It ends after two successes in a row, since a service that was frozen may process an earlier request later, or
        after RETRY_FOR_S, when the service itself has found the slices.
        """
        loop = asyncio.get_running_loop()
        deadline, successes = loop.time() + RETRY_FOR_S, 0
        while successes < 2 and loop.time() < deadline:
            await asyncio.sleep(self.retry_every_s)
            notebooks = await find_slices()
            if isinstance(notebooks, Unavailable):
                successes = 0
                continue
            answers = [await self.return_slice(notebook) for notebook in notebooks]
            successes = 0 if any(answers) else successes + 1

    async def _fetch_model(
        self, view: type[View], within_s: float, method: str, path: str, body: str | None = None
    ) -> View | Refusal | Unavailable:
        answer = await self._fetch(within_s, method, path, body)
        if isinstance(answer, Unavailable):
            return answer
        if answer.code >= 500:  # 503 too may be the answer to a request that was recorded
            return Unavailable(message=_refusal(answer).message, may_be_processed=True)
        if answer.code >= 400:
            return _refusal(answer)
        try:
            return view.model_validate_json(answer.body)
        except ValidationError as error:
            return Unavailable(message=f"The GPU quota service's answer is not valid: {error.error_count()} faults.")

    async def _fetch(
        self, within_s: float, method: str, path: str, body: str | None = None
    ) -> HTTPResponse | Unavailable:
        """One call; it is repeated until the time limit while the service restarts (no listener, or 503)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            answer = await self._send(self._request(method, path, body, deadline - loop.time()))
            again = isinstance(answer, Unavailable) and not answer.may_be_processed
            again = again or (isinstance(answer, HTTPResponse) and answer.code == 503)
            if not again or loop.time() + RETRY_S >= deadline:
                return answer
            await asyncio.sleep(RETRY_S)

    async def _send(self, request: HTTPRequest) -> HTTPResponse | Unavailable:
        try:
            return await self._http.fetch(request, raise_error=False)
        except ConnectionRefusedError:
            return Unavailable(message="The GPU quota service is not running.")
        except (HTTPError, OSError) as error:
            return Unavailable(message=f"The GPU quota service does not answer: {error}.", may_be_processed=True)

    def _request(self, method: str, path: str, body: str | None, timeout_s: float) -> HTTPRequest:
        headers = {"Authorization": f"token {self.api_token}", "Content-Type": "application/json"}
        return HTTPRequest(
            f"{self.service_url.rstrip('/')}{self.base_url}services/{SERVICE_NAME}/api/v1/{path}",
            method=method,
            headers=headers,
            body=body,
            connect_timeout=min(CONNECT_TIMEOUT_S, max(timeout_s, RETRY_S)),
            request_timeout=max(timeout_s, RETRY_S),
            follow_redirects=False,
        )


def _refusal(answer: HTTPResponse) -> Refusal:
    try:
        error = ErrorView.model_validate_json(answer.body)
    except ValidationError:
        return Refusal(status=answer.code, reason="error", message=f"The GPU quota service answered {answer.code}.")
    return Refusal(status=answer.code, reason=error.reason, message=error.message)
