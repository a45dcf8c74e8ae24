"""The browser of the tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.pages.browser import CHROMIUM, WITHOUT_CHROMIUM


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for one file: while Playwright runs, its event loop is that of the thread, and others cannot run."""
    if CHROMIUM is None:
        pytest.skip(WITHOUT_CHROMIUM)
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()
