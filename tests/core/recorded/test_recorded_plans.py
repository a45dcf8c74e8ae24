"""No plan changes unnoticed: snapshots with the plans that the scheduler made of them.

``README.md`` has their sources, and how to record them again. An ordinary run decides the first file, ``make soak``
all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.core.scheduling.decide import decide, decide_and_explain
from tests.core.recorded.rows import FILES, Row, document_of, recorded, rows_of, without_sentences

SOAKS = int(os.environ.get("GPU_QUOTA_WORLDS", "0")) >= 10_000
PARTS = 4
MOST_PRINTED = 3


def chunks() -> Iterator[object]:
    """Every file in a few parts; by default the first file only."""
    for path in FILES if SOAKS else FILES[:1]:
        for part in range(PARTS):
            yield pytest.param(path, part, id=f"{path.name.partition('.')[0]}, part {part + 1} of {PARTS}")


@pytest.mark.parametrize(("path", "part"), list(chunks()))
def test_the_plan_is_the_recorded_one(path: Path, part: int) -> None:
    rows = islice(rows_of(path), part, None, PARTS)
    found = [(row["id"], shown) for row in rows for shown in changes(row)]
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
    decision = decide_and_explain(document.snapshot, document.policy)
    found = recorded(decision)
    if without_sentences(decide(document.snapshot, document.policy)) != found["plan"]:
        yield "decide and decide_and_explain make two plans"
    for part, value in found.items():
        yield from _changed(part, row[part], value)


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
