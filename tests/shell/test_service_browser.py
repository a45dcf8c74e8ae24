"""The pages in a real browser: they follow what happens, buttons act, axe finds nothing in light, dark or small."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.executors.rank_log import RotatingLog, log_path
from tests.shell.service_world import PREFIX, ServiceWorld, service_world

CHROMIUM = os.environ.get("GPU_QUOTA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: pages are not tried in a browser"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("browser")) as made:
        for number in range(4):
            made.submit(name=f"digits {number}")
        made.step()
        with made.stepping():
            made.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1/8"})
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


def open_page(world: ServiceWorld, chromium: Any, path: str, who: str = "ann", **context: Any) -> Any:
    headers = {"Authorization": f"token token-{who}"}
    page = chromium.new_context(extra_http_headers=headers, **context).new_page()
    page.goto(f"http://127.0.0.1:{world.port}{PREFIX}{path}")
    return page


def first_job(world: ServiceWorld) -> str:
    return str(world.get("jobs", "ann").json["items"][-1]["id"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "as a phone"])
def test_every_page_passes_axe_and_fits_its_width(world: ServiceWorld, chromium: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for path in ("", "jobs", f"jobs/{first_job(world)}", "quota", "audit", "nowhere"):
        page = open_page(
            world, chromium, path, color_scheme=scheme, bypass_csp=True, viewport={"width": width, "height": 900}
        )
        found = [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in axe.run(page).response["violations"]]
        assert found == [], path
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
        page.context.close()


def test_a_job_that_is_submitted_elsewhere_appears_by_itself(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob")
    job = world.submit(name="appears")["id"]
    page.locator(f"#job-{job}").wait_for(timeout=10_000)
    page.locator(f"#hold-{job}").click()
    page.locator(f"#release-{job}").wait_for(timeout=10_000)
    assert world.get(f"jobs/{job}").json["state"] == "held"
    page.context.close()


def test_a_log_grows_and_a_loss_falls_while_one_looks(world: ServiceWorld, chromium: Any) -> None:
    job = first_job(world)
    world.see_running(job)
    log = RotatingLog(log_path(str(world.state_dir), job, 1, 0), 1 << 20)
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    log.write(b"epoch 1 <b>bold</b>\n")
    page.get_by_text("epoch 1 <b>bold</b>").wait_for(timeout=10_000)
    for done in range(1, 4):
        world.see_running(job, done=done, total=10, metrics={"loss": 1 / done})
        page.wait_for_timeout(400)
    page.locator("#chart-line").wait_for(timeout=10_000)
    assert page.locator("#chart-says").text_content().startswith("Loss from 1.00 at 1")
    page.context.close()


def test_it_says_when_the_stream_is_lost_and_when_it_is_back(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "")
        page.route("**/events*", lambda route: route.abort())
        page.reload()
        page.get_by_text("The connection to the service is lost").wait_for(timeout=10_000)
        page.unroute("**/events*")
        page.locator("#banner-stream").wait_for(state="hidden", timeout=15_000)
        page.context.close()


def test_an_edit_of_the_quotas_is_previewed_before_it_can_be_applied(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota")
        apply = page.locator("#quota-apply")
        assert apply.is_disabled()
        text = page.locator("#quota-text")
        text.fill(text.input_value().replace("training: 2", "training: 1", 1))
        page.locator("#quota-preview").click()
        page.get_by_text("training quotas 2 (speech) + 1 (vision) = 3").wait_for(timeout=10_000)
        apply.click()
        page.get_by_text("Revision 2 is in force").first.wait_for(timeout=10_000)
        assert world.store.quota().revision == 2  # type: ignore[union-attr]
        page.context.close()


def test_without_javascript_everything_can_be_read(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob", java_script_enabled=False)
    assert page.locator("tbody tr").count() >= 4
    assert page.locator("button:visible").count() == 0
    page.context.close()
