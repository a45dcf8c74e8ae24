"""One REST resource: who asks, whether they may, what they sent; then an act answers, or says no in one shape."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from jupyterhub.services.auth import HubOAuthenticated
from pydantic import BaseModel, ValidationError
from tornado.web import Finish, HTTPError, RequestHandler, stream_request_body

from ...hub_api import HubAway
from ...messages.validation import numbers_only, words_of
from ...store.records.protocol import StoreUnavailable
from ...wire import ErrorView
from ..access.people import NotAllowed
from ..access.permissions import Person, Scope, may_enter, refusal
from ..access.refusals import Refused

if TYPE_CHECKING:
    from .services import Door

log = logging.getLogger(__name__)

LARGEST_JSON = 1 << 20
LARGEST_DRAINED = 16 << 20
"""A body a little too large is read and dropped, so that its sender gets to read the answer."""

RETRY_AFTER_S = 2

OF_EVERY_QUERY = ("token", "_xsrf")
"""What JupyterHub's library and tornado read of any query."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent: a wire model, a plain JSON value, bytes, or nothing."""

    body: BaseModel | Mapping[str, Any] | bytes | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as an act sees it. ``body`` is the checked model of the route, None where it takes none."""

    door: Door
    resource: RequestHandler
    names: Mapping[str, str]
    body: Any = None
    maybe_person: Person | None = None

    @property
    def person(self) -> Person:
        """Who asks; every route but the open ones has somebody."""
        assert self.maybe_person is not None
        return self.maybe_person

    def text(self, name: str) -> str | None:
        """A word of the query, None where it is missing or empty."""
        if any(b"\0" in raw for raw in self.resource.request.query_arguments.get(name, [])):  # tornado would drop it
            raise Refused(400, "invalid", f"{name} has a NUL character, which no name here has.")
        return self.resource.get_query_argument(name, "") or None

    def flag(self, name: str) -> bool:
        word = (self.text(name) or "").lower() or None
        if word not in (None, "0", "1", "true", "false"):
            raise Refused(400, "invalid", f"{name} was {word[:40]!r}; it is 1 (true) or 0 (false).")
        return word in ("1", "true")

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        word = self.text(name)
        if word is None:
            return default
        try:
            number = int(word[:20].encode("ascii"))
        except ValueError:
            raise Refused(400, "invalid", f"{name} was {word[:40]!r}; it is a whole number.") from None
        if not least <= number <= most:
            raise Refused(400, "invalid", f"{name} was {word[:40]}; it is from {least} to {most}.")
        return number


Act = Callable[[Call], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the table that both the router and openapi.json read.

    ``path`` is below api/v1, with {name} for one part and {name...} for the rest. ``takes`` and ``gives`` are wire
    models; ``listing`` says that ``gives`` comes as items with a pagination; ``query`` names what the query may hold;
    ``paced``: a person may do it so often a second; ``deed`` is what a refusal says somebody may not do, with the names
    of the path.
    """

    method: str
    path: str
    scope: Scope
    act: Act
    says: str
    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | None = None
    listing: bool = False
    status: int = 200
    query: tuple[str, ...] = ()
    paced: bool = False
    deed: str = "do this"
    media_type: str = "application/json"


