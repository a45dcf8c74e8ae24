"""The pages in Chromium: opening one, and what tests read of it."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from tests.api.world import PREFIX, ServiceWorld

CHROMIUM = os.environ.get("GPU_QUOTA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
WITHOUT_CHROMIUM = "no chromium on this machine: pages are not tried in a browser"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
WITHIN_MS = 60_000
BEING_READ = re.compile("Loading…|Reading the devices")


def open_page(world: ServiceWorld, chromium: Any, path: str, who: str = "ann", **context: Any) -> Any:
    """A page with its content, in a browser of its own. Its errors and the refusals of its policy are in ``faults``."""
    headers = {"Authorization": f"token token-{who}"}
    page = chromium.new_context(extra_http_headers=headers, **context).new_page()
    page.set_default_timeout(WITHIN_MS)
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda line: "Content Security" in line.text and page.faults.append(line.text))
    page.goto(f"http://127.0.0.1:{world.port}{PREFIX}{path}")
    settle(page)
    return page


def settle(page: Any) -> None:
    """Wait for everything that is read at the start."""
    page.locator("main", has_not_text=BEING_READ).wait_for(timeout=WITHIN_MS)


def shows(page: Any, where: str, texts: str | list[str]) -> None:
    """Wait until the elements have exactly these texts."""
    from playwright.sync_api import expect

    expect(page.locator(where)).to_have_text(texts, timeout=WITHIN_MS)


def seen(page: Any, words: str, within: str = "body") -> None:
    page.locator(within, has_text=words).first.wait_for(timeout=WITHIN_MS)


def said(page: Any, words: str) -> None:
    seen(page, words, "#said[aria-live=polite]")


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id"))


def gets_focus(page: Any, control: str) -> None:
    """Wait until a control has the focus: a page sets it after it drew a change."""
    page.wait_for_function("id => document.activeElement.id === id", arg=control, timeout=WITHIN_MS)


def has_value(page: Any, where: str, value: str | re.Pattern[str]) -> None:
    """Wait until a field has this value."""
    from playwright.sync_api import expect

    expect(page.locator(where)).to_have_value(value, timeout=WITHIN_MS)


def tab_to(page: Any, control: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if focused(page) == control:
            return
    raise AssertionError(f"{control} is not reached by the keyboard")
