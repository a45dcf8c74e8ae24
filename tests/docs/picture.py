"""Makes the picture of the README, in a browser, while the demo runs:

    python -m tests.docs.picture

It needs Chromium on the path. The picture shows the page of an admin while Patty's jobs run.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from playwright.sync_api import Page, sync_playwright

from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "overview.png"
SIZE = {"width": 1280, "height": 1330}
LOOK_AFTER_MS = 3000
ENDS_WITHIN_S = 60


def main() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpu_quota", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    lines = iter(demo.stdout)
    try:
        url = _matching(lines, r"Hub:\s+(\S+)")
        password = _matching(lines, r"Log in as admin with password\s+(\S+)")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            _log_in(page, url, password)
            _matching(lines, r"(Patty's jobs run)")
            page.wait_for_timeout(LOOK_AFTER_MS)
            page.locator("#banner-stream").wait_for(state="detached")  # the demo restarts the service meanwhile
            page.screenshot(path=PICTURE)
            browser.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=ENDS_WITHIN_S)


def _matching(lines: Iterator[str], pattern: str) -> str:
    """The first group of the first line that matches; raises SystemExit if the demo ends before."""
    for line in lines:
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise SystemExit(f"the demo ended without a line for {pattern}")


def _log_in(page: Page, url: str, password: str) -> None:
    page.goto(f"{url}/hub/login?next=/services/gpu-quota/")
    page.fill("#username_input", "admin")
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.wait_for_url("**/services/gpu-quota/**")


if __name__ == "__main__":
    main()
