"""The hub's REST API for the service: users, their groups, running servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

TIMEOUT_S = 10.0
PAGE_SIZE = 200
MAX_PAGES = 1000
ALL_USERS_TIMEOUT_S = 10.0
"""Time limit of all pages of the hub's users together."""

NO_ANSWER = 599
"""Tornado's code for a request without an answer, such as after a time-out."""


class HubUnavailable(Exception):
    """The hub did not answer, or its answer is not as documented."""


class ScopeMissing(HubUnavailable):
    """The service's token lacks a scope, so that the hub leaves out what was requested until an admin grants it."""

    def __init__(self, what: str, scope: str) -> None:
        super().__init__(
            f"the hub does not show its {what} to this service's token, which lacks the scope {scope};"
            " an admin of the hub must grant it"
        )


NOT_RUNNING = frozenset({400, 404})
"""Statuses of the hub for a server that does not run, or is stopping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One user of the hub; groups decide project membership, ``admin`` is the hub's own flag."""

    name: str
    groups: tuple[str, ...]
    admin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server of the hub: active, or starting or stopping (``pending``)."""

    user: str
    name: str
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HubUsers:
    """The names of all users of the hub, and the groups of each.

    ``groups_of`` is None if this service's token may not read them.
    """

    users: frozenset[str]
    groups_of: Mapping[str, frozenset[str]] | None

    @property
    def groups(self) -> frozenset[str] | None:
        """All groups, without those that have no user; None where they may not be read."""
        return None if self.groups_of is None else frozenset().union(*self.groups_of.values())


class Hub(Protocol):
    """The hub's operations that the service needs."""

    async def account(self, name: str) -> Account | None:
        """A user by name, None if there is none. Raises HubUnavailable."""

    async def accounts(self) -> Sequence[Account]:
        """All users, within 10 s, in one request for each ``PAGE_SIZE`` of them. Raises HubUnavailable."""

    async def hub_users(self) -> HubUsers:
        """All users and their groups, within 10 s. Raises HubUnavailable."""

    async def servers(self) -> Sequence[Server]:
        """Every server that is active or pending. Raises HubUnavailable."""

    async def stop(self, user: str, server: str) -> None:
        """Stop a server; a stopped one is not an error. Raises HubUnavailable."""


class RestHub:
    """The hub's REST API at ``api_url`` (``.../hub/api``), with the service's token.

    Needs the scopes list:users, read:users:name, read:users:groups, read:servers and delete:servers.
    """

    def __init__(self, api_url: str, token: str) -> None:
        self._api_url, self._token = api_url.rstrip("/"), token

    async def account(self, name: str) -> Account | None:
        found = await self._get(f"users/{quote(name, safe='')}")
        return None if found is None else _account_of(found)

    async def accounts(self) -> list[Account]:
        return [_account_of(user) for user in await self._users()]

    async def hub_users(self) -> HubUsers:
        users = await self._users()
        if any("name" not in user for user in users):
            raise ScopeMissing("users", "read:users:name")
        has_groups = all("groups" in user for user in users)
        return HubUsers(
            users=frozenset(str(user["name"]) for user in users),
            groups_of={str(user["name"]): frozenset(map(str, user["groups"])) for user in users}
            if has_groups
            else None,
        )

    async def servers(self) -> list[Server]:
        users = await self._users(state="active")
        return [
            Server(
                user=str(user["name"]),
                name=str(server.get("name", "")),
                active=not server.get("stopped", False),
            )
            for user in users
            for server in _servers_of(user)
        ]

    async def _users(self, **only: str) -> list[Mapping[str, Any]]:
        """The hub's users, within the time limit. Raises HubUnavailable."""
        try:
            async with asyncio.timeout(ALL_USERS_TIMEOUT_S):
                return await self._read_pages(only)
        except TimeoutError as error:
            raise HubUnavailable(f"the hub did not list all of its users within {ALL_USERS_TIMEOUT_S:.0f} s") from error

    async def _read_pages(self, only: Mapping[str, str]) -> list[Mapping[str, Any]]:
        users: list[Mapping[str, Any]] = []
        for _ in range(MAX_PAGES):
            query = urlencode({**only, "offset": len(users), "limit": PAGE_SIZE})
            page = await self._get(f"users?{query}", paged=True)
            if page is None:  # not the hub's API: this is no list without users
                raise HubUnavailable(f"the hub answered 404 to GET users; its API should be at {self._api_url}")
            users += page["items"]
            if not page["items"] or page.get("_pagination", {}).get("next") is None:
                return users
        raise HubUnavailable(f"the hub has more than {MAX_PAGES * PAGE_SIZE} users, which is more than the limit")

    async def stop(self, user: str, server: str) -> None:
        path = f"users/{quote(user, safe='')}/" + (f"servers/{quote(server, safe='')}" if server else "server")
        request = HTTPRequest(
            f"{self._api_url}/{path}",
            method="DELETE",
            headers={"Authorization": f"token {self._token}"},
            connect_timeout=TIMEOUT_S,
            request_timeout=TIMEOUT_S,
        )
        try:
            await AsyncHTTPClient().fetch(request)
        except HTTPClientError as error:
            if error.code not in NOT_RUNNING:
                raise _unavailable(f"DELETE {path}", error) from error
        except OSError as error:
            raise _unavailable(f"DELETE {path}", error) from error

    async def _get(self, path: str, *, paged: bool = False) -> dict[str, Any] | None:
        name, headers = f"GET {path.partition('?')[0]}", {"Authorization": f"token {self._token}"}
        if paged:
            headers["Accept"] = "application/jupyterhub-pagination+json"
        request = HTTPRequest(
            f"{self._api_url}/{path}", headers=headers, connect_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S
        )
        try:
            answer = await AsyncHTTPClient().fetch(request)
            found = json.loads(answer.body)
        except HTTPClientError as error:
            if error.code == 404:
                return None
            raise _unavailable(name, error) from error
        except OSError as error:
            raise _unavailable(name, error) from error
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise HubUnavailable(f"the hub's answer to {name} is not as documented")
        return found


def _unavailable(request: str, error: HTTPClientError | OSError) -> HubUnavailable:
    """The error for a refused request, or for one without an answer."""
    if isinstance(error, HTTPClientError) and error.code != NO_ANSWER:
        return HubUnavailable(f"the hub answered {error.code} to {request}")
    return HubUnavailable(f"the hub did not answer {request}: {error}")


def _account_of(user: Mapping[str, Any]) -> Account:
    """Raises ScopeMissing if the token may not read the name or the groups: no groups are another answer."""
    for key in ("name", "groups"):
        if key not in user:
            raise ScopeMissing(key, f"read:users:{key}")
    return Account(name=str(user["name"]), groups=tuple(map(str, user["groups"])), admin=bool(user.get("admin")))


def _servers_of(user: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Raises HubUnavailable if the token lacks the scope read:servers, which is not the same as no servers."""
    if "servers" not in user:
        raise ScopeMissing("servers", "read:servers")
    return list(user["servers"].values())
