"""Authentication: the hub knows the owner of a token, the quota file their role in each project."""

from __future__ import annotations

import asyncio
import hmac
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jupyterhub.services.auth import HubOAuth
from tornado.web import HTTPError, RequestHandler

from ...backends.protocol import NodeTokens, NodeUnverified, TokenRefused
from ...hub_api import PAGE_SIZE, Account, Hub, HubUnavailable, HubUsers
from ...quotafile import QuotaFile
from .permissions import Person, Role
from .refusals import Refused
from .slice_secrets import SliceSecrets

SCOPE_PREFIX = "custom:gpu-quota:"
FRESH_S = 10.0
MAX_STALE_S = 600.0
MAX_ACCOUNTS = 10_000
MIN_SAVED_REQUESTS = 4
"""All users are listed at once only where that saves more than this many requests."""

HUB_TIMEOUT_S = 15.0
RETRY_AFTER_S = 2
RECHECK_S = 15.0
"""Interval at which the token and the roles of a stream's reader are checked at the hub.

A quiet stream sends a heartbeat every 5 s, so a stream without access ends within 20 s."""
RECHECK_WITHIN_S = 3.0
"""How long a stream waits for the hub; browsers end a stream that is silent for 15 s."""

SERVER_TOKEN_S = 1_200.0
"""The token of a server with a slice is verified at the hub after half of this time to all of it, spread by user."""

UNVERIFIED = "the hub did not answer or refused this service's token; see the log of the gpu-quota service"

HUB_PERSON = Person(name="hub", id="system:hub", is_hub=True)
"""The hub's spawner."""


class NotAllowed(Exception):
    """The token is valid, but not for this service."""


class LoginUnverified(HubUnavailable):
    """The hub did not say whose token this is, or which groups its owner has."""


@dataclass(frozen=True, slots=True)
class _CachedAccount:
    account: Account
    at: float


@dataclass(frozen=True, slots=True)
class _AskedUsers:
    """A request for all users, and the time at which it was sent."""

    answer: asyncio.Future[HubUsers]
    at: float

    def is_fresh(self, now: float) -> bool:
        failed = self.answer.done() and (self.answer.cancelled() or self.answer.exception() is not None)
        return not failed and now - self.at < FRESH_S


@dataclass(frozen=True, slots=True)
class _ServerToken:
    """The hub's answer about a token, the id of its owner, and until when it is used."""

    model: Mapping[str, Any]
    user: str
    until: float


