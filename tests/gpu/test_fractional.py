"""Four unsaturated jobs on one device at once, compared with one after the other; needs a real GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import real_library

STEPS, JOBS = 1000, 4
TOGETHER_AT_MOST = 0.6
"""Of the time that the same jobs take one after the other; without any sharing it would be 1."""


def started() -> subprocess.Popen[str]:
    load = str(Path(__file__).with_name("load.py"))
    job = subprocess.Popen(
        [sys.executable, load, str(STEPS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n", "the load on the GPU did not start"
    return job


def seconds(jobs: list[subprocess.Popen[str]]) -> float:
    """The duration of jobs that are started together."""
    began = time.monotonic()
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    for job in jobs:
        job.communicate(timeout=120)
        assert job.returncode == 0
    return time.monotonic() - began


@pytest.mark.parametrize("device", ["real"])
def test_four_unsaturated_jobs_share_one_device(device: str, record_property: Callable[[str, object], None]) -> None:
    lacking = real_library.lacking()
    if lacking is not None:
        pytest.skip(f"fractional training is not measured: no real GPU ({lacking})")
    one_by_one = sum(seconds([started()]) for _ in range(JOBS))
    together = seconds([started() for _ in range(JOBS)])
    record_property("together_of_one_by_one", round(together / one_by_one, 3))
    print(f"{JOBS} jobs one after the other: {one_by_one:.2f} s, together: {together:.2f} s")
    assert together <= TOGETHER_AT_MOST * one_by_one
