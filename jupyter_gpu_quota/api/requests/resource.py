"""One REST resource: it checks the person, the access and the body, calls the handler, and sends the answer."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from jupyterhub.services.auth import HubOAuthenticated
from pydantic import BaseModel, ValidationError
from tornado.web import Finish, HTTPError, RequestHandler, stream_request_body

from ...core.amounts import counted
from ...hub_api import HubUnavailable, ScopeMissing
from ...messages.validation import error_text, numbers_only
from ...store.records.calls import StoreUnavailable
from ...wire import ErrorView, json_input
from ..access.people import LoginUnverified, NotAllowed
from ..access.permissions import Person, Scope, may_enter, refusal
from ..access.refusals import Refused
from ..access.slice_secrets import owner_of
from .call import Answer, Call, Route, checked_names
from .recorded import recorded_id, recorded_unread

if TYPE_CHECKING:
    from .services import Services

log = logging.getLogger(__name__)

MAX_JSON = 1 << 20
MAX_DRAINED = 16 << 20
"""The body of a refused request is read and dropped up to this size, and the connection stays open: the hub's proxy
sends requests of other users on it. After a larger one the connection is closed, and the answer says so."""

MIN_BYTES_PER_S, BODY_GRACE_S = 16 << 10, 30
"""A body that arrives more slowly, after the first seconds, is not read to its end."""

MAX_DIGITS = 18
"""Of a number in a header; a longer one is refused before it is read."""

RETRY_AFTER_S = 2

COMMON_PARAMETERS = ("token", "_xsrf")
"""Parameters that JupyterHub's library and tornado read from any query."""

IDLE_S = 75
"""An idle connection, or one whose headers do not arrive, is closed after so long. Answers state a shorter time, so
that the proxy sends no request on a connection that is being closed."""

