"""The front end's own tests, which Node runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKSPACE = Path(__file__).parents[2] / "labextension"
VITEST = WORKSPACE / "node_modules" / ".bin" / "vitest"


@pytest.mark.skipif(not VITEST.exists(), reason="the front end's packages are not installed: run `make lab`")
def test_the_tests_of_the_front_end_pass() -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(VITEST), "run"],
        cwd=WORKSPACE,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
