"""Bounded fuzzing: readers never raise, nor does ``decide`` on an accepted snapshot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUZZ_S = int(os.environ.get("GPU_QUOTA_FUZZ_S", "60"))
"""Seconds of fuzzing for each target."""

pytest.importorskip(
    "atheris", reason="atheris is not installed: pip install 'jupyter-gpu-quota[fuzz]' (wheels for Linux on x86)"
)


@pytest.mark.soak
@pytest.mark.timeout(FUZZ_S + 240)
@pytest.mark.parametrize("target", ["snapshot", "trace", "quota"])
def test_no_input_makes_a_reader_raise(target: str, tmp_path: Path) -> None:
    bounds = [f"-max_total_time={FUZZ_S}", "-timeout=60", "-rss_limit_mb=4096", "-max_len=4096", "-len_control=0"]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    files = [f"-artifact_prefix={tmp_path}/", str(corpus)]
    command = [sys.executable, "-m", "tests.soak.fuzz", target, *bounds, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=FUZZ_S + 200)
    assert done.returncode == 0, f"the failing inputs are in {tmp_path}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
