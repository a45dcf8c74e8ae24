"""A migrated SQLite database without rows, made once a test process: copying it takes a tenth of the time."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from jupyter_gpu_quota.store.open import open_store


@functools.cache
def _content() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        open_store(f"sqlite:///{path}").close()
        return path.read_bytes()


def make_empty_database(path: Path) -> None:
    """Write the file, for its owner alone as the store makes it."""
    path.touch(0o600)
    path.write_bytes(_content())
