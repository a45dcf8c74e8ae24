"""The overview, my quota and the audit in a browser; all pages pass axe, fit a phone and show nothing as markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.core.facts import NotebookFact
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.records.activity import OUTPUTS_TOTAL, KeepNotes, Note
from tests.api.handlers.jobs.test_storage import LIMITED
from tests.api.handlers.notebooks.test_notebooks import ask, lending
from tests.api.pages.browser import FITS, WITHIN_MS, open_page, said, seen, shows, tab_to
from tests.api.pages.test_pages import PAGES
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.controllers.setups.notebook import watched
from tests.patience import until

NARROW_PX = 400
HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
FRAMES = "new Promise(end => { let n = 30; const next = () => (n-- ? requestAnimationFrame(next) : end()); next(); })"
"""Half a second of a page that is drawn."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("browser")) as made:
        job = made.submit(name="train it", command=["echo", HOSTILE], variables={"A": HOSTILE})["id"]
        made.job = job  # type: ignore[attr-defined]
        made.submit(name="hush", private=True)
        made.step()
        made.see_running(job, done=3, total=10, metrics={"<b>loss</b>": 0.5})
        RotatingLog(rank_paths(str(made.state_dir), job, 1, 0).log, 1 << 16).write(HOSTILE.encode())
        outputs = Path(rank_paths(str(made.state_dir), job, 1, 0).outputs)
        outputs.mkdir(parents=True)
        (outputs / "<img src=x onerror=alert(1)>").write_text("x")
        for number in range(3):
            made.submit(name=f"digits {number}")
        with made.stepping():
            made.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1/8"})
        yield made


def every_page(world: ServiceWorld, chromium: Any, width: int, **context: Any) -> Iterator[tuple[str, Any]]:
    """The path of each page, and the page in a window of this width."""
    for path in (*PAGES, "nowhere"):
        there = path.format(job=world.job)  # type: ignore[attr-defined]
        page = open_page(world, chromium, there, viewport={"width": width, "height": 900}, **context)
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
        for summary in page.locator("main summary").all()[:3]:
            summary.click()
        found = [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in axe.run(page).response["violations"]]
        assert found == [], path
        assert_readable(page, width)


def assert_readable(page: Any, width: int) -> None:
    """The page fits its width; where it is narrow, so does each table."""
    wide = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(FITS), page.url
    assert width > NARROW_PX or page.evaluate(wide) == 0, page.url


def test_every_page_fits_a_phone_and_runs_nothing_of_what_it_shows(world: ServiceWorld, chromium: Any) -> None:
    for path, page in every_page(world, chromium, 390):
        assert_readable(page, 390)
        assert page.locator("#main img, #main script").count() == 0, path
        assert page.faults == [], path
        if path == "jobs/{job}":
            seen(page, HOSTILE, ".jgq-log")
            seen(page, HOSTILE, "#facts-list")
            seen(page, "<img src=x onerror=alert(1)>", "#outputs a")
            seen(page, "<b>loss</b>: 0.5", "#metrics figcaption")


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


def test_the_pages_follow_the_theme_of_the_hub(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "", color_scheme="dark")
    theme = "document.documentElement.dataset.bsTheme"
    assert page.evaluate(theme) == "dark"
    page.get_by_role("button", name="Dark or light").click()
    assert page.evaluate(theme) == "light"
    assert page.evaluate("localStorage.getItem('jupyterhub-bs-theme')") == "light", "where the hub's pages read it"
    page.evaluate("localStorage.setItem('jupyterhub-bs-theme', 'dark')")
    page.reload()
    assert page.evaluate(theme) == "dark"
    page.context.close()


