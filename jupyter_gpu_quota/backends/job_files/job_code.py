"""The code of a job on the disk: its bundle, and what an attempt unpacked."""

from __future__ import annotations

import os

from .paths import bundle_file, rank_paths


def has_code(state_dir: str, bundles_dir: str, job: str, bundle: str) -> bool:
    """Whether a job has its bundle, or unpacked code; what the disk does not return now counts as there."""
    return not all(map(_is_absent, (bundle_file(bundles_dir, bundle), rank_paths(state_dir, job, 1, 0).code)))


def _is_absent(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
