"""Takes the README's picture anew, from a browser that looks at the demo while its story plays:

    python -m tests.docs.picture

It needs Chromium on the path. The picture is what an admin sees once Patty's jobs run.
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
SIZE = {"width": 1280, "height": 1130}
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
        url = _told(lines, r"Hub:\s+(\S+)")
        password = _told(lines, r"Log in as admin with password\s+(\S+)")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            _log_in(page, url, password)
            _told(lines, r"(Patty's jobs run)")
            page.wait_for_timeout(LOOK_AFTER_MS)
            page.screenshot(path=PICTURE)
            browser.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=ENDS_WITHIN_S)


def _told(lines: Iterator[str], pattern: str) -> str:
    """What the demo says that matches; raises SystemExit where it ends without saying so."""
    for line in lines:
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise SystemExit(f"the demo ended before it said {pattern}")


def _log_in(page: Page, url: str, password: str) -> None:
    page.goto(f"{url}/hub/login?next=/services/gpu-quota/")
    page.fill("#username_input", "admin")
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.wait_for_url("**/services/gpu-quota/**")


if __name__ == "__main__":
    main()
