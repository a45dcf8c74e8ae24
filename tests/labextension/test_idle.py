"""An idle notebook in JupyterLab: the warning, the button that keeps the GPU, and the message after the shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub.real_hub import RealHub
from tests.labextension.lab import PANEL, QUOTA, chromium, lab_hub, logged_in, needs_lab, open_lab

__all__ = ["chromium"]

pytestmark = [needs_lab, pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(900)]

WARNS = """
policy:
  idle: {mode: reclaim, gpu_idle_after: 9s, kernel_idle_after: 9s, when_nobody_waits: 9s, warn_for: 20s}
"""
LONG_MS = 120_000


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RealHub]:
    with lab_hub(tmp_path, QUOTA + WARNS) as made:
        yield made


def test_a_warning_is_shown_and_postponed_and_a_shutdown_is_explained(hub: RealHub, chromium: Any) -> None:
    page = open_lab(hub, logged_in(hub, chromium, "bob"), "bob")
    page.get_by_role("button", name="Python 3 (ipykernel)").or_(page.locator(".jp-LauncherCard")).first.click()
    page.locator(".jp-Notebook").click(timeout=60_000)
    page.keyboard.type("model = 1")
    page.keyboard.press("Control+Enter")

    keep = page.locator(PANEL).get_by_role("button", name="Keep my GPU")
    keep.wait_for(timeout=LONG_MS)
    notice = page.locator(".Toastify__toast", has_text="GPU").filter(has=page.get_by_role("button", name="Keep my GPU"))
    notice.first.wait_for()
    page.locator(".jgq-status.jgq-warn", has_text="freed in").wait_for()
    keep.click()
    keep.wait_for(state="detached")
    notice.first.wait_for(state="detached")

    page.locator(".Toastify__toast", has_text="The kernel of Untitled.ipynb was shut down").first.wait_for(
        timeout=LONG_MS
    )
    page.get_by_role("button", name="Restart kernel").first.click()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(timeout=60_000)
