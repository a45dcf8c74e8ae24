"""The pages in a real browser: they follow what happens, buttons act, axe finds nothing in light, dark or small."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.jobs.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs.rank_log import RotatingLog
from jupyter_gpu_quota.core.facts import RankFact
from tests.api.world import PREFIX, ServiceWorld, service_world
from tests.controllers.test_idleness import watched

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


FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def every_page(world: ServiceWorld, chromium: Any, width: int, **context: Any) -> Iterator[tuple[str, Any]]:
    """The path of each page, and the page in a window of this width."""
    for path in ("", "jobs", f"jobs/{first_job(world)}", "quota", "audit", "nowhere"):
        page = open_page(world, chromium, path, viewport={"width": width, "height": 900}, **context)
        yield path, page
        page.context.close()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(1280, "light", id="wide-light"),
        pytest.param(1280, "dark", id="wide-dark"),
        pytest.param(320, "light", id="in a sidebar-light"),
        pytest.param(390, "light", id="as a phone-light", marks=pytest.mark.slow),
        pytest.param(390, "dark", id="as a phone-dark", marks=pytest.mark.slow),
        pytest.param(320, "dark", id="in a sidebar-dark", marks=pytest.mark.slow),
    ],
)
def test_every_page_passes_axe_and_fits_its_width(world: ServiceWorld, chromium: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for path, page in every_page(world, chromium, width, color_scheme=scheme, bypass_csp=True):
        found = [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in axe.run(page).response["violations"]]
        assert found == [], path
        assert page.evaluate(FITS), path


def test_every_page_fits_a_phone(world: ServiceWorld, chromium: Any) -> None:
    assert [path for path, page in every_page(world, chromium, 390) if not page.evaluate(FITS)] == []


def test_a_job_that_is_submitted_elsewhere_appears_by_itself(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob")
    job = world.submit(name="appears")["id"]
    page.locator(f"#job-{job}").wait_for(timeout=60_000)
    page.locator(f"#hold-or-release-{job}").click()
    page.locator(f"#hold-or-release-{job}[data-action=release]").wait_for(timeout=60_000)
    assert world.get(f"jobs/{job}").json["state"] == "held"
    page.context.close()


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id"))


def tab_to(page: Any, control: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page) == control:
            return
    raise AssertionError(f"{control} is not reached by the keyboard")


def said(page: Any, words: str) -> None:
    page.locator("#said[aria-live=polite]", has_text=words).wait_for(timeout=60_000)


def test_a_job_is_held_released_and_cancelled_with_the_keyboard(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="by hand")["id"]
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    page.on("dialog", lambda dialog: dialog.accept())
    tab_to(page, "hold-or-release")
    for action, words, then in (("Hold", "by hand is held.", "Release"), ("Release", "by hand is released", "Hold")):
        assert page.locator("#hold-or-release").text_content() == action
        page.keyboard.press("Enter")
        said(page, words)
        page.locator("#hold-or-release", has_text=then).wait_for(timeout=60_000)
        assert focused(page) == "hold-or-release"
        assert ("bob held the job." in page.locator("#reason").text_content()) is (action == "Hold")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    said(page, "by hand is cancelled.")
    page.locator("#cancel").wait_for(state="detached", timeout=60_000)
    assert focused(page) == "job-name"
    page.context.close()


def test_the_list_of_jobs_keeps_the_focus_after_a_hold(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="in the list")["id"]
    page = open_page(world, chromium, "jobs", "bob")
    page.on("dialog", lambda dialog: dialog.accept())
    tab_to(page, f"hold-or-release-{job}")
    page.keyboard.press("Enter")
    page.locator(f"#hold-or-release-{job}[data-action=release]").wait_for(timeout=60_000)
    assert focused(page) == f"hold-or-release-{job}"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(f"#cancel-{job}").wait_for(state="detached", timeout=60_000)
    assert focused(page) == f"open-{job}"
    page.context.close()


def test_a_hold_of_a_running_job_is_reported_when_it_has_stopped(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        job = world.submit(name="leaves")["id"]
        world.step()
        world.see_running(job)
        page = open_page(world, chromium, f"jobs/{job}", "bob")
        page.locator("#hold-or-release").click()
        said(page, "leaves saves and stops; then it is held.")
        world.step()
        world.see(
            RankFact(
                job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=75,
                pause_requested=True, tree_gone=True,
            )
        )  # fmt: skip
        said(page, "leaves is held.")
        page.get_by_text("bob held the job. It waits until it is released.").wait_for(timeout=60_000)
        assert focused(page) == "hold-or-release"
        page.context.close()


def test_every_attempts_log_can_be_read(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        job = world.submit(name="twice", retries=1)["id"]
        world.step()
        for attempt in (1, 2):
            path = rank_paths(str(world.state_dir), job, attempt, 0).log
            RotatingLog(path, 1 << 20).write(f"words of {attempt}\n".encode())
        world.see_running(job)
        page = open_page(world, chromium, f"jobs/{job}", "bob")
        page.get_by_text("words of 1").wait_for(timeout=60_000)
        world.see(
            RankFact(
                job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=1,
                tree_gone=True,
            )
        )  # fmt: skip
        world.step()
        world.see_running(job, attempt=2)
        page.get_by_text("words of 2").wait_for(timeout=60_000)
        which, log = page.locator("#log-which"), page.locator("#log")
        assert which.locator("option").all_text_contents() == ["attempt 2", "attempt 1"]
        assert which.input_value() == "2.0"
        which.select_option("1.0")
        page.locator("#log-says", has_text="this attempt has ended").wait_for(timeout=60_000)
        assert log.text_content() == "words of 1\n"
        page.reload()
        assert page.locator("#log").text_content() == "words of 1\n" and which.input_value() == "1.0"
        page.context.close()


def test_a_log_without_its_beginning_is_marked(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        job = world.submit(name="long", nodes=2)["id"]
        world.step()
        logs = [RotatingLog(rank_paths(str(world.state_dir), job, 1, rank).log, 1 << 22) for rank in (0, 1)]
        logs[0].write(b"0123456789abcde\n" * (1 << 15))
        logs[1].write(b"short\n")
        world.see(*(RankFact(job=job, attempt=1, rank=n, handle="1", started_at=1) for n in (0, 1)))
        page = open_page(world, chromium, f"jobs/{job}", "bob")
        cut, which = page.locator("#log-cut"), page.locator("#log-which")
        assert cut.is_visible() and f"logs --attempt 1 --rank 0 {job}" in cut.inner_text()
        which.select_option("1.1")
        page.locator("#log", has_text="short").wait_for(timeout=60_000)
        assert not cut.is_visible()
        which.select_option("1.0")
        cut.wait_for(timeout=60_000)
        page.context.close()


def requests_of(page: Any) -> list[str]:
    """What the page asks the service for from now on, its icon left out."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/static/" not in request.url else None)
    return asked


