"""P14: equal snapshots give equal plans, whatever the order of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Found = Iterator[tuple[str, str]]
Document = dict[str, Any]

LISTS = ("allocations", "devices", "jobs", "nodes", "notebooks", "reservations", "usage")


def check(document: Document, plan: Document, decide: Callable[[Document], Document], random: Random) -> Found:
    """Decide on the same rows in another order."""
    again = decide(shuffled(document, random))
    if again != plan:
        yield "P14", f"another order of the rows: {_names(plan)} becomes {_names(again)}"


def shuffled(document: Document, random: Random) -> Document:
    snapshot, policy = dict(document["snapshot"]), dict(document["policy"])
    for rows, names in ((snapshot, LISTS), (policy, ("projects", "departments"))):
        for name in names:
            rows[name] = random.sample(rows[name], len(rows[name]))
    return {**document, "snapshot": snapshot, "policy": policy}


def _names(plan: Document) -> str:
    return ", ".join(f"{one['action']} {one['workload']}" for one in plan["actions"]) or "nothing"
