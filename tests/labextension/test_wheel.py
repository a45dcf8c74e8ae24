"""The wheel in an environment of its own without Node: JupyterLab lists and shows the sidebar.

It downloads JupyterLab from the package index, about a minute: `make test-slow` runs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labextension.lab import PANEL, ROOT, chromium, needs_lab
from tests.patience import until

__all__ = ["chromium"]

pytestmark = [needs_lab, pytest.mark.slow, pytest.mark.timeout(1200)]

TOKEN = "of-the-test"
INSTALL_S = 600


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with JupyterLab and the wheel that the tree makes."""
    folder = tmp_path_factory.mktemp("wheel")
    clean = folder / "clean"
    run(sys.executable, "-m", "venv", str(clean))
    pip = (str(clean / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    run(*pip, "install", "--constraint", str(ROOT / ".ci" / "constraints.txt"), "jupyterlab", f"{wheel}[lab]")
    return clean


def run(*words: str, **more: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def variables(environment: Path) -> dict[str, str]:
    """Those of a person in this environment. The path has its programs and no Node."""
    home = environment.parent / "home"
    home.mkdir(exist_ok=True)
    made = {"HOME": str(home), "LC_ALL": "C.UTF-8", "PATH": str(environment / "bin")}
    assert shutil.which("node", path=made["PATH"]) is None
    return made


def test_jupyterlab_lists_the_extension_of_the_wheel(environment: Path) -> None:
    listed = run("jupyter", "labextension", "list", env=variables(environment))
    (line,) = [line for line in listed.splitlines() if "jupyter-gpu-quota" in line]
    assert "enabled" in line and "OK" in line
    assert "jupyter_gpu_quota" in run("jupyter", "server", "extension", "list", env=variables(environment))


@pytest.fixture
def lab(environment: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab of the environment."""
    words = ["jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
             f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={tmp_path}"]  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(words, env=variables(environment), cwd=tmp_path, stdout=log, stderr=log)
    try:
        listens = until(lambda: re.search(r"http://127\.0\.0\.1:\d+/lab", (tmp_path / "log").read_text()))
        yield f"{listens[0]}?token={TOKEN}"
    finally:
        server.terminate()
        server.wait(60)


def test_the_sidebar_appears_and_says_that_there_is_no_service(lab: str, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto(lab)
    page.locator('.lm-TabBar-tab[data-id="jupyter-gpu-quota"]').click(timeout=120_000)
    page.locator(PANEL).get_by_text("The GPU service is not configured for this server.").wait_for()
    page.close()
