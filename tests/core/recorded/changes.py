"""Count the recorded plans that differ from those that an earlier commit recorded, by kind.

``python -m tests.core.recorded.changes COMMIT`` compares today's decisions with the plans recorded at that commit, and
stores the counts in ``docs/figures/changed_plans.json``; ``--show KIND`` names the snapshots of a kind instead.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from jupyter_gpu_quota.core.amounts import memory_share_mib
from jupyter_gpu_quota.core.reason_figures import OLD_FIGURES
from tests.core.recorded.kinds import OTHER, Kind, kind_of
from tests.core.recorded.rows import FILES, Row, decided, rows_at

STORED = Path(__file__).parents[3] / "docs" / "figures" / "changed_plans.json"


def renamed(row: Row) -> Row:
    """A recorded line with the present names of figures, the fields that actions have now, and the memory."""
    text = json.dumps({key: row[key] for key in ("plan", "waits", "kept")})
    for old, new in OLD_FIGURES.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    found: Row = {**row, **json.loads(text)}
    for action in found["plan"]["actions"]:
        action["reason"].pop("message", None)
        if action["action"] == "reserve":
            action.setdefault("starts_at", None)
    devices = {one["id"]: one["memory_mib"] for one in row["snapshot"]["snapshot"]["devices"]}
    for part in (part for action in found["plan"]["actions"] for part in action.get("placements", ())):
        part["memory_mib"] = memory_share_mib(devices[part["device"]], part["gpu_milli"])
    return found


def changed_since(commit: str) -> tuple[int, dict[Kind, list[str]]]:
    """The number of snapshots, and the ids of those whose plan is another one than at a commit, by kind."""
    total, found = 0, defaultdict[Kind, list[str]](list)
    for path in FILES:
        for row in rows_at(commit, path):
            total += 1
            kind = kind_of(renamed(row), decided(row))
            if kind is not None:
                found[kind].append(row["id"])
    return total, found


def document(total: int, found: dict[Kind, list[str]]) -> dict[str, object]:
    """The counts as they are stored: the most frequent kind first, each with the snapshots to look at."""
    rows = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    kinds = [{"kind": kind.text, "rules": kind.rules, "plans": len(ids), "first": ids[0]} for kind, ids in rows]
    return {"snapshots": total, "changed": sum(len(ids) for _, ids in rows), "kinds": kinds}


def main() -> int:
    """Returns 1 if a plan differs in a way that no rule demands."""
    parser = argparse.ArgumentParser(prog="python -m tests.core.recorded.changes", description="count changed plans")
    parser.add_argument("commit")
    parser.add_argument("--show", metavar="KIND", help="name the snapshots of the kinds whose text contains this")
    arguments = parser.parse_args()
    total, found = changed_since(arguments.commit)
    if arguments.show is not None:
        for kind, ids in found.items():
            if arguments.show in kind.text:
                print(f"{kind.text}: {' '.join(ids)}")
        return 0
    STORED.write_text(json.dumps(document(total, found), indent=1) + "\n")
    for kind, ids in sorted(found.items(), key=lambda one: -len(one[1])):
        print(f"{len(ids):5} {kind.text} ({kind.rules}): {' '.join(ids[:4])}")
    return 1 if OTHER in found else 0


if __name__ == "__main__":
    raise SystemExit(main())
