"""The script of the images, run as an image is built: it downloads the pinned dependencies, about a minute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpu_quota import __version__

ROOT = Path(__file__).parents[2]
INSTALL_S = 900
COMPILERS = ("cc", "gcc", "g++", "clang", "ld", "pip")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root folder of the service's image; its environment is at the same path in it."""
    folder = tmp_path_factory.mktemp("image")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, str(ROOT / "images" / "install.py"), "service", "--wheel", str(wheel), "--root", str(folder))
    return folder


def run(*words: str, **variables: str) -> str:
    environment = os.environ | {"GPU_QUOTA_WITHOUT_LAB": "1"} | variables
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S)
def test_the_service_starts_from_its_image(root: Path) -> None:
    programs = root / "opt/gpu-quota/bin"
    shown = run(str(programs / "python"), "-m", "jupyter_gpu_quota", "--version")
    assert shown.strip() == f"jupyter-gpu-quota, version {__version__}"
    script = (programs / "jupyter-gpu-quota").read_text()
    assert script.startswith("#!/opt/gpu-quota/bin/python\n"), "the interpreter of the image, and not of its build"
    imported = "import kubernetes_asyncio, psycopg, jupyterhub, tornado, pynvml"
    run(str(programs / "python"), "-c", imported)


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S)
def test_an_image_has_an_account_and_nothing_that_builds_or_installs(root: Path) -> None:
    assert (root / "etc/passwd").read_text() == "jovyan:x:1000:1000::/home/jovyan:/bin/sh\n"
    assert (root / "home/jovyan").stat().st_uid == (1000 if os.geteuid() == 0 else os.geteuid())
    assert not {path.name for path in root.rglob("*") if os.access(path, os.X_OK)} & set(COMPILERS)
