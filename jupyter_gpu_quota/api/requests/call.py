"""The rows of the route table, and one request as a handler sees it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pydantic import BaseModel
from tornado.web import RequestHandler

from ...store.records.calls import Page
from ..access.permissions import Person, Scope
from ..access.refusals import Refused, closed
from ..access.work_in_progress import SLOW_WORK, Limit

if TYPE_CHECKING:
    from ..state.store_view import StoreView
    from .services import Services

P = ParamSpec("P")
R = TypeVar("R")

MAX_PAGE = 1000
PAGED = ("offset", "limit")
INTEGER = re.compile("-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response: a wire model, a plain JSON value, bytes, or nothing."""

    body: BaseModel | Mapping[str, Any] | bytes | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    @property
    def items(self) -> list[Any]:
        """The items of a listing."""
        assert isinstance(self.body, Mapping)
        return list(self.body["items"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``body`` is the checked model of the route, None where it takes none; ``names`` are in the path.

    ``is_closed``: whether its connection is closed, so that nobody waits for an answer.
    """

    services: Services
    resource: RequestHandler
    names: Mapping[str, str]
    body: Any = None
    person_or_none: Person | None = None
    is_closed: Callable[[], bool] = field(default=lambda: False)

    @property
    def person(self) -> Person:
        """The person who sent the request; open routes may have none."""
        assert self.person_or_none is not None
        return self.person_or_none

    @property
    def store_view(self) -> StoreView:
        return self.services.store_view

    async def read_files(self, limit: Limit, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Read files of a job, which may be slow; at most ``limit`` at a time for one person. Raises LimitReached."""
        with self.services.in_progress.one(self.person, limit):
            return await self.store_view.read_files(function, *args, **kwargs)

    def slow_work(self) -> AbstractContextManager[None]:
        """The computations of one request, of which a person has few at a time. Raises LimitReached."""
        return self.services.in_progress.one(self.person, SLOW_WORK)

    async def compute_slow(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute for seconds, unless the connection is closed before it begins. Raises Refused."""

        def unless_closed() -> R:
            if self.is_closed():
                raise closed()
            return function(*args, **kwargs)

        return await self.store_view.compute_slow(unless_closed)

    def text(self, name: str) -> str | None:
        """A word of the query, None where it is missing or empty."""
        return self._word(name).strip() or None

    def _word(self, name: str) -> str:
        """A word of the query with the spaces around it, empty where it is missing."""
        if any(b"\0" in raw for raw in self.resource.request.query_arguments.get(name, [])):  # tornado would drop it
            raise Refused(400, "invalid", f"{name} has a NUL character, which no name here has.")
        return self.resource.get_query_argument(name, "", strip=False)

    def flag(self, name: str) -> bool:
        word = (self.text(name) or "").lower() or None
        if word not in (None, "0", "1", "true", "false"):
            raise Refused(400, "invalid", f"{name} was {word[:40]!r}; it is 1 (true) or 0 (false).")
        return word in ("1", "true")

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number of the query, in at most 18 ASCII digits. Raises Refused."""
        word = self._word(name)
        if not word:
            return default
        number = int(word) if INTEGER.fullmatch(word) else None
        if number is None or not least <= number <= most:
            raise Refused(400, "invalid", f"{name} was {word[:40]!r}; it is a whole number from {least} to {most}.")
        return number

    def instant(self, name: str) -> int | None:
        """An instant of the query, in milliseconds since 1970."""
        word = self.text(name)
        if word is None:
            return None
        try:
            at = datetime.fromisoformat(word[:40])
        except ValueError:
            at = None
        if at is None or at.tzinfo is None:
            sentence = f"{name} was {word[:40]!r}; it is an instant such as 2027-01-01T00:00:00Z."
            raise Refused(400, "invalid", sentence)
        return int(at.timestamp() * 1000)

    def page(self, limit: int = 100) -> Page:
        """The requested part of a listing; ``limit``: its length where the query names none."""
        offset = self.integer("offset", 0, least=0, most=10**9)
        return Page(offset=offset, limit=self.integer("limit", limit, least=1, most=MAX_PAGE))

    def listing(self, rows: Sequence[R], view: Callable[[R], object] = lambda row: row) -> Answer:
        """The requested part of these rows, as views."""
        page = self.page()
        return listed([view(row) for row in rows[page.offset : page.offset + page.limit]], len(rows), page)


def listed(items: Sequence[object], total: int, page: Page, **more: bool | str) -> Answer:
    """One page of a listing that has ``total`` items."""
    pagination = {"offset": page.offset, "limit": page.limit, "total": total}
    return Answer(body={"items": items, "_pagination": pagination, **more})


def checked_names(names: Mapping[str, str]) -> Mapping[str, str]:
    """The names of a path. Refuses a NUL, with which PostgreSQL cannot search: nothing has such a name."""
    if any("\0" in name for name in names.values()):
        raise Refused(404, "not_found", "The path has a NUL character, which no name here has.")
    return names


Handler = Callable[[Call], Awaitable[Answer | BaseModel | None]]
"""Answers one request. A model is sent with the route's status; None: the handler wrote the response itself."""

ComputeETag = Callable[[Call], Awaitable[str | None]]
"""Computes the ETag of the present answer; None: the answer has none."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table that the router, openapi.json and the access test read.

    ``path`` is below api/v1, with {name} for one part and {name...} for the rest. ``takes`` and ``gives`` are wire
    models; ``query`` names the allowed parameters; with those of ``PAGED``, ``gives`` comes as items with a pagination.
    ``etag``: a request that names the present ETag is answered 304, without the handler. ``by_secret``: the secret of
    the slice in the path authorises the request. ``rate_limited``: it counts for the person's rate limit.
    ``operation`` names it in refusals, with the names of the path.
    """

    method: str
    path: str
    scope: Scope
    handler: Handler
    summary: str
    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | None = None
    status: int = 200
    query: tuple[str, ...] = ()
    rate_limited: bool = False
    by_secret: bool = False
    operation: str = "do this"
    media_type: str = "application/json"
    etag: ComputeETag | None = None

    @property
    def is_listing(self) -> bool:
        return {*PAGED} <= {*self.query}