class Accounts:
    """Accounts of the hub by name, cached for 10 s, and for up to 10 minutes while the hub does not answer.

    All users are listed at once where that is fewer requests than one for each name.
    """

    def __init__(self, hub: Hub, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub, self._clock = hub, clock
        self._wanted: set[str] = set()
        self._pages = 1
        self._listing: asyncio.Future[None] | None = None
        self._asked_users: _AskedUsers | None = None
        self._known: dict[str, _CachedAccount] = {}
        self._pending: dict[str, asyncio.Future[Account | None]] = {}

    async def get(self, name: str) -> Account | None:
        """One account; None if the hub has no such user. Raises HubUnavailable without a recent answer."""
        self._wanted.add(name)
        if fresh := self._fresh(name):
            return fresh
        known = self._known.get(name)
        try:
            await self._list_if_cheaper()
            return self._fresh(name) or await self._fetch(name)
        except HubUnavailable:
            if known and self._clock() - known.at < MAX_STALE_S:
                return known.account
            raise

    async def hub_users(self) -> HubUsers:
        """All users of the hub and their groups, never cached. Raises HubUnavailable."""
        return await self._hub.hub_users()

    async def recent_hub_users(self) -> HubUsers:
        """All users and their groups, at most 10 s old; concurrent callers share one request. Raises HubUnavailable."""
        now, asked = self._clock(), self._asked_users
        if asked is None or not asked.is_fresh(now):
            asked = self._asked_users = _AskedUsers(asyncio.ensure_future(self.hub_users()), now)
        return await asyncio.shield(asked.answer)

    def _fresh(self, name: str) -> Account | None:
        known = self._known.get(name)
        return known.account if known and self._clock() - known.at < FRESH_S else None

    async def _list_if_cheaper(self) -> None:
        """List all users if that takes fewer requests than the names that were requested since the last list."""
        if self._listing is None and len(self._wanted) > self._pages + MIN_SAVED_REQUESTS:
            self._listing = asyncio.ensure_future(self._list())
        if self._listing is not None:
            await asyncio.shield(self._listing)

    async def _list(self) -> None:
        """Replace the known accounts. Without an answer they are kept, and each account is requested by its name."""
        self._wanted.clear()
        at = self._clock()
        try:
            found = await self._hub.accounts()
        except HubUnavailable:
            return
        finally:
            self._listing = None
        self._pages = -(-len(found) // PAGE_SIZE)
        self._known = {account.name: _CachedAccount(account, at) for account in found[:MAX_ACCOUNTS]}

    async def _fetch(self, name: str) -> Account | None:
        """One request to the hub at a time for one name; concurrent callers share its answer."""
        asking = self._pending.get(name)
        if asking is None:
            asking = self._pending[name] = asyncio.ensure_future(self._hub.account(name))
            asking.add_done_callback(lambda _: self._pending.pop(name, None))
        account = await asyncio.shield(asking)
        self._known.pop(name, None)
        if account is not None:
            if len(self._known) >= MAX_ACCOUNTS:
                del self._known[next(iter(self._known))]
            self._known[name] = _CachedAccount(account, self._clock())
        return account


class People:
    """Identifies the sender of a request. ``user_id``: the ULID of a name; ``quota``: the file in force, if any.

    The secret of a slice names the token of the slice's server, which the hub revokes when the server stops. So that
    token is verified at the hub every 10 to 20 minutes only.
    """

    def __init__(
        self,
        *,
        auth: HubOAuth,
        accounts: Accounts,
        user_id: Callable[[str], Awaitable[str]],
        quota: Callable[[], QuotaFile | None],
        slices: SliceSecrets,
        nodes: NodeTokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.auth, self.accounts = auth, accounts
        self._user_id, self._quota = user_id, quota
        self._slices, self._clock, self.nodes = slices, clock, nodes
        self._server_tokens: dict[str, _ServerToken] = {}

    async def identify(self, request: RequestHandler) -> Person | None:
        """The person of a request, None without a valid login. Raises HubUnavailable, NotAllowed, StoreUnavailable."""
        token = self.auth.get_token(request, in_cookie=False)
        if token and hmac.compare_digest(token.encode(), self.auth.api_token.encode()):
            request._token_authenticated = True  # type: ignore[attr-defined]
            return HUB_PERSON
        if token and self.nodes is not None and self.nodes.is_token(token):
            request._token_authenticated = True  # type: ignore[attr-defined]
            return await _node_person(self.nodes, token)
        if model := await self._server_token(request, token):
            request._token_authenticated = True  # type: ignore[attr-defined]
            return await self._person(model)
        model = await self._ask_hub(self.auth.get_user(request, sync=False))
        return await self._person_of_answer(request, token, model) if model else None

    async def _server_token(self, request: RequestHandler, token: str | None) -> Mapping[str, Any] | None:
        """The hub's recent answer about the token of a server whose slice has not ended; None without one."""
        known = self._server_tokens.get(token or "")
        if known is None or token is None or self._clock() >= known.until:
            return None
        record = await self._slices.slice_of_server(request.request, token)
        return known.model if record is not None and record.notebook.user == known.user else None

    async def _person_of_answer(self, request: RequestHandler, token: str | None, model: Mapping[str, Any]) -> Person:
        """The person of the hub's answer, which is cached if the token is that of a server with a slice."""
        asked_at, person = self._clock(), await self._person(model)
        record = await self._slices.slice_of_server(request.request, token) if token else None
        if token and record is not None and record.notebook.user == person.id:
            if len(self._server_tokens) >= MAX_ACCOUNTS:
                del self._server_tokens[next(iter(self._server_tokens))]
            spread = zlib.crc32(person.id.encode()) / 2**32
            self._server_tokens[token] = _ServerToken(model, person.id, asked_at + SERVER_TOKEN_S * (1 + spread) / 2)
        return person

    async def _ask_hub(self, answer: Awaitable[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
        """The hub's answer about a token, None for an unknown one. Raises LoginUnverified.

        JupyterHub's library logs the cause. It names the hub's internal address, which the sender must not learn.
        """
        try:
            async with asyncio.timeout(HUB_TIMEOUT_S):
                return await answer
        except (HTTPError, OSError, TimeoutError) as error:
            raise LoginUnverified(UNVERIFIED) from error

    async def _person(self, model: Mapping[str, Any]) -> Person:
        if not self.auth.check_scopes(self.auth.access_scopes, dict(model)):
            raise NotAllowed(f"{model['name']}'s token is not for this service: it lacks access:services.")
        if model.get("kind", "user") != "user":
            raise NotAllowed(f"{model['name']} is a service of the hub; only users and their servers may use this API.")
        name = str(model["name"])
        try:
            person = await self.by_name(name)
        except HubUnavailable as error:
            raise LoginUnverified(str(error)) from error
        if person is None:
            raise NotAllowed(f"the hub no longer has a user {name}.")
        return replace(person, scopes=short_scopes(model["scopes"], name))

    async def by_name(self, name: str) -> Person | None:
        """The person of this name with their roles, without scopes; None if the hub has no such user."""
        account = await self.accounts.get(name)
        if account is None:
            return None
        id = await self._user_id(name)
        quota = self._quota()
        membership = quota.membership(name, account.groups) if quota else {}
        roles: dict[str, Role] = {
            project: "lead" if role == "lead" else "member" for project, role in membership.items()
        }
        return Person(name=name, id=id, hub_admin=account.admin, roles=roles, groups=frozenset(account.groups))

    async def reauthenticate(self, request: RequestHandler, person: Person) -> Person:
        """The owner of an open request's token now, for streams that run for long.

        The token is verified at the hub without a cache; that of a server with a slice may be cached.
        Raises NotAllowed, HubUnavailable, StoreUnavailable.
        """
        if person.is_hub:
            return person
        token, session = self.auth.get_token(request), self.auth.get_session_id(request)
        model = await self._server_token(request, token)
        if model is not None:
            present = await self._person(model)
        else:
            asked = self.auth.user_for_token(token, use_cache=False, session_id=session, sync=False)
            model = await self._ask_hub(asked)
            if not model:
                raise NotAllowed(f"the hub no longer accepts this token of {person.name}.")
            present = await self._person_of_answer(request, token, model)
        if "read" not in present.scopes:
            raise NotAllowed(f"this token of {person.name} no longer has the scope custom:gpu-quota:read.")
        return present


async def _node_person(nodes: NodeTokens, token: str) -> Person:
    """The agent of a node. Raises Refused, NotAllowed."""
    try:
        node = await asyncio.to_thread(nodes.node_of, token)
    except NodeUnverified as error:
        raise Refused(503, "cluster_away", f"{error}. Try again.", {"Retry-After": str(RETRY_AFTER_S)}) from error
    except TokenRefused as error:
        if error.is_valid:
            raise NotAllowed(f"{error}.") from error
        raise Refused(401, "not_authenticated", f"{error}.", {"WWW-Authenticate": "Bearer"}) from error
    return Person(name=node, id=f"system:node:{node}", node=node)


def short_scopes(scopes: object, name: str) -> frozenset[str]:
    """The scopes custom:gpu-quota:* by their last word; a filter is accepted only if it names this person."""
    found = set()
    for scope in scopes if isinstance(scopes, (list, tuple, set, frozenset)) else ():
        plain, _, narrowed = str(scope).partition("!")
        own = narrowed in ("", "user", f"user={name}") or narrowed.startswith(f"server={name}/")
        if plain.startswith(SCOPE_PREFIX) and own:
            found.add(plain.removeprefix(SCOPE_PREFIX))
    return frozenset(found)


class Reader:
    """The reader of a stream, whose account and roles are checked at the hub at its start and every 15 s.

    While the hub does not answer, the stream continues for up to 10 minutes with the last answer.
    """

    def __init__(
        self, people: People, request: RequestHandler, person: Person, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._people, self._request, self._person, self._clock = people, request, person, clock
        self._asked_at, self._known_at = float("-inf"), clock()

    @property
    def last_known(self) -> Person:
        """The reader at the last check."""
        return self._person

    async def now(self) -> Person:
        """The reader now. Raises NotAllowed, HubUnavailable, StoreUnavailable: the stream ends, or does not begin."""
        if self._clock() - self._asked_at >= RECHECK_S:
            self._asked_at = self._clock()
            try:
                async with asyncio.timeout(RECHECK_WITHIN_S):
                    self._person = await self._people.reauthenticate(self._request, self._person)
                self._known_at = self._clock()
            except (HubUnavailable, TimeoutError) as error:
                if self._clock() - self._known_at >= MAX_STALE_S:
                    raise LoginUnverified(UNVERIFIED) from error
        return self._person
