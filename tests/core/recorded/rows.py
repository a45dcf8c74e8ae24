"""The recorded lines: reading them, deciding on their snapshots, and the plan as it is recorded."""

from __future__ import annotations

import io
import json
import lzma
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from jupyter_gpu_quota.core.canonical import plain
from jupyter_gpu_quota.core.plan import Plan
from jupyter_gpu_quota.core.reason_figures import OLD_CODES
from jupyter_gpu_quota.core.scheduling.decide import Decision, decide_and_explain
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument, plan_document, read

Row = dict[str, Any]

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("plans-*.jsonl.xz"))


def rows_of(path: Path) -> Iterator[Row]:
    """The lines of one file."""
    yield from _lines(path.read_bytes())


def rows_at(commit: str, path: Path) -> Iterator[Row]:
    """The lines of one file as a commit has it."""
    shown = ["git", "show", f"{commit}:./{path.name}"]
    yield from _lines(subprocess.run(shown, cwd=HERE, check=True, capture_output=True).stdout)


def _lines(packed: bytes) -> Iterator[Row]:
    with lzma.open(io.BytesIO(packed), "rt", encoding="utf-8") as lines:
        yield from (json.loads(_with_present_codes(line)) for line in lines)


def _with_present_codes(line: str) -> str:
    for old, new in OLD_CODES.items():
        line = line.replace(f'"{old}"', f'"{new}"')
    return line


def document_of(row: Row) -> SnapshotDocument | list[str]:
    """The snapshot with its policy. A world that cannot be one, which tests decide too, is read by its types alone."""
    text = json.dumps(row["snapshot"], ensure_ascii=False)
    if row.get("coherent", True):
        return read(text)
    return _types().validate_json(text)


@cache
def _types() -> TypeAdapter[SnapshotDocument]:
    return TypeAdapter(SnapshotDocument)


def recorded(decision: Decision) -> Row:
    """What a line has of a decision: the plan, the reasons of waiting work, and the backfill reservations."""
    return {
        "plan": without_sentences(decision.plan),
        "waits": plain(decision.waits),
        "kept": plain(decision.backfill),
    }


def decided(row: Row) -> Row:
    """What the scheduler decides today on the snapshot of a line, as it would be recorded."""
    document = document_of(row)
    assert isinstance(document, SnapshotDocument), f"{row['id']}: the snapshot is refused: {document}"
    return recorded(decide_and_explain(document.snapshot, document.policy))


def without_sentences(plan: Plan) -> Row:
    """A plan without the sentences of its reasons: how a reason is said may change."""
    document: Row = plan_document(plan)
    actions = [{**action, "reason": _bare(action["reason"])} for action in document["actions"]]
    return {**document, "actions": actions}


def _bare(reason: Row) -> Row:
    return {"code": reason["code"], "figures": reason["figures"]}
