"""An idle notebook in JupyterLab: the warning, the button that keeps the GPU, and the message after the shutdown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub.real_hub import RealHub
from tests.labextension.lab import PANEL, QUOTA, SET_THEME, chromium, lab_hub, log_in, logged_in, needs_lab, open_lab
from tests.patience import until

__all__ = ["chromium"]

pytestmark = [needs_lab, pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

WARNS = """
policy:
  idle: {mode: reclaim, gpu_idle_after: 9s, kernel_idle_after: 9s, when_nobody_waits: 9s, warn_for: 45s}
"""
LONG_MS = 120_000
STOPPED = re.compile(r"The kernel of this notebook was shut down at .* its GPU was not in use. Its variables are lost.")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RealHub]:
    with lab_hub(tmp_path, QUOTA + WARNS) as made:
        yield made


def test_a_warning_is_shown_and_postponed_and_a_shutdown_is_explained(hub: RealHub, chromium: Any) -> None:
    context = logged_in(hub, chromium, "bob")
    page = with_notebook(open_lab(hub, context, "bob"))
    page.evaluate(SET_THEME, "JupyterLab Dark")
    without_events = context.new_page()
    without_events.route_web_socket("**/api/events/subscribe", lambda socket: None)
    without_events = with_notebook(open_lab(hub, context, "bob", page=without_events))

    keep = page.locator(PANEL).get_by_role("button", name="Keep my GPU")
    keep.wait_for(timeout=LONG_MS)
    notice = page.locator(".Toastify__toast", has_text="GPU").filter(has=page.get_by_role("button", name="Keep my GPU"))
    notice.first.wait_for()
    page.locator(".jgq-status.jgq-warn", has_text="freed in").wait_for()
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    assert axe.run(page, context=".jgq-status", options={"runOnly": ["color-contrast"]}).violations_count == 0
    keep.click()
    keep.wait_for(state="detached")
    notice.first.wait_for(state="detached")

    message = page.locator(".Toastify__toast", has_text="The kernel of Untitled.ipynb was shut down").first
    message.wait_for(timeout=LONG_MS)
    banners = [each.get_by_role("status").filter(has_text=STOPPED) for each in (page, without_events)]
    for banner in banners:
        banner.wait_for(timeout=LONG_MS)
    if folder := os.environ.get("GPU_QUOTA_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/stopped light.png")
        without_events.screenshot(path=f"{folder}/stopped dark.png")
    assert axe.run(page, context=".jgq-stopped").violations_count == 0
    banners[0].get_by_role("button", name="Start New Kernel").focus()
    page.keyboard.press("Enter")
    banners[0].wait_for(state="detached")
    message.wait_for(state="detached")
    assert output_of(page, "print('model' in globals())") == "False"
    log_in(hub, context, "patty")
    with_notebook(open_lab(hub, context, "patty")).close()
    reload(without_events)
    banners[1].get_by_role("button", name="Close").click(timeout=LONG_MS)
    banners[1].wait_for(state="detached")
    assert output_of(without_events, "6 * 7") == "42"
    reload(without_events)
    without_events.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for(timeout=LONG_MS)
    assert banners[1].count() == 0, "it was closed"


FREED = {
    "schema_id": "https://events.jupyter.org/jupyter_gpu_quota/idle/v1",
    "state": "freed",
    "message": "It is freed.",
}
SWAP_KERNEL = """earlier => {
  const key = Object.keys(localStorage).find(one => one.startsWith("jupyter-gpu-quota:kernel:"));
  const newest = localStorage[key];
  localStorage[key] = earlier;
  return newest;
}"""
"""Gives the notebook another kernel before the load of the page; returns the newest one."""


def test_a_notebook_whose_kernel_lives_is_not_restarted_because_an_earlier_one_was_shut_down(
    tmp_path: Path, chromium: Any
) -> None:
    sockets: list[Any] = []
    gone = ["earlier"]

    def idle(route: Any) -> None:
        shut_down = [{"kernel": each, "shut_down_ms": 0, "unused_ms": 9_000, "message": ""} for each in gone]
        route.fulfill(json={"idle": None, "waiting": [], "shut_down": shut_down})

    with lab_hub(tmp_path) as hub:
        context = logged_in(hub, chromium, "bob")
        page = context.new_page()
        page.route("**/gpu-quota/idle*", idle)
        page.route_web_socket(
            "**/api/events/subscribe", lambda socket: (socket.connect_to_server(), sockets.append(socket))
        )
        newest = with_notebook(open_lab(hub, context, "bob", page=page)).evaluate(SWAP_KERNEL, "earlier")
        opened = len(sockets)
        reload(page)
        banner = page.get_by_role("status").filter(has_text=STOPPED)
        banner.get_by_role("button", name="Close").wait_for(timeout=LONG_MS)
        until(lambda: page.title() and len(sockets) > opened)
        sockets[-1].send(json.dumps(FREED))
        page.locator(".Toastify__toast", has_text="It is freed.").wait_for()
        assert page.get_by_role("button", name="Start New Kernel").count() == 0
        gone.append(newest)
        sockets[-1].send(json.dumps(FREED))
        page.locator(".Toastify__toast", has_text="The kernel of Untitled.ipynb was shut down").wait_for()
        banner.get_by_role("button", name="Start New Kernel").wait_for()
        context.close()


IS_STORED = """async () => {
  const {baseUrl} = JSON.parse(document.getElementById("jupyter-config-data").textContent);
  const id = location.pathname.split("/workspaces/")[1].split("/")[0];
  const answer = await fetch(`${baseUrl}lab/api/workspaces/${id}`);
  return answer.ok && (await answer.text()).includes("notebook:");
}"""


def reload(page: Any) -> None:
    """Load the page again, once JupyterLab has stored which notebook is open."""
    page.wait_for_function(IS_STORED)
    page.reload()
    select, idle = page.locator(".jp-Dialog .jp-mod-accept"), page.locator("#jp-main-statusbar")
    select.or_(idle.get_by_text("| Idle")).first.wait_for(timeout=LONG_MS)
    if select.is_visible():  # JupyterLab asks for a kernel if the notebook was not saved with its name
        select.click()


def with_notebook(page: Any) -> Any:
    """The page with a new notebook, whose kernel has a variable."""
    page.locator('.jp-LauncherCard[title^="Python 3"]').first.click()
    assert output_of(page, "model = 1; model") == "1"
    return page


def output_of(page: Any, code: str) -> str:
    """Execute code in a new cell at the end of the notebook of the page."""
    page.locator(".jp-Notebook").click(timeout=60_000)
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for(timeout=60_000)
    page.locator(".jp-Cell .cm-content").last.click()
    page.keyboard.insert_text(code)
    outputs = page.locator(".jp-OutputArea-output")
    output = outputs.nth(outputs.count())
    page.keyboard.press("Shift+Enter")
    output.wait_for(timeout=60_000)
    return str(output.inner_text()).strip()
