"""The hub as the service sees it: who a token belongs to, what groups a person is in, which servers run."""

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
MOST_PAGES = 1000
EVERYBODY_TIMEOUT_S = 10.0
"""So long all pages of the hub's users may take together."""


class HubAway(Exception):
    """The hub did not answer, or not with what it promises; nothing may be concluded from that."""


GONE = frozenset({400, 404})
"""What the hub answers where such a server does not run, or is on its way down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One user of the hub: groups decide project membership, ``admin`` is the hub's own flag."""

    name: str
    groups: tuple[str, ...]
    admin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server the hub knows: active, or on its way up or down (``pending``)."""

    user: str
    name: str
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Everybody:
    """The names of all users of the hub, and of the groups that they are in; a group without a user is not told.

    ``groups`` is None where the hub does not tell this service's token who is in which.
    """

    users: frozenset[str]
    groups: frozenset[str] | None


class Hub(Protocol):
    """What the service asks of the hub with its own token."""

    async def account(self, name: str) -> Account | None:
        """A user by name, None if the hub knows none. Raises HubAway."""

    async def everybody(self) -> Everybody:
        """All users and their groups, within 10 s. Raises HubAway."""

    async def servers(self) -> Sequence[Server]:
        """Every server that is active or pending. Raises HubAway."""

    async def stop(self, user: str, server: str) -> None:
        """Stop a server; one that is stopped already is fine. Raises HubAway."""


class RestHub:
    """The hub's REST API at ``api_url`` (``.../hub/api``), asked with the service's token.

    Needs the scopes list:users, read:users:name, read:users:groups, read:servers and delete:servers.
    """

    def __init__(self, api_url: str, token: str) -> None:
        self._api_url, self._token = api_url.rstrip("/"), token

    async def account(self, name: str) -> Account | None:
        found = await self._get(f"users/{quote(name, safe='')}")
        if found is None:
            return None
        groups = found.get("groups", [])
        return Account(name=str(found["name"]), groups=tuple(map(str, groups)), admin=bool(found.get("admin")))

    async def everybody(self) -> Everybody:
        try:
            async with asyncio.timeout(EVERYBODY_TIMEOUT_S):
                users = await self._users()
        except TimeoutError as error:
            raise HubAway(f"the hub did not name all of its users within {EVERYBODY_TIMEOUT_S:.0f} s") from error
        if any("name" not in user for user in users):
            raise HubAway("the hub does not tell this service's token who its users are; it needs read:users:name")
        told = all("groups" in user for user in users)
        return Everybody(
            users=frozenset(str(user["name"]) for user in users),
            groups=frozenset(str(group) for user in users for group in user["groups"]) if told else None,
        )

    async def servers(self) -> list[Server]:
        users = await self._users(state="active")
        return [_server(user, server) for user in users for server in _servers_of(user)]

    async def _users(self, **only: str) -> list[Mapping[str, Any]]:
        """What the hub tells of its users, page by page. Raises HubAway."""
        users: list[Mapping[str, Any]] = []
        for _ in range(MOST_PAGES):
            query = urlencode({**only, "offset": len(users), "limit": PAGE_SIZE})
            page = await self._get(f"users?{query}", paged=True)
            items = page["items"] if page else []
            users += items
            if not items or page is None or page.get("_pagination", {}).get("next") is None:
                return users
        raise HubAway(f"the hub has more than {MOST_PAGES * PAGE_SIZE} users, and so many are not read")

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
            if error.code not in GONE:
                raise HubAway(f"the hub answered {error.code} to DELETE {path}") from error
        except (TimeoutError, OSError) as error:
            raise HubAway(f"the hub cannot be asked to stop {path}: {error}") from error

    async def _get(self, path: str, *, paged: bool = False) -> dict[str, Any] | None:
        headers = {"Authorization": f"token {self._token}"}
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
            raise HubAway(f"the hub answered {error.code} to GET {path.partition('?')[0]}") from error
        except (TimeoutError, OSError, ValueError) as error:
            raise HubAway(f"the hub cannot be asked for {path.partition('?')[0]}: {error}") from error
        if not isinstance(found, dict):
            raise HubAway(f"the hub's answer to GET {path.partition('?')[0]} is not what was expected")
        return found


def _servers_of(user: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Raises HubAway where servers are not told: lacking the scope read:servers is not a hub without servers."""
    if "servers" not in user:
        raise HubAway("the hub does not tell this service's token which servers run; it needs the scope read:servers")
    return list(user["servers"].values())


def _server(user: Mapping[str, Any], server: Mapping[str, Any]) -> Server:
    return Server(user=str(user["name"]), name=str(server.get("name", "")), active=not server.get("stopped", False))
