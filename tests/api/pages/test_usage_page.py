"""The usage page in a browser: a key and a period are chosen by keyboard, and the table is downloaded as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.handlers.test_usage import Metered, printed
from tests.api.pages.browser import FITS, open_page, seen, settle, shows, tab_to
from tests.api.world import service_world

PERIOD = "from=2027-01-15&to=2027-01-15"


def test_a_lead_sees_the_hours_of_each_user_and_job_and_downloads_them(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        world.add("lea", groups=[])
        metered = Metered(world)
        page = open_page(world, chromium, f"usage?{PERIOD}", "lea", timezone_id="UTC")
        shows(page, "#usage tbody th", ["vision"])
        seen(page, "used and allocated GPU hours of each hour", "#usage-hours")
        tab_to(page, "usage-by")
        page.keyboard.type("user")
        seen(page, "GPU hours by user")
        shows(page, "#usage tbody th", ["bob"])
        assert "2 simulated" in page.locator("#usage tbody td").first.inner_text()
        page.locator("#usage-by").select_option("job")
        shows(page, "#usage tbody th", [f"python train.py {metered.job[-8:]}"])
        assert page.locator("#usage tbody th a").get_attribute("href").endswith(f"jobs/{metered.job}")
        link = page.locator("#usage-csv[download]")  # Chromium sends no header of the context with a download
        file = page.context.request.get(f"http://127.0.0.1:{world.port}{link.get_attribute('href')}")
        days = ("--from", "2027-01-15T00:00:00Z", "--to", "2027-01-16T00:00:00Z")
        assert file.text() == printed(metered, "--by", "job", "--csv", *days)
        page.locator("#usage-from").fill("2026-11-01")
        seen(page, "at most 31 days apart", "[role=alert]")
        assert page.faults == []
        page.context.close()


def test_a_member_sees_the_own_hours_and_by_project_those_of_the_project(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        Metered(world)
        phone = {"width": 390, "height": 900}
        page = open_page(world, chromium, f"usage?{PERIOD}", "olga", viewport=phone, timezone_id="UTC")
        seen(page, "No work that you may see had a GPU in this time.", ".empty")
        page.locator("#usage-by").select_option("project")
        settle(page)
        shows(page, "#usage tbody th", ["vision"])
        assert page.evaluate(FITS)
        page.context.close()
