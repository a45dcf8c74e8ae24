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
    the page before it is read again. Each item is returned once.
    """
    offset, known, query = 0, set[str](), arguments.checked_query(query)
    while limit is None or len(known) < arguments.whole_number(limit, "limit"):
        window = {"offset": offset, "limit": PAGE if limit is None else min(PAGE, limit - len(known) + bool(offset))}
        answer = connection.json_of(Call(path=path, query={**query, **window}))
        if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
            return
        found = [(_key(item), item) for item in answer["items"]]
        if offset and known.isdisjoint(key for key, _ in found):
            offset = max(0, offset - PAGE + 1)
            continue
        yield answer | {"items": [item for key, item in found if key not in known]}
        known.update(key for key, _ in found)
        end = offset + len(found)
        if not found or end >= answer.get("_pagination", {}).get("total", 0):
            return
        offset = end - 1


def _key(item: Any) -> str:
    """The identity of an item: its number, its id in its cluster, or all of it where it has neither."""
    named = {name: item[name] for name in ("seq", "id") if name in item} if isinstance(item, dict) else {}
    return json.dumps({**named, "cluster": item.get("cluster")} if named else item, sort_keys=True)
