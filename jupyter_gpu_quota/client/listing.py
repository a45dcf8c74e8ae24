"""Listings of the service, which it sends in pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from . import arguments
from .connection import Call, Connection, Query

Item = TypeVar("Item")

PAGE = 200
"""Items of one request for a listing."""


class Listing(list[Item]):
    """Items of the service. ``total``: how many it had; with a ``limit`` there may be more than these."""

    def __init__(self, items: Iterable[Item] = (), total: int | None = None) -> None:
        super().__init__(items)
        self.total = len(self) if total is None else total


def pages(connection: Connection, path: str, query: Query, limit: int | None) -> Iterator[dict[str, Any]]:
    """The pages of a listing, each with its ``items``, at most ``limit`` in total; None: all.

    Rows that are written between two requests are the first ones of a listing and move the others, so that a page may
    begin with items of the page before: each item is returned once.
    """
    offset, known, query = 0, set[str](), arguments.checked_query(query)
    while limit is None or len(known) < arguments.whole_number(limit, "limit"):
        window = {"offset": offset, "limit": PAGE if limit is None else min(PAGE, limit - len(known))}
        answer = connection.json_of(Call(path=path, query={**query, **window}))
        if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
            return
        found = [(_key(item), item) for item in answer["items"]]
        yield answer | {"items": [item for key, item in found if key not in known]}
        known.update(key for key, _ in found)
        offset += len(found)
        if not found or offset >= answer.get("_pagination", {}).get("total", 0):
            return


def _key(item: Any) -> str:
    """The identity of an item: its number, its id in its cluster, or all of it where it has neither."""
    named = {name: item[name] for name in ("seq", "id") if name in item} if isinstance(item, dict) else {}
    return json.dumps({**named, "cluster": item.get("cluster")} if named else item, sort_keys=True)
