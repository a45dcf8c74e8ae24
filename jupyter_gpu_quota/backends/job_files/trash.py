"""The trash of a state folder: folders of forgotten jobs, and removed outputs. Emptying waits for the disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

REMOVE_TIMEOUT_S = 600.0

GIVE_ACCESS = ("chmod", "-R", "u+rwX")
"""The owner of a folder may have removed its own permissions. Only an account that is not root needs them to remove it.

Root must never change them: chmod follows a link that the owner, who may still have the folder open, puts in the place
of a file meanwhile.
"""

REMOVE = ("rm", "-rf", "--one-file-system")
"""Not shutil.rmtree, which fails on folders that are nested deeper than Python's recursion limit."""


def empty_trash(state_dir: str) -> dict[str, str]:
    """Remove what is in the trash; returns why folders are still there, by path."""
    kept = {}
    for path in Path(state_dir, "trash").iterdir():
        try:
            if os.geteuid() != 0:
                give = [*GIVE_ACCESS, "--", str(path)]
                subprocess.run(give, check=False, capture_output=True, timeout=REMOVE_TIMEOUT_S)
            removed = subprocess.run(
                [*REMOVE, "--", str(path)], check=False, capture_output=True, timeout=REMOVE_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            kept[str(path)] = f"it takes longer than {REMOVE_TIMEOUT_S:.0f} s"
            continue
        if path.exists():
            kept[str(path)] = removed.stderr.decode(errors="replace").strip()[:400] or "it is there again"
    return kept
