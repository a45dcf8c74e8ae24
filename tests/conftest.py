"""Settings of Hypothesis for all tests, and where their temporary files are.

Hypothesis has no deadline, because the machine may be slow.

``make test`` plays the same examples every time, so that a new failure comes from the change. ``make soak`` sets
``GPU_QUOTA_WORLDS`` and plays twice as many; ``GPU_QUOTA_WORLD_SEED`` fixes its worlds, without it each run draws new
ones. Hypothesis also draws numbers and strings from the source of the modules loaded so far, and these depend on the
order of the tests: they are left out where a run must be repeatable.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture.providers import Constants, HypothesisProvider

EXPLORES = "GPU_QUOTA_WORLDS" in os.environ

settings.register_profile(
    "patient",
    max_examples=100 if EXPLORES else 50,
    deadline=None,
    derandomize=not EXPLORES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")
if not EXPLORES or "GPU_QUOTA_WORLD_SEED" in os.environ:
    HypothesisProvider._local_constants = Constants()  # there is no setting for it

IN_MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Free bytes that a whole run is sure to need less than."""


def has_room(folder: Path) -> bool:
    """Whether a folder has room for a run, and may have programs: a container's /dev/shm is often too small."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free >= ROOM


if "TMPDIR" not in os.environ and has_room(IN_MEMORY):  # a commit of SQLite takes 4 ms on a disk, 0.05 ms in memory
    tempfile.tempdir = str(IN_MEMORY)
