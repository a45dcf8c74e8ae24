"""Real cgroups of pods, named as a kubelet with the cgroupfs driver names them, for processes of this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
HIERARCHIES = ("pids", "unified", ".")


def _hierarchy() -> Path | None:
    """A hierarchy in which this process may make cgroups; None where it may not."""
    found = (ROOT / name for name in HIERARCHIES if (ROOT / name / "cgroup.procs").exists())
    return next((path for path in found if os.access(path, os.W_OK)), None)


def why_no_pod_cgroups() -> str:
    return "" if _hierarchy() else "this process may not make cgroups, so no process can be in that of a pod"


class PodCgroups:
    """Puts processes into the cgroups of pods; ``pod_cgroups`` removes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, pid: int, pod: str) -> None:
        own = self.folder / f"pod{pod}" / ("c" * 64)
        own.mkdir(parents=True, exist_ok=True)
        (own / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def pod_cgroups() -> Iterator[PodCgroups]:
    hierarchy = _hierarchy()
    assert hierarchy is not None, why_no_pod_cgroups()
    made = PodCgroups(hierarchy / f"kubepods-of-test-{os.getpid()}")
    try:
        yield made
    finally:
        _remove(made.folder, hierarchy)


def _remove(folder: Path, hierarchy: Path) -> None:
    """Remove cgroups from the innermost on; what is left of their processes goes to the root."""
    for path in sorted((p for p in folder.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (hierarchy / "cgroup.procs").write_text(pid)
        path.rmdir()
    if folder.exists():
        folder.rmdir()
    assert not folder.exists()
