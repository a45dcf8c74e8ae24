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

    Rows that are written between two requests move the others down, and rows that no longer match move them up. So each
    page begins with the last item of the page before. If no item of a page is known, items between were left out, and
    the page before it is read again. Each item is returned once. Items without an identity cannot be recognised, since
    their figures change: of these each page follows the one before.
    """
    offset, known, query = 0, set[str](), arguments.checked_query(query)
    most = None if limit is None else arguments.whole_number(limit, "limit")
    size = PAGE if most is None else min(PAGE, most)
    while most is None or len(known) < most:
        answer = connection.json_of(Call(path=path, query={**query, "offset": offset, "limit": size}))
        if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
            return
        found = {_key(item): item for item in answer["items"]}
        is_named = all(map(_identity, answer["items"]))
        if offset and is_named and known.isdisjoint(found):
            offset = max(0, offset - PAGE + 1)
            continue
        new = [key for key in found if key not in known][: None if most is None else most - len(known)]
        yield answer | {"items": [found[key] for key in new]}
        known.update(new)
        end = offset + len(answer["items"])
        if not found or end >= answer.get("_pagination", {}).get("total", 0):
            return
        offset = end - is_named


def _identity(item: Any) -> dict[str, Any]:
    """The number of an item, or its id in its cluster; empty where it has neither."""
    named = {name: item[name] for name in ("seq", "id") if name in item} if isinstance(item, dict) else {}
    return {**named, "cluster": item.get("cluster")} if named else {}


def _key(item: Any) -> str:
    """The identity of an item, or all of it."""
    return json.dumps(_identity(item) or item, sort_keys=True)
