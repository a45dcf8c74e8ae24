"""Reduces a saved snapshot document while its plan still breaks a rule: ``python -m tests.outside.reduce RULE IN OUT``.

Jobs, notebooks, projects and nodes are left out one after the other, until none can be.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from .documents import Document, state_of
from .product import Rejected, plan_of
from .rules import every
from .steps import Step

Breaks = Callable[[Document], bool]


def main() -> int:
    """Returns 1 if the document does not break the rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside.reduce", description="reduce a snapshot document")
    parser.add_argument("rule", help="the rule that its plan breaks")
    parser.add_argument("document", type=Path)
    parser.add_argument("result", type=Path)
    arguments = parser.parse_args()
    document = json.loads(arguments.document.read_text())
    breaks: Breaks = lambda one: breaks_rule(one, arguments.rule)  # noqa: E731
    if not breaks(document):
        print(f"the plan of {arguments.document} does not break {arguments.rule}")
        return 1
    arguments.result.write_text(json.dumps(reduced(document, breaks), indent=1) + "\n")
    return 0


def breaks_rule(document: Document, rule: str) -> bool:
    """Whether the product accepts a document, and its plan breaks a rule."""
    try:
        step = Step(state_of(document), plan_of(document))
        return any(found == rule for found, _ in every.check(step))
    except (Rejected, KeyError):
        return False


def reduced(document: Document, breaks: Breaks) -> Document:
    """The document with as little as still breaks."""
    smaller = next((one for one in _smaller(document) if breaks(one)), None)
    while smaller is not None:
        document = smaller
        smaller = next((one for one in _smaller(document) if breaks(one)), None)
    return document


def _smaller(document: Document) -> Iterator[Document]:
    """The document without one record, the largest parts first."""
    rows = document["snapshot"]
    for node in rows["nodes"]:
        yield _without_devices(document, {one["id"] for one in rows["devices"] if one["node"] == node["id"]})
    for project in document["policy"]["projects"]:
        yield _without_project(document, project["name"])
    for name in ("jobs", "notebooks"):
        for row in rows[name]:
            yield _without_work(document, {row["id"]})
    for device in rows["devices"]:
        yield _without_devices(document, {device["id"]})
    for name in ("reservations", "usage"):
        for at in range(len(rows[name])):
            yield _with(document, **{name: [*rows[name][:at], *rows[name][at + 1 :]]})


def _with(document: Document, **rows: list[Document]) -> Document:
    return {**document, "snapshot": {**document["snapshot"], **rows}}


def _without_project(document: Document, name: str) -> Document:
    """The document without a project, its work and its past use."""
    policy, rows = document["policy"], document["snapshot"]
    work = {one["id"] for one in (*rows["jobs"], *rows["notebooks"]) if one["project"] == name}
    left = _with(_without_work(document, work), usage=[one for one in rows["usage"] if one["project"] != name])
    return {**left, "policy": {**policy, "projects": [one for one in policy["projects"] if one["name"] != name]}}


def _without_work(document: Document, gone: set[str]) -> Document:
    rows = document["snapshot"]
    lists = {name: [one for one in rows[name] if one["id"] not in gone] for name in ("jobs", "notebooks")}
    parts = {
        name: [one for one in rows[name] if one["workload"] not in gone] for name in ("allocations", "reservations")
    }
    return _with(document, **lists, **parts)


def _without_devices(document: Document, gone: set[str]) -> Document:
    """The document without devices, the work there, and nodes that have none left."""
    rows = document["snapshot"]
    work = {one["workload"] for one in rows["allocations"] if one["device"] in gone}
    work |= {one["id"] for one in rows["notebooks"] if one["device"] in gone}
    devices = [one for one in rows["devices"] if one["id"] not in gone]
    nodes = [one for one in rows["nodes"] if one["id"] in {each["node"] for each in devices}]
    kept = [one for one in rows["reservations"] if gone.isdisjoint(part["device"] for part in one["placements"])]
    return _without_work(_with(document, devices=devices, nodes=nodes, reservations=kept), work)


if __name__ == "__main__":
    raise SystemExit(main())
