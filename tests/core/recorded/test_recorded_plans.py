"""No plan of release 0.1.0 changes: snapshots with the plans that it made, recorded before the package was reorganised.

``README.md`` has their sources. An ordinary run decides the first file, ``make soak`` all of them.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from jupyter_gpu_quota.core.canonical import plain
from jupyter_gpu_quota.core.scheduling.decide import decide, decide_and_explain
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument, plan_document, read

RENAMED_CODES: dict[str, str] = {
    "held_too_weakly": "enforcement_too_weak",
    "nothing_holds_it": "enforcement_unavailable",
    "place_kept": "backfill_reserved",
    "devices_out": "device_unavailable",
    "over_its_share": "over_share",
}
"""What a reason is called now, by the code that was recorded."""
FIXED = {"random-0725": "a new slice claimed a device on which the lent slice of another notebook has room (R50)"}
"""Recorded plans that were wrong, and why."""
RENAMED_FIGURES: dict[str, str] = {"holder": "workload"}
"""What a figure of a reason is called now, by the name that was recorded."""

FILES = sorted(Path(__file__).parent.glob("plans-*.jsonl.xz"))
SOAKS = int(os.environ.get("GPU_QUOTA_WORLDS", "0")) >= 10_000
PARTS = 4
MOST_PRINTED = 3

Row = dict[str, Any]


def chunks() -> Iterator[object]:
    """Every file in a few parts; by default the first file only."""
    for path in FILES if SOAKS else FILES[:1]:
        for part in range(PARTS):
            yield pytest.param(path, part, id=f"{path.name.partition('.')[0]}, part {part + 1} of {PARTS}")


@pytest.mark.parametrize(("path", "part"), list(chunks()))
def test_the_plan_is_the_recorded_one(path: Path, part: int) -> None:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        found = [
            (row["id"], shown)
            for row in map(json.loads, islice(lines, part, None, PARTS))
            if row["id"] not in FIXED
            for shown in changes(row)
        ]
    changed = len({name for name, _ in found})
    first = "\n".join(f"{name}: {shown}" for name, shown in found[:MOST_PRINTED])
    assert not found, f"{changed} plans of {path.name} changed; the first differences:\n{first}"


def test_all_recorded_files_exist() -> None:
    assert len(FILES) == 5 and FILES[0].name == "plans-1.jsonl.xz"


def changes(row: Row) -> Iterator[str]:
    """What is not as it was recorded, each as a sentence."""
    document = document_of(row)
    if isinstance(document, list):
        yield f"the snapshot is refused: {document}"
        return
    plan = plan_document(decide(document.snapshot, document.policy))
    decision = decide_and_explain(document.snapshot, document.policy)
    if plan_document(decision.plan) != plan:
        yield "decide and decide_and_explain make two plans"
    yield from _changed("plan", _renamed(row["plan"]), _unsaid(plan))
    yield from _changed("waits", _renamed(row["waits"]), _plain(decision.waits))
    yield from _changed("kept", row["kept"], _plain(decision.backfill))


def document_of(row: Row) -> SnapshotDocument | list[str]:
    """The snapshot with its policy. A world that cannot be one, which tests decide too, is read by its types alone."""
    text = json.dumps(row["snapshot"], ensure_ascii=False)
    if row.get("coherent", True):
        return read(text)
    return _types().validate_json(text)


@cache
def _types() -> TypeAdapter[SnapshotDocument]:
    return TypeAdapter(SnapshotDocument)


def _plain(value: object) -> Any:
    return plain(value)


def _renamed(value: Any) -> Any:
    """What was recorded, its reasons by the names that they have now, and without their sentences."""
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() >= {"code", "figures"}:
        figures = [[RENAMED_FIGURES.get(name, name), figure] for name, figure in value["figures"]]
        return {"code": RENAMED_CODES.get(value["code"], value["code"]), "figures": figures}
    return {key: _renamed(each) for key, each in value.items()}


def _unsaid(plan: Mapping[str, Any]) -> Row:
    """A plan without the sentences of its reasons: how a reason is said may change."""
    said = [(action, action["reason"]) for action in plan["actions"]]
    bare = [{**action, "reason": {"code": why["code"], "figures": why["figures"]}} for action, why in said]
    return {**plan, "actions": bare}


def _changed(what: str, before: Any, now: Any) -> Iterator[str]:
    """The places at which two documents differ, the innermost."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _changed(f"{what}.{key}", before.get(key, "not there"), now.get(key, "not there"))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _changed(f"{what}.{at}", one, other)
    elif before != now or type(before) is not type(now):
        yield f"{what} was {before} and is {now}"