def test_a_page_holds_no_token_anywhere(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob")
    kept = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie + location.href")
    assert "token-bob" not in kept + page.content()
    page.context.close()


# --- overview ---------------------------------------------------------------------------------------------------------
def test_other_projects_are_figures_only(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "", "patty")
    text = page.locator("main").inner_text()
    assert "another project" in text and "train it" not in text and "bob" not in text and "vision" not in text
    assert page.locator("#figure-running b").inner_text() == "4", "of all projects"
    page.context.close()


def test_what_is_not_read_yet_is_not_zero(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs")
    pools: list[Any] = []
    devices: list[Any] = []
    page.route("**/api/v1/pools*", lambda route: pools.append(route))  # noqa: PLW0108 - Playwright refuses a built-in method
    page.route("**/api/v1/devices?*", lambda route: devices.append(route))  # noqa: PLW0108
    page.get_by_role("link", name="Overview").first.click()
    until(lambda: page.title() and pools and devices)
    assert page.locator("#figure-gpu dd").inner_text() == "… of …"
    pools[0].continue_()
    seen(page, "4", "#figure-running b")
    assert page.locator("#devices-count").inner_text() == "Reading the devices…"
    devices[0].continue_()
    seen(page, "5 devices", "#devices-count")
    page.context.close()


def test_devices_that_could_not_be_read_are_read_again(tmp_path: Path, chromium: Any) -> None:
    """Also where something has changed meanwhile, so that the sums are to be read again."""
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "jobs", "bob")
        reads: list[Any] = []
        page.route("**/api/v1/devices?*", lambda route: reads.append(route))  # noqa: PLW0108 - Playwright refuses a built-in method
        page.get_by_role("link", name="Overview").first.click()
        until(lambda: page.title() and reads)
        world.submit()
        page.evaluate(FRAMES)
        reads[0].fulfill(status=503, json={"reason": "busy", "message": "Too busy."})
        page.unroute("**/api/v1/devices?*")
        seen(page, "5 devices", "#devices-count")
        page.context.close()


def test_devices_are_found_by_the_work_on_them(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "", "ann")
    page.locator(".tile").first.wait_for()
    assert page.locator(".tile").count() == 5 and page.locator(".tag", has_text="simulated").count() >= 2
    page.locator("#devices-text").fill("train it")
    seen(page, "1 device", "#devices-count")
    assert page.locator(".tile").count() == 1
    page.locator("#devices-text").fill("")
    seen(page, "5 devices", "#devices-count")
    page.locator("#devices-condition").select_option("free")
    seen(page, "1 device", "#devices-count")
    page.locator(".node-head").first.click()
    page.locator(".node-head[aria-expanded=false]").first.wait_for(timeout=WITHIN_MS)
    page.get_by_role("button", name="build-0").click()
    page.locator("#device-build-0").wait_for(timeout=WITHIN_MS)
    seen(page, "1 device", "#devices-count")
    page.context.close()


def test_the_overview_follows_what_happens(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "", "bob")
        seen(page, "0 of 5", "#figure-gpu dd")
        job = world.submit(name="appears")["id"]
        world.step()
        world.see_running(job)
        seen(page, "appears of bob · vision", ".tile")
        seen(page, "1 of 5", "#figure-gpu dd")
        seen(page, "1", "#project-vision-train td[data-label='Jobs use']")
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
        page.locator(f"#keep-{notebook.id}").wait_for(state="detached", timeout=WITHIN_MS)
        assert "their variables are lost" not in row.text_content()
        assert notebook.shown()["idle"]["reason"] == "kept"
        page.context.close()
    finally:
        watching.close()


def test_a_lent_slice_is_offered_until_a_job_runs_on_it(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        assert world.put_quota(QUOTA.replace("uses: [notebook]", "uses: [notebook, training]")).status == 200
        lending(world)
        with world.stepping():
            slice_ = ask(world).json["id"]
        page = open_page(world, chromium, "", "bob")
        tag = f"#notebook-{slice_} .state"
        seen(page, "booked", tag)
        world.see(NotebookFact(notebook=slice_, activity="idle", seen_empty=True))
        world.step()
        seen(page, "offered", tag)
        world.submit("bob", project="vision", pool="build", gpu="1")
        world.step()
        seen(page, "lent", tag)
        page.context.close()


# --- the frame --------------------------------------------------------------------------------------------------------
def test_the_page_reports_a_service_that_is_not_ready(world: ServiceWorld, chromium: Any) -> None:
    world.services.controller_alive = lambda: False
    try:
        page = open_page(world, chromium, "")
        seen(page, "The service is not ready.", "#banner-ready")
        page.context.close()
    finally:
        world.services.controller_alive = lambda: True


def test_the_page_reports_a_lost_and_a_restored_stream(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "")
        page.route("**/events*", lambda route: route.abort())
        page.reload()
        seen(page, "The connection to the GPU service is lost", "#banner-stream")
        page.unroute("**/events*")
        page.locator("#banner-stream").wait_for(state="detached", timeout=WITHIN_MS)
        page.context.close()


def test_a_page_whose_login_ended_says_so(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "jobs", "bob")
        page.route("**/api/v1/**", lambda route: route.fulfill(status=401, json={"message": "no token"}))
        page.reload()
        seen(page, "Your login has ended. Load the page again to log in.", "#banner-stream")
        page.context.close()


def requests_of(page: Any) -> list[str]:
    """What the page asks the service for from now on, its icon left out."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/static/" not in request.url else None)
    return asked


def test_an_error_page_offers_one_retry(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs/unknown", "bob")
    asked = requests_of(page)
    page.get_by_role("link", name="Try again").click()
    page.wait_for_load_state()
    assert [address.rsplit("/", 1)[1] for address in asked] == ["unknown"], "no stream, and nothing else"
    page.context.close()


def test_without_javascript_the_page_says_what_to_use(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob", java_script_enabled=False)
    assert "Without it, use the command line" in page.locator("main").inner_text()
    page.context.close()


def test_the_use_of_a_device_over_time_is_drawn_when_it_is_opened(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as read:
        page = open_page(read, chromium, "", "bob")
        history = page.locator("#device-train-0 .history")
        history.locator("summary").click()
        seen(page, "There are no readings yet.", "#device-train-0")
        begin = read.clock() - 100_000
        for number, percent in enumerate((20, None, 40)):
            row = DeviceSample(
                node="node-1", device="train-0", at=begin + 10_000 * number, utilisation_percent=percent,
                memory_used_mib=1, coverage_permille=1000, simulated=True,
            )  # fmt: skip
            read.store.add_samples("node-1", number + 1, [row], now=read.clock())
        history.locator("summary").click()
        history.locator("summary").click()
        label = "Use of train-0 over time: 30 % on average of 2 readings, 1 unknown"
        page.get_by_role("img", name=label).locator("canvas").wait_for(timeout=WITHIN_MS)
        assert page.faults == []
        page.context.close()


# --- my quota and the audit -------------------------------------------------------------------------------------------
def test_a_member_sees_their_own_quota(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "my-quota", "bob")
    assert "4 GPU in use" in page.locator("#mine").inner_text()
    assert "bob 4" in page.locator("#mine").inner_text(), "the holders of the GPUs"
    seen(page, "train it", "#jobs")
    assert page.locator("#notebooks tbody tr").count() == 1
    cells = page.locator("#ceilings tr", has_text="train").locator("td").all_inner_texts()
    assert cells == ["train", "4", "0", "0", "no limit", "no ceiling"]
    page.context.close()


def test_my_quota_says_that_none_of_a_members_notebooks_has_a_slice(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "my-quota", "ann")
    seen(page, "None of your notebooks has a slice.", "main")
    page.context.close()


def test_gpu_hours_that_cannot_be_read_are_not_called_none(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "my-quota", "bob")
    page.route("**/api/v1/usage?*", lambda route: route.abort())
    page.reload()
    hours = "section[aria-labelledby=hours-title]"
    page.locator(f"{hours} [role=alert]").wait_for(timeout=WITHIN_MS)
    assert "None yet." not in page.locator(hours).inner_text()
    page.context.close()


@pytest.mark.parametrize(
    ("mib", "words"),
    [
        pytest.param(None, "outputs unknown of 2 MiB · outputs are kept for 20 d", id="not measured yet"),
        pytest.param(1, "outputs 1 MiB of 2 MiB · outputs are kept for 20 d", id="some"),
        pytest.param(2, "outputs 2 MiB of 2 MiB · full: no job can be submitted", id="full"),
    ],
)
def test_my_quota_has_the_space_of_outputs(tmp_path: Path, chromium: Any, mib: int | None, words: str) -> None:
    with service_world(tmp_path) as limited:
        limited.apply(LIMITED)
        if mib is not None:
            note = Note(kind="retention", subject=OUTPUTS_TOTAL, at=limited.clock(), document={"vision": mib})
            limited.record(KeepNotes(notes=(note,)))
        page = open_page(limited, chromium, "my-quota", "bob")
        seen(page, words, "#mine")
        page.context.close()


def test_the_audit_is_filtered_by_the_service_and_shows_new_rows(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "audit?actor=bob&action=job.submit", "ann")
    seen(page, 'queued bob\'s job "digits 0"', "#audit")
    count = page.locator("#audit tbody tr").count()
    assert set(page.locator("#audit tbody td[data-label=Actor]").all_inner_texts()) == {"bob"}
    world.submit(name="live row")
    seen(page, 'queued bob\'s job "live row"', "#audit")
    assert page.locator("#audit tbody tr").count() == count + 1
    page.locator("#filter-action").select_option(label="put a quota file in force")
    page.locator("#filter-actor").fill("")
    seen(page, "put revision 1 of the quota file in force", "#audit")
    shows(page, "#audit-count", "1 of 1 rows are shown.")
    assert page.url.endswith("/audit?action=quota.apply")
    page.locator("#filter-since").fill("2120-01-01T00:00")
    seen(page, "No row matches.")
    page.get_by_role("button", name="Show all").click()
    seen(page, 'queued bob\'s job "live row"', "#audit")
    assert page.faults == []
    page.context.close()


def _all_rows_after_a_scroll(page: Any) -> bool:
    """Scroll away from the end of the audit and back to it; returns whether all rows are shown."""
    for top in ("0", "it.scrollHeight"):
        page.locator("#audit-scroll").evaluate(f"it => it.scrollTo(0, {top})")
        page.evaluate(FRAMES)
    return re.fullmatch(r"(\d+) of \1 rows are shown\.", page.locator("#audit-count").inner_text()) is not None


def test_a_failed_read_of_more_rows_is_not_repeated_by_itself(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        for _ in range(220):
            world.submit()
        page = open_page(world, chromium, "audit", "ann")
        reads: list[Any] = []

        def refuse(route: Any) -> None:
            reads.append(route)
            route.fulfill(status=503, json={"reason": "busy", "message": "Too busy."})

        page.route("**/api/v1/audit?*offset=200*", refuse)
        page.locator("#audit-scroll").evaluate("it => it.scrollTo(0, it.scrollHeight)")
        seen(page, "Too busy.")
        page.evaluate(FRAMES)
        assert len(reads) < 5
        page.unroute("**/api/v1/audit?*offset=200*")
        until(lambda: _all_rows_after_a_scroll(page), what=lambda: page.locator("#audit-count").inner_text())
        page.context.close()


def test_the_audit_is_read_and_verified(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "audit", "ann")
    seen(page, 'started bob\'s job "train it"', "#audit")
    page.locator("#verify").click()
    seen(page, "rows are intact.", "#verified")
    page.locator("#audit summary").first.click()
    assert "hash" in page.locator("#audit details[open]").inner_text()
    page.context.close()
