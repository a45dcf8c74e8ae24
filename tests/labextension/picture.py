"""Makes the picture of the sidebar in README and docs/how-to/jupyterlab.md, in a browser on a real hub:

    python -m tests.labextension.picture

It needs Chromium on the path and the built extension. Bob's jobs fill the GPUs, and the form has one more job.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.labextension.lab import CHROMIUM, PANEL, ROOT, lab_hub, logged_in, open_lab, submit

PICTURE = ROOT / "docs" / "images" / "sidebar.png"
SIZE = {"width": 800, "height": 1100}
JOBS = 6
RIGHT_TO = 430


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        lab_hub(Path(folder)) as hub,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = open_lab(hub, logged_in(hub, browser, "bob"), "bob")
        _fill(page)
        page.screenshot(path=PICTURE)
        browser.close()


def widen(page: Page) -> None:
    """Make the sidebar as wide as in all pictures, and hide notifications."""
    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    page.add_style_tag(content=".Toastify { display: none }")
    edge = page.locator(".lm-SplitPanel-handle:visible").first.bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 1, edge["y"] + 400)
    page.mouse.down()
    page.mouse.move(RIGHT_TO, edge["y"] + 400)
    page.mouse.up()


def _fill(page: Page) -> None:
    panel = page.locator(PANEL)
    widen(page)
    panel.get_by_text("Advanced options").click()
    for number in range(JOBS):
        submit(page, "python train.py 900", {"Name": f"digits {number}"})
        panel.get_by_role("button", name="All jobs").click()
        if number + 1 < JOBS:
            panel.get_by_text("Advanced options").click()
    panel.get_by_label("Command", exact=True).fill("python train.py --epochs 30")
    panel.get_by_text("Would be queued.").wait_for()
    panel.locator(".jgq-job", has_text="digits 3").get_by_text("3 %").wait_for()


if __name__ == "__main__":
    main()