def test_an_error_page_offers_one_retry(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs/unknown", "bob")
    asked = requests_of(page)
    world.submit(name="news for everybody")
    page.wait_for_timeout(2500)
    assert asked == []
    page.get_by_role("button", name="Try again").click()
    page.wait_for_load_state()
    assert asked[0].endswith("jobs/unknown")
    page.context.close()


def test_a_page_that_is_refused_later_stops_asking(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        page = open_page(world, chromium, f"jobs/{job}", "bob")
        page.route(f"**/jobs/{job}", lambda route: route.fulfill(status=404, body="gone"))
        world.post(f"jobs/{job}/actions/hold")
        page.get_by_text("you may not see it now").wait_for(timeout=60_000)
        asked = requests_of(page)
        world.post(f"jobs/{job}/actions/release")
        page.wait_for_timeout(2500)
        assert asked == []
        assert page.get_by_role("button", name="Try again").is_visible()
        page.context.close()


def test_an_overcommitted_file_cannot_be_applied_until_that_is_accepted(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota", viewport={"width": 390, "height": 900})
        text, apply, why = page.locator("#quota-text"), page.locator("#quota-apply"), page.locator("#quota-why")
        assert why.text_content() == "Preview it first."
        text.fill(text.input_value().replace("training: 2", "training: 20", 1))
        page.locator("#quota-preview").click()
        page.get_by_role("heading", name="Does not fit").wait_for(timeout=60_000)
        assert apply.is_disabled()
        assert why.text_content() == "It does not fit: lower a quota, or accept that."
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.locator("#quota-overcommit").check()
        assert apply.is_enabled() and why.text_content() == ""
        text.fill(text.input_value() + "\n")
        assert apply.is_disabled() and "preview it again" in why.text_content()
        page.context.close()


@pytest.mark.parametrize("width", [390, 320], ids=["on a phone", "in a sidebar"])
@pytest.mark.parametrize("path", ["", "audit", "quota"], ids=["overview", "audit", "quota"])
def test_a_table_is_read_where_it_is_narrow_without_going_sideways(
    world: ServiceWorld, chromium: Any, path: str, width: int
) -> None:
    page = open_page(world, chromium, path, viewport={"width": width, "height": 900})
    for summary in page.locator("summary").all()[:3]:
        summary.click()
    wide = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(wide) == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.context.close()


def test_every_figure_of_a_project_has_its_name_in_a_sidebar_and_is_still_a_cell(
    world: ServiceWorld, chromium: Any
) -> None:
    page = open_page(world, chromium, "", viewport={"width": 320, "height": 900})
    row = page.locator("#project-vision-train")
    names = row.locator("td").evaluate_all("all => all.map((one) => getComputedStyle(one, '::before').content)")
    assert names[1:3] == ['"Training quota"', '"In force now"'] and "none" not in names
    assert page.get_by_role("table").first.get_by_role("columnheader").count() == 1 + len(names)
    assert row.get_by_role("rowheader").count() == 1 and row.get_by_role("cell").count() == len(names)
    lefts = row.locator("th, td").evaluate_all(
        "all => new Set(all.map((one) => one.getBoundingClientRect().left)).size"
    )
    assert lefts == 1, "each below the other"
    tab_to(page, "projects-scroll")
    page.context.close()


def test_a_log_grows_and_a_loss_falls_while_one_looks(world: ServiceWorld, chromium: Any) -> None:
    job = first_job(world)
    world.see_running(job)
    log = RotatingLog(rank_paths(str(world.state_dir), job, 1, 0).log, 1 << 20)
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    log.write(b"epoch 1 <b>bold</b>\n")
    page.get_by_text("epoch 1 <b>bold</b>").wait_for(timeout=60_000)
    for done in range(1, 4):
        world.see_running(job, done=done, total=10, metrics={"loss": 1 / done})
        page.wait_for_timeout(400)
    page.locator("#chart-line").wait_for(timeout=60_000)
    assert page.locator("#chart-says").text_content().startswith("Loss from 1.00 at 1")
    page.context.close()


def test_the_page_reports_a_lost_and_a_restored_stream(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "")
        page.route("**/events*", lambda route: route.abort())
        page.reload()
        page.get_by_text("The connection to the service is lost").wait_for(timeout=60_000)
        page.unroute("**/events*")
        page.locator("#banner-stream").wait_for(state="hidden", timeout=60_000)
        page.context.close()


def test_an_edit_of_the_quotas_is_previewed_before_it_can_be_applied(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota")
        apply = page.locator("#quota-apply")
        assert apply.is_disabled()
        text = page.locator("#quota-text")
        text.fill(text.input_value().replace("training: 2", "training: 1", 1))
        page.locator("#quota-preview").click()
        page.get_by_text("training quotas 2 (speech) + 1 (vision) = 3").wait_for(timeout=60_000)
        apply.click()
        page.get_by_text("Revision 2 is in force").first.wait_for(timeout=60_000)
        assert world.store.quota().revision == 2  # type: ignore[union-attr]
        page.context.close()


def test_a_preview_shows_calendar_changes_and_unknown_members(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota")
        text, nights = page.locator("#quota-text"), "name: nights, when: {timezone: UTC}"
        edited = text.input_value().replace("[bob, olga]", "[bbo, olga]")
        text.fill(f"{edited}calendar: [{{{nights}, projects: {{vision: {{train: {{training: 1}}}}}}}}]\n")
        page.locator("#quota-preview").click()
        page.get_by_role("heading", name="Changes in the calendar").wait_for(timeout=60_000)
        said = page.locator("#preview-says").text_content() or ""
        assert "Calendar nights, project vision, pool train: training quota 2 now, 1 while it is open." in said
        assert "Warnings (the edit can be applied)" in said and "no user bbo; did you mean bob?" in said
        assert page.locator("#quota-apply").is_enabled()
        page.context.close()


def test_a_preview_warns_of_a_limit_that_a_later_window_lowers(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        for job in [world.submit("bob")["id"] for _ in range(2)]:
            world.step()
            world.see_running(job)
        page = open_page(world, chromium, "quota")
        text, day = page.locator("#quota-text"), f"{datetime.now(UTC) + timedelta(days=200):%Y-%m-%d}"
        closed = f"name: stocktaking, when: {{dates: [{day}], timezone: UTC}}"
        amounts = "projects: {vision: {train: {training: 1, limit: 1}}}"
        text.fill(f"{text.input_value()}calendar: [{{{closed}, {amounts}}}]\n")
        page.locator("#quota-preview").click()
        page.get_by_role("heading", name="Warnings (the edit can be applied)").wait_for(timeout=60_000)
        said = page.locator("#preview-says").text_content() or ""
        assert f"its limit becomes 1 while stocktaking is open, from {day}T00:00:00Z: running work continues" in said
        page.context.close()


def test_an_edit_that_removes_work_needs_acceptance(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        world.submit("bob", project="vision")
        page = open_page(world, chromium, "quota")
        text = page.locator("#quota-text")
        vision, speech = (text.input_value().index(f"  - name: {name}") for name in ("vision", "speech"))
        text.fill(text.input_value()[:vision] + text.input_value()[speech:])
        page.locator("#quota-preview").click()
        page.get_by_text("The file removes project vision, which has 1 job.").wait_for(timeout=60_000)
        assert page.locator("#quota-apply").is_disabled()
        assert "removes projects or pools that have work" in page.locator("#quota-why").text_content()
        page.locator("#quota-removal").check()
        page.locator("#quota-apply").click()
        page.get_by_text("Revision 2 is in force").first.wait_for(timeout=60_000)
        page.context.close()


def test_without_javascript_everything_can_be_read(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob", java_script_enabled=False)
    assert page.locator("tbody tr").count() >= 4
    assert page.locator("button:visible").count() == 0
    page.context.close()


def test_the_keep_button_of_an_idle_notebook_postpones_its_warning(tmp_path: Path, chromium: Any) -> None:
    watching = watched(tmp_path, "reclaim")
    notebook = next(watching)
    try:
        notebook.pass_(20.5)
        page = open_page(notebook.world, chromium, "", "bob")
        row = page.locator(f"#notebook-{notebook.id}")
        assert "their variables are lost" in row.text_content()
        page.locator(f"#keep-{notebook.id}").click()
        said(page, "It can be postponed 0 more times before it is used again.")
        page.locator(f"#keep-{notebook.id}").wait_for(state="detached", timeout=60_000)
        assert "their variables are lost" not in row.text_content()
        assert notebook.shown()["idle"]["reason"] == "kept"
        page.context.close()
    finally:
        watching.close()


def test_a_flat_loss_lies_in_the_middle_and_its_figures_fit(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        world.step()
        world.see_running(job)
        page = open_page(world, chromium, f"jobs/{job}", "bob")
        for done in (1, 2):
            world.see_running(job, done=done, total=10, metrics={"loss": -0.0000123})
            page.wait_for_timeout(400)
        page.locator("#chart-title").wait_for(timeout=60_000)
        heights = {float(point.split(",")[1]) for point in page.locator("#chart-line").get_attribute("points").split()}
        assert heights == {81.0}, "the middle between the lowest and the highest line"
        lefts = page.evaluate("[...document.querySelectorAll('#chart-grid text')].map((t) => t.getBBox().x)")
        assert min(lefts) >= 0
        page.context.close()
