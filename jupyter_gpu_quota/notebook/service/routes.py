"""The routes of this server to the service. They add the server's token, which is never sent to the browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.contents.fileio import FileManagerMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from ... import __version__
from .addresses import BadPath, api_path
from .connection import Service
from .exchange import Exchange, Request, ServiceUnavailable
from .submission import NotSubmitted, Submissions

JSON, EVENTS = "application/json", "text/event-stream"
STREAMED_TYPES = frozenset(
    {EVENTS, "text/plain", "text/csv", "application/octet-stream", "application/gzip", "application/zip"}
)
"""Content types that are passed in parts, beside JSON. HTML pages of the hub or of a proxy are rejected."""

REQUEST_HEADERS = ("If-None-Match", "If-Match", "Last-Event-ID", "Idempotency-Key")
RESPONSE_HEADERS = (
    "Etag", "Retry-After", "Cache-Control", "Content-Disposition", "X-Next-Offset", "X-Attempt", "X-Accel-Buffering",
)  # fmt: skip
MAX_REQUEST_BYTES = 1 << 20
MAX_JSON_BYTES = 64 << 20
NOT_MODIFIED = 304

NOT_CONFIGURED = "The GPU service is not configured for this server."


class ServiceHandler(APIHandler):
    """A handler of requests to the service. ``auth_resource`` is its name for the server's authorizer."""

    auth_resource = "gpu_quota"

    def initialize(self, service: Service, submissions: Submissions) -> None:
        self.service, self.submissions = service, submissions
        self._work: asyncio.Task[None] | None = None
        # background requests of the sidebar are not activity of the user
        self._track_activity = self.request.method != "GET" and not _is_dry_run(self.request.body)

    def compute_etag(self) -> None:
        """None: the ETag is the one that the service sent."""

    def on_connection_close(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def until_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, and cancel it when the browser closes the connection."""
        self._work = asyncio.ensure_future(work)
        with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
            await self._work

    def refuse(self, status: int, reason: str, message: str) -> None:
        """Answer an error in the service's form."""
        self.set_status(status)
        self.finish(json.dumps({"status": status, "message": message, "reason": reason}))

    def refuse_unusable(self) -> bool:
        """Refuse the request if there is no service, or if its body is too large; returns whether it did."""
        if not self.service.is_configured:
            self.refuse(404, "not_configured", NOT_CONFIGURED)
        elif len(self.request.body) > MAX_REQUEST_BYTES:
            self.refuse(413, "too_large", f"The body is larger than {MAX_REQUEST_BYTES} bytes, the limit.")
        return self._finished

    async def proxy_request(self, path: str, body: bytes = b"", **more: object) -> None:
        """Send the request to a path below ``api/v1`` with this server's token, and pass the answer.

        ``more`` are added to the members of an answer that is not a refusal.
        """
        headers = {name: self.request.headers[name] for name in REQUEST_HEADERS if name in self.request.headers}
        sent = {**headers, **self.service.headers, "User-Agent": f"jupyter-gpu-quota/{__version__}"}
        request = Request(method=self.request.method or "", url=self.service.url(path), headers=sent, body=body)
        try:
            async with Exchange(request) as answer:
                await self._send(answer, more)
        except ServiceUnavailable as error:
            self._end_without_answer(error)

    async def _send(self, answer: Exchange, more: Mapping[str, object]) -> None:
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        has_body = answer.status not in (204, NOT_MODIFIED)
        if has_body and (kind not in {JSON, *STREAMED_TYPES} or 300 <= answer.status < 400):
            why = f"the answer with HTTP status {answer.status} is not the service's"
            raise ServiceUnavailable(why, may_be_processed=False)
        body = await _read_all(answer) if kind == JSON or not has_body else b""
        if more and answer.status in (200, 201):
            body = json.dumps({**json.loads(body), **more}).encode()
        self.set_status(answer.status)
        for name in RESPONSE_HEADERS:
            if name in answer.headers:
                self.set_header(name, answer.headers[name])
        if kind in STREAMED_TYPES and has_body:
            await self._stream(answer)
        self.finish(body or None, set_content_type=answer.headers.get("Content-Type", JSON))

    async def _stream(self, answer: Exchange) -> None:
        """Pass the parts as they arrive. Each is read when the browser has the one before."""
        self.set_header("Content-Type", answer.headers["Content-Type"])
        self.set_header("Content-Security-Policy", "sandbox; default-src 'none'")
        await self.flush()
        async for part in answer.parts():
            self.write(part)
            await self.flush()

    def _end_without_answer(self, error: ServiceUnavailable) -> None:
        """Refuse the request. If the answer has begun, end an event stream, or close the connection of a file."""
        self.log.debug("jupyter_gpu_quota: no answer of the service to %s: %s", self.request.path, error.why)
        if not self._headers_written:
            self.refuse(503, "service_unavailable", unavailable_text(error, changes=self.request.method != "GET"))
        elif EVENTS in self._headers.get("Content-Type", ""):
            self.finish(set_content_type=self._headers["Content-Type"])
        else:
            self.request.connection.close()  # type: ignore[union-attr]


def _is_dry_run(body: bytes) -> bool:
    """Whether a request changes nothing, as those that the sidebar sends while a form is filled in."""
    try:
        found = json.loads(body) if len(body) <= MAX_REQUEST_BYTES else None
    except (ValueError, RecursionError):
        return False
    job = found.get("request", found) if isinstance(found, dict) else None
    return isinstance(job, dict) and job.get("dry_run") is True


def unavailable_text(error: ServiceUnavailable, *, changes: bool) -> str:
    """Why there is no answer, and what to do. ``changes``: the request would have changed something."""
    stored = "The request may have been stored: look before you send it again." if error.may_be_processed else ""
    follows = stored or "Nothing was stored; try again."
    return (
        f"The GPU service cannot be reached: {error.why}. {follows if changes else 'Jobs continue to run; try again.'}"
    )


async def _read_all(answer: Exchange) -> bytes:
    """The whole body. Raises ServiceUnavailable if it is incomplete or too large."""
    body = bytearray()
    async for part in answer.parts():
        body += part
        if len(body) > MAX_JSON_BYTES:
            raise ServiceUnavailable(f"its answer is larger than {MAX_JSON_BYTES} bytes", may_be_processed=True)
    return bytes(body)


class ServiceProxy(ServiceHandler):
    """``gpu-quota/api/<path>``: the service's ``api/v1/<path>``. Streams are passed as they arrive."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        await self._proxy()

    @web.authenticated
    @authorized
    async def post(self) -> None:
        await self._proxy()

    @web.authenticated
    @authorized
    async def put(self) -> None:
        await self._proxy()

    @web.authenticated
    @authorized
    async def delete(self) -> None:
        await self._proxy()

    async def _proxy(self) -> None:
        if self.refuse_unusable():
            return
        raw = self.request.path.removeprefix(url_path_join(self.base_url, "gpu-quota/api/"))
        try:
            path = api_path(raw, self.request.query)
        except BadPath as error:
            self.refuse(400, "bad_path", str(error))
            return
        await self.until_closed(self.proxy_request(path, self.request.body))


class Status(ServiceHandler):
    """``GET gpu-quota/status``: whether this server has a service, its notebook, this release, the default project."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        service = self.service
        answer = {
            "configured": service.is_configured,
            "notebook": service.notebook,
            "version": __version__,
            "project": service.project,
        }
        self.finish(json.dumps(answer))


class Jobs(ServiceHandler):
    """``POST gpu-quota/jobs``: pack a folder of this server, send it, and queue a job.

    The answer is that of ``POST jobs`` with ``notes``: sentences about the files that were not sent, if there are any.
    """

    @web.authenticated
    @authorized
    async def post(self) -> None:
        if not self.refuse_unusable():
            await self.until_closed(self._submit())

    async def _submit(self) -> None:
        try:
            request, folder = _submission_of(self.request.body)
            ready = await self.submissions.prepare(request, folder)
        except NotSubmitted as error:
            self.refuse(error.status, error.reason, str(error))
        else:
            more = {"notes": list(ready.notes)} if ready.notes else {}
            await self.proxy_request("jobs", json.dumps(ready.request).encode(), **more)


class Notes(ServiceHandler):
    """``POST gpu-quota/notes``: the notes on the files of a job that would be submitted from a folder."""

    def initialize(self, service: Service, submissions: Submissions) -> None:
        super().initialize(service, submissions)
        self._track_activity = False

    @web.authenticated
    @authorized
    async def post(self) -> None:
        if not self.refuse_unusable():
            await self.until_closed(self._answer())

    async def _answer(self) -> None:
        try:
            request, folder = _submission_of(self.request.body)
        except NotSubmitted as error:
            self.refuse(error.status, error.reason, str(error))
        else:
            self.finish(json.dumps({"notes": await self.submissions.notes(request, folder)}))


def _submission_of(body: bytes) -> tuple[Mapping[str, Any], str]:
    """The job request and the folder. Raises NotSubmitted."""
    try:
        found = json.loads(body)
        request, folder = found["request"], found.get("folder", "")
        if isinstance(request, dict) and isinstance(folder, str) and not found.keys() - {"request", "folder"}:
            return request, folder
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise NotSubmitted(
        400, "invalid", 'The body is an object such as {"request": {"command": [...]}, "folder": "work"}.'
    )


def add_routes(server: Any, service: Service) -> None:
    """Add the routes below this server's base URL."""
    contents = server.contents_manager
    root = getattr(contents, "root_dir", None) if isinstance(contents, FileManagerMixin) else None
    given = {"service": service, "submissions": Submissions(service, root)}
    base = url_path_join(server.web_app.settings["base_url"], "gpu-quota")
    handlers = {"status": Status, "jobs": Jobs, "notes": Notes, "api/.*": ServiceProxy}
    server.web_app.add_handlers(".*$", [(f"{base}/{path}", handler, given) for path, handler in handlers.items()])
