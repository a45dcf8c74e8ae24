"""``make demo`` as a process: a signal that ends make ends the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.patience import until

STANDS_IN = """#!{python}
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("{folder}/ended").touch(), sys.exit(0)))
pathlib.Path("{folder}/began").write_text(os.environ["GPU_QUOTA_PROXY_CACHE"])
time.sleep(600)
"""


def test_sigterm_to_make_ends_the_demo(tmp_path: Path) -> None:
    program = tmp_path / "venv" / "bin" / "jupyter-gpu-quota"
    program.parent.mkdir(parents=True)
    program.write_text(STANDS_IN.format(python=sys.executable, folder=tmp_path))
    program.chmod(0o755)
    (tmp_path / "proxy").mkdir()
    for made in ("venv/.demo", "proxy/.ready", "venv/.lab"):
        (tmp_path / made).touch()
    lab = f"{tmp_path}/venv/.lab"  # not rebuilt, also if a source of the extension is newer than the built one
    make = subprocess.Popen(["make", "-o", lab, "demo", f"VENV={tmp_path}/venv", f"CACHE={tmp_path}"], cwd=ROOT)
    try:
        _seen(tmp_path / "began")
        assert (tmp_path / "began").read_text() == f"{tmp_path}/proxy"
        os.kill(make.pid, signal.SIGTERM)
        _seen(tmp_path / "ended")
    finally:
        make.kill()
        make.wait()


@pytest.mark.parametrize("status", [0, 1], ids=["built", "failed"])
def test_a_build_prints_its_output_only_if_it_fails(tmp_path: Path, status: int) -> None:
    npm = tmp_path / "venv" / "bin" / "npm"
    npm.parent.mkdir(parents=True)
    npm.write_text(f"#!/bin/sh\necho 'WARNING: no license file' >&2\nexit {status}\n")
    npm.chmod(0o755)
    places = [f"VENV={tmp_path}/venv", f"CACHE={tmp_path}", f"LAB={tmp_path}/package.json"]
    command = [
        "make",
        "--no-print-directory",
        "-o",
        "labextension/node_modules/.ready",
        *places,
        f"{tmp_path}/package.json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    first, *rest = done.stdout.splitlines()
    assert first == "Building the JupyterLab extension and the scripts of the pages: half a minute."
    assert (done.returncode, rest) == ((0, []) if status == 0 else (2, ["WARNING: no license file"]))


def _seen(file: Path) -> None:
    until(lambda: file.exists() and (file.name == "ended" or file.read_text()), what=f"a file {file.name}")
