"""The pages Install and Uninstall, followed to the letter: a new environment, a real hub, a job, and the removal."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub, end_process
from tests.docs.pages import ROOT, blocks, commands
from tests.patience import until

INSTALL, REMOVE = (ROOT / "docs" / "how-to" / name for name in ("install.md", "remove.md"))
FOLDER = "/srv/jupyterhub"
"""The folder of the pages."""

QUOTA = next(block.text for block in blocks(ROOT / "README.md") if block.argument == "quota.yaml")
PIP_TIMEOUT_S = 900


def pip_lines(page: Path) -> list[list[str]]:
    """The arguments of each line of a page that calls pip."""
    lines = [shlex.split(line) for block in blocks(page) if block.language == "console" for line in commands(block)]
    return [line[1:] for line in lines if line[0] == "pip"]


def pip(environment: Path, arguments: Sequence[str]) -> None:
    command = [str(environment / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PIP_TIMEOUT_S)


class InstalledHub(TemporaryHub):
    """A hub whose last lines are those of the page; ``lines`` are empty once the product is removed."""

    lines = ""

    def _config(self) -> str:
        ours = ("c.GPUQuota", "from jupyter_gpu_quota", "setup_gpu_quota")
        return "\n".join([*(line for line in super()._config().splitlines() if not line.startswith(ours)), self.lines])


def test_the_uninstall_page_names_each_line_that_the_install_page_adds() -> None:
    """With one of them left the hub does not start after the package is uninstalled."""
    (step,) = re.findall(r"^2\. (.*?)^3\. ", REMOVE.read_text(), re.MULTILINE | re.DOTALL)
    named = tuple(re.findall(r"`([^`]+)`", step))
    added = [line for block in blocks(INSTALL) if block.kind == "config" for line in block.text.splitlines()]
    left = [line for line in added if not line.startswith(named)]
    assert not [line for line in left if "gpu_quota" in line or "GPUQuota" in line]


@pytest.mark.slow
def test_the_install_page_and_the_uninstall_page_work_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment, folder = tmp_path / "environment", tmp_path / "hub"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=PIP_TIMEOUT_S)
    for arguments in pip_lines(INSTALL):
        pip(environment, arguments)
    hub = InstalledHub(folder, users=HubUsers(groups={"fraud-ds": ("ann",)}), python=str(environment / "bin/python"))
    setup, devices = [block.text for block in blocks(INSTALL) if block.kind == "config"][:2]
    first, last = setup.split("\nfrom jupyter_gpu_quota", 1)  # the devices go above the last lines
    hub.lines = f"{first}\n{devices}\nfrom jupyter_gpu_quota{last}".replace(FOLDER, str(folder))
    folder.mkdir()
    (folder / "quota.yaml").write_text(QUOTA)
    try:
        hub.start()
        submit_one_job(hub, environment, tmp_path / "work")
        remove(hub)
    finally:
        hub.end()
    for arguments in pip_lines(REMOVE):
        pip(environment, arguments)
    left = subprocess.run(
        [str(environment / "bin/python"), "-I", "-c", "import jupyter_gpu_quota"], capture_output=True
    )
    assert b"No module named" in left.stderr


def submit_one_job(hub: TemporaryHub, environment: Path, folder: Path) -> None:
    """A job from an empty folder: with this test's own it would pack the environment."""
    folder.mkdir()
    command = [str(environment / "bin" / "jupyter"), "gpu-quota"]
    options = ["--url", hub.url, "--token", hub.token_of("ann"), "--gpu", "1", "--wait", "--", "echo", "trained"]
    done = subprocess.run([*command, "submit", *options], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (job,) = hub.ask("GET", f"{hub.service_api}/jobs", hub.token_of("ann"))["items"]
    assert (job["state"], job["user"]) == ("succeeded", "ann")


def remove(hub: InstalledHub) -> None:
    """Delete our lines, restart the hub, and look for anything of ours in it."""
    assert hub.hub is not None
    admin, hub.lines = hub.admin_token, ""
    end_process(hub.hub, 30)
    (hub.folder / "jupyterhub_config.py").write_text(hub._config())
    hub.start_hub()
    until(lambda: answers(hub, admin), what="the hub without the service")
    assert "gpu-quota" not in hub.ask("GET", f"{hub.hub_api}/services", admin)
    assert (hub.folder / "gpu-quota").exists()


def answers(hub: TemporaryHub, token: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError, json.JSONDecodeError):
        return bool(hub.ask("GET", f"{hub.hub_api}/user", token)["admin"])
    return False