@stream_request_body
class Resource(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """Every path of api/v1; its routes, by method, come from the table."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
    largest_body: ClassVar[int] = LARGEST_JSON
    largest_drained: ClassVar[int] = LARGEST_DRAINED

    def initialize(self, door: Door, routes: Mapping[str, Route]) -> None:
        self.door, self.routes = door, routes
        self.hub_auth = door.people.auth
        self.person: Person | None = None
        self.received, self.chunks = 0, list[bytes]()

    def set_default_headers(self) -> None:
        for name, value in SECURITY_HEADERS.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        route = self.route
        self._refuse_huge(int(self.request.headers.get("Content-Length", "0") or 0))
        if route.scope is Scope.OPEN:
            return
        await self.door.world.known()
        await self.door.world.fresh()
        self.person = await self.door.people.identify(self)
        if self.person is None:
            raise Refused(401, "not_authenticated", self._why_nobody(), {"WWW-Authenticate": "Bearer"})
        if not may_enter(self.person, route.scope):
            raise Refused(403, "not_allowed", refusal(self.person, route.scope, route.deed.format(**self.path_kwargs)))
        self._refuse_unknown(route)

    @property
    def route(self) -> Route:
        route = self.routes.get(self.request.method or "")
        if route is None:
            allowed = ", ".join(self.routes)
            sentence = f"{self.request.method} is not a method of {self.request.path}; it has {allowed}."
            raise Refused(405, "method_not_allowed", sentence, {"Allow": allowed})
        return route

    def _why_nobody(self) -> str:
        if self.hub_auth.get_token(self, in_cookie=False):
            return "The hub does not know this token; get a new one from the hub's page /hub/token."
        return "This needs a token (header Authorization: token ...), or a login with its _xsrf token."

    def _refuse_unknown(self, route: Route) -> None:
        """A misspelt filter would give an answer to another question."""
        unknown = sorted(self.request.query_arguments.keys() - {*route.query, *OF_EVERY_QUERY})
        if unknown:
            known = f"knows {', '.join(route.query)}" if route.query else "takes none"
            sentence = f"{unknown[0][:40]!r} is no parameter of {self.request.method} {route.path}, which {known}."
            raise Refused(400, "invalid", sentence)

    def _refuse_huge(self, size: int) -> None:
        if size > self.largest_drained:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused(
            413, "too_large", f"The body is larger than {self.largest_body} bytes, the most that is taken here."
        )

    def data_received(self, chunk: bytes) -> None:
        self.received += len(chunk)
        if self.received <= self.largest_body:
            self.chunks.append(chunk)

    async def get(self, **names: str) -> None:
        if self.received > self.largest_body:
            raise self._too_large()
        route = self.route
        if route.paced:
            self._keep_pace()
        body = self._checked(route.takes) if route.takes else None
        answer = await route.act(Call(door=self.door, resource=self, names=names, body=body, maybe_person=self.person))
        if answer is not None:
            self._send(answer)

    def _keep_pace(self) -> None:
        """Refuse what comes faster than one person may send changes; nothing of it is looked at."""
        assert self.person is not None
        changes, settings = self.door.changes, self.door.settings
        if changes.takes(self.person.id):
            return
        wait_s = max(1, math.ceil(changes.wait_ms(self.person.id) / 1000))
        sentence = (
            f"{self.person.name} sent more than {settings.changes_per_s} changes a second, after"
            f" {settings.changes_at_once} at once; nothing was done. Try again in {wait_s} s."
        )
        raise Refused(429, "too_often", sentence, {"Retry-After": str(wait_s)})

    head = post = put = delete = patch = options = get

    def _checked(self, model: type[BaseModel]) -> BaseModel:
        try:
            return model.model_validate_json(b"".join(self.chunks))
        except ValidationError as error:
            raise Refused(400, "invalid", sentence_of(error)) from None

    def _send(self, answer: Answer) -> None:
        self.set_status(answer.status)
        for name, value in answer.headers.items():
            self.set_header(name, value)
        if answer.status == HTTPStatus.NO_CONTENT:
            self.finish()
            return
        self.set_header("Content-Type", answer.content_type)
        self.finish(_bytes_of(answer.body))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Refusals are answers, not faults; only what nobody expected is logged with its trace."""
        if not isinstance(value, Refused | HTTPError | StoreUnavailable | HubAway | NotAllowed):
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=(typ, value, tb))

    def write_error(self, status_code: int, **details: Any) -> None:
        fault = details.get("exc_info", (None, None, None))[1]
        error = error_of(fault, status_code)
        self.set_status(error.status)
        for name, value in error.headers.items():
            self.set_header(name, value)
        self.set_header("Content-Type", "application/json")
        view = ErrorView(status=error.status, message=error.message, reason=error.reason)
        self.finish(view.model_dump_json())


class NoSuchPath(Resource):
    """Any path below api/v1 that the table does not have."""

    def initialize(self, door: Door, routes: Mapping[str, Route] | None = None) -> None:
        super().initialize(door, {})

    async def prepare(self) -> None:
        raise Refused(
            404, "not_found", f"There is nothing at {self.request.path[:200]}; openapi.json lists what there is."
        )


def _bytes_of(body: BaseModel | Mapping[str, Any] | bytes | None) -> bytes | str:
    match body:
        case None:
            return b""
        case bytes():
            return body
        case BaseModel():
            return body.model_dump_json()
        case _:
            return json.dumps(body, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def error_of(fault: BaseException | None, status: int) -> Refused:
    """What a fault is called at the door; nothing of its inside goes out."""
    match fault:
        case Refused():
            return fault
        case NotAllowed():
            return Refused(403, "not_allowed", str(fault))
        case StoreUnavailable():
            again = {"Retry-After": str(RETRY_AFTER_S)}
            return Refused(503, "store_unavailable", f"{fault} Running jobs run on; try again.", again)
        case HubAway():
            sentence = f"The hub cannot be asked who you are: {fault}. Try again."
            return Refused(503, "hub_away", sentence, {"Retry-After": str(RETRY_AFTER_S)})
        case HTTPError() | Finish():
            return Refused(status, _word(status), f"{HTTPStatus(status).phrase}.")
        case _:
            return Refused(
                500,
                "internal_error",
                "Something unexpected happened here; the service's log has it. Nothing is promised to be stored.",
            )


def _word(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")


def sentence_of(error: ValidationError) -> str:
    """The first faults of a body: where, what is wrong, what the limit is; of values only numbers are repeated."""
    faults = error.errors(include_url=False)
    parts = [
        f"{'.'.join(map(_place, fault['loc'])) or 'the body'}: {words_of(fault, numbers_only)}" for fault in faults[:5]
    ]
    more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
    return "; ".join(parts)[:2000] + more + ". Nothing was stored."


def _place(part: int | str) -> str:
    return str(part)[:40].encode("ascii", "backslashreplace").decode()
