"""Record the plans again, after a change of the rules: ``python -m tests.core.recorded.record``.

The snapshots stay as they are. Run ``python -m tests.core.recorded.changes`` before: it shows what changes, by kind.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from tests.core.recorded.rows import FILES, decided, rows_of

PACKING = 9 | lzma.PRESET_EXTREME


def record(path: Path) -> int:
    """Decide on every snapshot of a file and write the file anew. Returns the number of plans that changed."""
    lines, changed = list[str](), 0
    for row in rows_of(path):
        found = decided(row)
        changed += found["plan"] != row["plan"]
        lines.append(json.dumps(row | found, ensure_ascii=False, separators=(",", ":")))
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=PACKING))
    return changed


def main() -> None:
    for path in FILES:
        print(f"{path.name}: {record(path)} plans changed, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