DEFAULT_HEADERS = {
    "Keep-Alive": f"timeout={IDLE_S - 15}",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@stream_request_body
class Resource(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """Every path of api/v1; its routes, by method, come from the table."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
    largest_body: ClassVar[int] = MAX_JSON
    largest_drained: ClassVar[int] = MAX_DRAINED

    def initialize(self, services: Services, routes: Mapping[str, Route]) -> None:
        self.services, self.routes = services, routes
        self.hub_auth = services.people.auth
        self.person: Person | None = None
        self.received, self.chunks = 0, list[bytes]()
        self.fault: Exception | None = None
        self.body_is_read = self.is_closed = False
        self.etag: str | None = None

    def set_default_headers(self) -> None:
        for name, value in DEFAULT_HEADERS.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Check the request when its headers have arrived; a refusal is sent when its body was read."""
        size = self._body_size()
        self.request.connection.set_body_timeout(BODY_GRACE_S + size / MIN_BYTES_PER_S)  # type: ignore[union-attr]
        try:
            await self.admit()
        except Exception as fault:  # sent by get, as any other answer
            if size > MAX_DRAINED and self.person is None:
                raise
            self.fault = fault

    def _body_size(self) -> int:
        """The stated size of the body, or the largest that is read. Raises Refused for one that is not read at all."""
        stated = self.request.headers.get("Content-Length")
        if stated is None:
            return self.largest_drained if "Transfer-Encoding" in self.request.headers else 0
        if not (stated.isascii() and stated.isdigit()):
            raise Refused(400, "invalid", f"Content-Length was {stated[:40]!r}; it is one whole number of bytes.")
        if len(stated) > MAX_DIGITS or int(stated) > self.largest_drained:
            raise self._too_large()
        return int(stated)

    async def admit(self) -> None:
        """Check the request before its body is read. Raises the refusal."""
        route = self.route
        if route.scope is Scope.OPEN:
            return
        await self.services.store_view.refresh_if_stale()
        self.person = await self._slice_owner(route) or await self.services.people.identify(self)
        if self.person is None:
            advice = (
                "This needs a token of the hub's page /hub/token (--token or JUPYTERHUB_API_TOKEN on the command line, "
                "the header Authorization: token ... in REST), or a login with its _xsrf token."
            )
            if self.hub_auth.get_token(self, in_cookie=False):
                advice = "The hub does not know this token; get a new one from the hub's page /hub/token."
            raise Refused(401, "not_authenticated", advice, {"WWW-Authenticate": "Bearer"})
        if not may_enter(self.person, route.scope):
            operation = route.operation.format(**self.path_kwargs)
            raise Refused(403, "not_allowed", refusal(self.person, route.scope, operation))
        self._refuse_unknown_parameters(route)

    async def _slice_owner(self, route: Route) -> Person | None:
        """The owner of the path's slice, if the request has its secret. Raises StoreUnavailable."""
        record = await self.services.slice_secrets.slice_of(self.request) if route.by_secret else None
        if record is None or record.notebook.id != self.path_kwargs["id"]:
            return None
        store_view = self.services.store_view
        await store_view.learn_names([record.notebook.user])
        self._token_authenticated = True
        return owner_of(record, store_view.name_of(record.notebook.user))

    @property
    def route(self) -> Route:
        route = self.routes.get(self.request.method or "")
        if route is None:
            allowed = ", ".join(self.routes)
            sentence = f"{self.request.method} is not a method of {self.request.path}; it has {allowed}."
            raise Refused(405, "method_not_allowed", sentence, {"Allow": allowed})
        return route

    def _refuse_unknown_parameters(self, route: Route) -> None:
        """Refuse a misspelt filter, which would be ignored."""
        unknown = sorted(self.request.query_arguments.keys() - {*route.query, *COMMON_PARAMETERS})
        if unknown:
            known = f"knows {', '.join(route.query)}" if route.query else "takes none"
            sentence = f"{unknown[0][:40]!r} is not a parameter of {self.request.method} {route.path}, which {known}."
            raise Refused(400, "invalid", sentence)

    def _too_large(self) -> Refused:
        sentence = f"The body is larger than {self.largest_body} bytes, the limit."
        return Refused(413, "too_large", sentence)

    def on_connection_close(self) -> None:
        self.is_closed = True
        super().on_connection_close()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self.received += len(chunk)
        if self.received <= self.largest_body and self.fault is None:
            self.chunks.append(chunk)
        return None

    async def get(self, **names: str) -> None:
        self.body_is_read = True
        if self.received > self.largest_body:
            raise self._too_large()
        if self.fault is not None:
            raise self.fault
        route = self.route
        if route.rate_limited:
            self._refuse_over_rate_limit()
        body = None
        if route.takes is not None:
            body = _body_of(route.takes, b"".join(self.chunks))
        call = Call(
            services=self.services, resource=self, is_closed=lambda: self.is_closed, names=checked_names(names),
            body=body, person_or_none=self.person,
        )  # fmt: skip
        if route.etag is not None and self._is_not_modified(await route.etag(call)):
            return
        recorded_id.set("")
        try:
            answer = await route.handler(call)
        except StoreUnavailable as error:
            if id := recorded_id.get():
                raise recorded_unread(id, error) from error
            raise
        if isinstance(answer, BaseModel):
            answer = Answer(body=answer, status=route.status)
        if answer is not None:
            self._send(answer)

    def _is_not_modified(self, etag: str | None) -> bool:
        """Answer 304 if the request names this ETag. Returns whether it was answered."""
        self.etag = etag
        if etag is None:
            return False
        self.set_etag_header()
        if self.check_etag_header():
            self.set_status(HTTPStatus.NOT_MODIFIED)
            self.finish()
        return self._finished

    def compute_etag(self) -> str | None:
        """The ETag that the route computed, otherwise tornado's of the rendered answer."""
        return self.etag or super().compute_etag()

    def _refuse_over_rate_limit(self) -> None:
        """Refuse a change above the person's rate limit; nothing of it is read."""
        assert self.person is not None
        limit, settings = self.services.change_limit, self.services.settings
        if limit.allows(self.person.id):
            return
        wait_s = max(1, math.ceil(limit.wait_ms(self.person.id) / 1000))
        sentence = (
            f"{self.person.name} exceeded the rate limit of {counted(settings.changes_per_s, 'change')} per second with"
            f" a burst of {settings.changes_at_once}; nothing was stored. Try again in {wait_s} s."
        )
        raise Refused(429, "too_often", sentence, {"Retry-After": str(wait_s)})

    head = post = put = delete = patch = options = get

    def _send(self, answer: Answer) -> None:
        self.set_status(answer.status)
        for name, value in answer.headers.items():
            self.set_header(name, value)
        if answer.status != HTTPStatus.NO_CONTENT:
            self.set_header("Content-Type", answer.content_type)
        self.finish(_encoded(answer.body))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log unexpected exceptions with their traceback; refusals are not errors."""
        if not isinstance(value, Refused | HTTPError | StoreUnavailable | HubUnavailable | NotAllowed):
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=(typ, value, tb))

    def write_error(self, status_code: int, **details: Any) -> None:
        fault = details.get("exc_info", (None, None, None))[1]
        error = error_of(fault, status_code, f"{self.request.method} {self.request.path[:200]}")
        self.set_status(error.status)
        for name, value in error.headers.items():
            self.set_header(name, value)
        if not self.body_is_read:
            self.set_header("Connection", "close")
        self.set_header("Content-Type", "application/json")
        self.finish(ErrorView(status=error.status, message=error.message, reason=error.reason).model_dump_json())


class NoSuchPath(Resource):
    """Any path below api/v1 that is not in the table."""

    def initialize(self, services: Services, routes: Mapping[str, Route] | None = None) -> None:
        super().initialize(services, {})

    async def admit(self) -> None:
        raise Refused(
            404, "not_found", f"{self.request.path[:200]} is not a path of this API; openapi.json lists all paths."
        )


def _encoded(body: BaseModel | Mapping[str, Any] | bytes | None) -> bytes | str | None:
    match body:
        case None | bytes():
            return body
        case BaseModel():
            return body.model_dump_json()
        case _:
            return json.dumps(body, default=_json_form, ensure_ascii=False, separators=(",", ":"))


def _json_form(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def error_of(fault: BaseException | None, status: int, request: str) -> Refused:
    """The answer to an exception, without internal details; ``request``: its method and path."""
    match fault:
        case Refused():
            return fault
        case NotAllowed():
            return Refused(403, "not_allowed", str(fault))
        case StoreUnavailable():
            again = {"Retry-After": str(RETRY_AFTER_S)}
            return Refused(503, "store_unavailable", f"{fault} Running jobs continue; try again.", again)
        case ScopeMissing():
            return Refused(503, "hub_away", f"{request} could not be answered: {fault}.")
        case HubUnavailable() if not isinstance(fault, LoginUnverified):
            sentence = f"{request} could not be answered: {fault}. Try again."
            return Refused(503, "hub_away", sentence, {"Retry-After": str(RETRY_AFTER_S)})
        case HubUnavailable():
            sentence = f"The service could not verify your login at the hub: {fault}. Try again."
            return Refused(503, "hub_away", sentence, {"Retry-After": str(RETRY_AFTER_S)})
        case HTTPError() | Finish():
            phrase = HTTPStatus(status).phrase
            return Refused(status, phrase.lower().replace(" ", "_").replace("-", "_"), f"{phrase}.")
        case _:
            return Refused(
                500,
                "internal_error",
                "Internal error: see the service's log. The request may not have been stored.",
            )


def _body_of(model: type[BaseModel], content: bytes) -> BaseModel:
    """The body as its model, which keeps the last of equal keys, so that the keys are checked as well."""
    try:
        body = model.model_validate_json(content)
        json_input.plain_json(content.decode())
    except ValidationError as error:
        raise Refused(400, "invalid", sentence_of(error)) from None
    except json_input.Refused as refused:
        raise Refused(400, "invalid", f"the body: {refused}. Nothing was stored.") from None
    return body


def sentence_of(error: ValidationError) -> str:
    """The first faults of a body: key, fault and limit; of values only numbers are repeated."""
    faults = error.errors(include_url=False)
    parts = [
        f"{'.'.join(map(_key, fault['loc'])) or 'the body'}: {error_text(fault, numbers_only)}" for fault in faults[:5]
    ]
    more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
    return "; ".join(parts)[:2000] + more + ". Nothing was stored."


def _key(part: int | str) -> str:
    return str(part)[:40].encode("ascii", "backslashreplace").decode()
