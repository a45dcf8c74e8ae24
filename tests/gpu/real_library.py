"""The machine's own GPU: whether there is one, and the figures of nvidia-smi."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache


@cache
def lacking() -> str | None:
    """Why the tests cannot run on a real GPU here; None if they can."""
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi is not on the path"
    for library in ("libnvidia-ml.so.1", "libcuda.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return str(error)
    try:
        return None if query("uuid") else "nvidia-smi names no GPU"
    except (subprocess.SubprocessError, OSError) as error:
        return f"nvidia-smi does not answer: {error}"


def query(*fields: str) -> list[tuple[str, ...]]:
    """One row per GPU, by nvidia-smi."""
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [tuple(part.strip() for part in line.split(",")) for line in done.stdout.splitlines() if line.strip()]
