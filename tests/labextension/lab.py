"""A real hub whose users have JupyterLab with the built extension, in a real browser."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.demo.temporary_hub import HubUsers
from tests.hub.real_hub import RealHub, real_hub
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "jupyter_gpu_quota" / "labextension"
CHROMIUM = os.environ.get("GPU_QUOTA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PANEL = "#jupyter-gpu-quota"
LAB_OPENS_MS = 240_000
"""JupyterLab loads 10 MB of scripts: on a machine with much else to do a page needs minutes."""

QUOTA = """
version: 1
pools:
  - {name: train, selector: {gpu_model: ["Fake 80G"]}, uses: [training]}
  - {name: build, selector: {gpu_model: ["Fake 16G"]}, uses: [notebook]}
projects:
  - {name: bobs, members: {users: [bob, ann]}, quota: {train: {training: 2}, build: {notebook: 0.5}}}
  - {name: pattys, members: {users: [patty]}, quota: {train: {training: 2}, build: {notebook: 0.5}}}
"""
CONFIG = """
c.GPUQuota.quota_file = {folder!r} + "/lab.yaml"
c.GPUQuota.simulated_devices = [
    {{"model": "Fake 80G", "memory_mib": 81920, "count": 4}}, {{"model": "Fake 16G", "memory_mib": 16384, "count": 1}}]
c.Spawner.environment = {{"JUPYTER_PATH": {folder!r} + "/share"}}
c.Spawner.notebook_dir = {folder!r} + "/{{username}}"
c.Spawner.pre_spawn_hook = None
c.JupyterHub.log_level = "INFO"
"""
STEPS = """
import sys, time
from jupyter_gpu_quota.job import report_progress
for step in range(int(sys.argv[1])):
    print(f"\\x1b[32mstep\\x1b[0m {step} <img src=x onerror=alert(1)>", flush=True)
    report_progress(step + 1, int(sys.argv[1]), loss=1 / (step + 1))
    time.sleep(0.2)
"""

SET_THEME = """async theme => {
  const {baseUrl} = JSON.parse(document.getElementById("jupyter-config-data").textContent);
  const headers = {"X-XSRFToken": document.cookie.match(/_xsrf=([^;]+)/)[1]};
  const body = JSON.stringify({raw: JSON.stringify({theme})});
  const path = "lab/api/settings/@jupyterlab/apputils-extension:themes";
  return (await fetch(baseUrl + path, {method: "PUT", headers, body})).status;
}"""


def missing() -> str:
    """Why Lab cannot be tried in a browser here; empty where it can."""
    if CHROMIUM is None:
        return "no chromium on this machine: JupyterLab is not tried in a browser"
    return "" if (BUILT / "package.json").exists() else "the JupyterLab extension is not built: run `make lab`"


needs_lab = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@contextmanager
def lab_hub(folder: Path, quota: str = QUOTA) -> Iterator[RealHub]:
    """A hub with the users bob, patty and ann, each with a folder of their own that has ``train.py``."""
    extensions = folder / "share" / "labextensions"
    extensions.mkdir(parents=True)
    (extensions / "jupyter-gpu-quota").symlink_to(BUILT)
    (folder / "lab.yaml").write_text(quota)
    for name in ("bob", "patty", "ann"):
        (folder / name / "work").mkdir(parents=True)
        (folder / name / "work" / "train.py").write_text(STEPS)
    users = HubUsers(groups={}, users=("bob", "patty", "ann"))
    with real_hub(folder, before=CONFIG.format(folder=str(folder)), users=users) as hub:
        yield hub


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        playwright.expect.set_options(timeout=PATIENCE_S * 1000)
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


def logged_in(hub: RealHub, chromium: Any, name: str, *, has_slice: bool = True) -> Any:
    """A browser context of a user who has logged in, with a server that has a slice or none."""
    made = chromium.new_context(viewport={"width": 1280, "height": 1000})
    made.set_default_timeout(PATIENCE_S * 1000)
    made.add_init_script(TOASTS)
    log_in(hub, made, name, has_slice=has_slice)
    return made


def log_in(hub: RealHub, context: Any, name: str, *, has_slice: bool = True) -> None:
    """Log a user in, in a browser context that another user may have used before; their server runs."""
    if not hub.server(name).get("ready"):
        project = "pattys" if name == "patty" else "bobs"
        hub.start(name, {"gpu_project": project, "gpu_size": "1/8"} if has_slice else {})
    cookies = [
        {"name": one.name, "value": one.value or "", "domain": "127.0.0.1", "path": one.path}
        for one in hub.browser(name).cookies
    ]
    context.add_cookies(cookies)


def open_lab(hub: RealHub, context: Any, name: str, path: str = "", page: Any = None) -> Any:
    """JupyterLab of a user in a new workspace, with the sidebar open; ``path``: a file that it opens too."""
    page = page or context.new_page()
    page.goto(f"{hub.stage.url}/user/{name}/lab/workspaces/{uuid.uuid4().hex}{path}")
    page.locator('.lm-TabBar-tab[data-id="jupyter-gpu-quota"]').click(timeout=LAB_OPENS_MS)
    page.locator(f"{PANEL} .jgq-project").first.wait_for()
    return page


def submit(page: Any, command: str, fields: Mapping[str, str] | None = None) -> None:
    """Fill the form as a person does, and submit; the job's own view opens."""
    panel = page.locator(PANEL)
    for label, value in {"Command": command, "Folder": "work", **(fields or {})}.items():
        panel.get_by_label(label, exact=True).fill(value)
    panel.get_by_role("button", name="Submit", exact=True).click()
    panel.get_by_role("button", name="All jobs").wait_for()


TOASTS = """
window.toasts = [];
new MutationObserver(changes => changes.forEach(change => change.addedNodes.forEach(node => {
  const toast = node instanceof Element && (node.closest(".Toastify__toast") ?? node.querySelector(".Toastify__toast"));
  if (toast) { window.toasts.push(toast.innerText); }
}))).observe(document, {childList: true, subtree: true});
"""
"""Records the notifications of a page: JupyterLab removes some after eight seconds."""


def notified(page: Any, words: str) -> None:
    """Wait until a notification had these words, whether it is still shown or not."""
    page.wait_for_function("words => window.toasts.some(toast => toast.includes(words))", arg=words)


def cancel_all(hub: RealHub, name: str) -> None:
    """Cancel all jobs of a user."""
    token = hub.person(name).token
    for job in hub.service("GET", "/jobs?mine=1&live=1&limit=100", token=token).body["items"]:
        hub.service("POST", f"/jobs/{job['id']}/actions/cancel", {}, token=token)
