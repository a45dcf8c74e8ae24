"""The sidebar in JupyterLab, on a real hub, in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub.real_hub import RealHub
from tests.labextension.lab import (
    PANEL,
    SET_THEME,
    cancel_all,
    chromium,
    lab_hub,
    logged_in,
    needs_lab,
    notified,
    open_lab,
    submit,
)
from tests.patience import until

__all__ = ["chromium"]

pytestmark = [needs_lab, pytest.mark.hub, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHub]:
    with lab_hub(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def bob(hub: RealHub, chromium: Any) -> Iterator[Any]:
    context = logged_in(hub, chromium, "bob")
    yield context
    context.close()


def test_a_job_is_submitted_and_watched_by_clicking(hub: RealHub, bob: Any) -> None:
    from playwright.sync_api import expect

    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    panel.get_by_label("Command", exact=True).fill("python train.py 15")
    panel.get_by_text("Starts now.").wait_for()
    page.set_viewport_size({"width": 1280, "height": 620})
    send = panel.get_by_role("button", name="Submit", exact=True)
    expect(send).to_be_in_viewport(ratio=1)
    panel.get_by_label("Folder", exact=True).fill("missing")
    coloured = send.evaluate("button => getComputedStyle(button).backgroundColor")
    send.click()
    expect(panel.get_by_role("alert").get_by_text("There is no folder 'missing'")).to_be_in_viewport(ratio=1)
    expect(panel.get_by_text("There is no folder 'missing'")).to_have_count(1)
    expect(send).to_have_css("background-color", coloured)  # the pointer is on it, and its text is white
    page.set_viewport_size({"width": 1280, "height": 1000})
    submit(page, "python train.py 15")
    panel.locator(".jgq-log").get_by_text("step 0 <img src=x onerror=alert(1)>").wait_for()
    panel.get_by_text("15 / 15").wait_for()
    panel.get_by_text("Log (job succeeded)").wait_for()
    assert panel.locator(".jgq-log img").count() == 0
    notified(page, "succeeded")


@pytest.mark.slow
def test_the_form_says_that_the_folder_lacks_the_script_until_it_is_there(hub: RealHub, bob: Any) -> None:
    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    panel.get_by_label("Folder", exact=True).fill("work")
    panel.get_by_label("Command", exact=True).fill("python later.py")
    said = panel.get_by_text("later.py is not in the folder")
    said.wait_for()
    (hub.stage.folder / "bob" / "work" / "later.py").write_text("print(1)\n")
    said.wait_for(state="detached")


def test_a_submitted_job_has_notes_on_the_files_that_were_not_sent(hub: RealHub, bob: Any) -> None:
    page = open_lab(hub, bob, "bob")
    (hub.stage.folder / "bob" / "work" / "linked.csv").symlink_to("train.py")
    submit(page, "true")
    page.locator(PANEL).get_by_text("linked.csv is a link, and was left out").wait_for()


@pytest.mark.slow
def test_the_draft_of_the_form_survives_a_reload(hub: RealHub, bob: Any) -> None:
    page = open_lab(hub, bob, "bob")
    page.locator(PANEL).get_by_label("Command", exact=True).fill("python other.py")
    page.reload()
    command = page.locator(PANEL).get_by_label("Command", exact=True)
    command.wait_for(state="attached", timeout=60_000)
    assert command.input_value() == "python other.py"


@pytest.mark.slow
def test_a_refusal_has_the_reason_of_the_service(hub: RealHub, bob: Any) -> None:
    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    panel.get_by_label("Command", exact=True).fill("python train.py 1")
    panel.get_by_label("GPUs", exact=True).fill("9")
    panel.locator(".jgq-outcome").get_by_text("9 GPU").first.wait_for()
    panel.get_by_label("GPUs", exact=True).fill("1")


def test_a_file_is_run_from_its_context_menu(hub: RealHub, bob: Any) -> None:
    from playwright.sync_api import expect

    page = open_lab(hub, bob, "bob", "/tree/work/train.py")
    page.locator('.lm-TabBar-tab[data-id="filebrowser"]').click()
    page.locator(".jp-DirListing-item", has_text="train.py").click(button="right")
    page.get_by_role("menuitem", name="Run as GPU Job…").click()
    panel = page.locator(PANEL)
    expect(panel.get_by_label("Command", exact=True)).to_have_value("python train.py")
    expect(panel.get_by_label("Folder", exact=True)).to_have_value("work")


@pytest.mark.slow
def test_several_jobs_are_cancelled_at_once(hub: RealHub, bob: Any) -> None:
    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    for name in ("first", "second"):
        submit(page, "sleep 600", {"Name": name} if panel.get_by_label("Name", exact=True).is_visible() else {})
        panel.get_by_role("button", name="All jobs").click()
    boxes = panel.locator(".jgq-job", has_text="sleep 600").get_by_role("checkbox")
    until(lambda: boxes.count() == 2)
    for box in boxes.all():
        box.check()
    panel.get_by_role("toolbar", name="Selected jobs").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel jobs").click()
    until(lambda: panel.locator(".jgq-job", has_text="cancelled").count() == 2)


@pytest.mark.slow
def test_a_selection_is_held_where_that_is_possible_and_the_focus_stays_in_the_list(hub: RealHub, bob: Any) -> None:
    from playwright.sync_api import expect

    for name in ("bob", "ann"):
        hub.service("POST", "/jobs", {"command": ["sleep", "604"]}, token=hub.person(name).token)
    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    panel.get_by_label("Owner or project").select_option("bobs")
    panel.get_by_label("Search jobs").fill("sleep 604")
    boxes = panel.locator(".jgq-job").get_by_role("checkbox")
    until(lambda: boxes.count() == 2)
    for box in boxes.all():
        box.check()
    tools = panel.get_by_role("toolbar", name="Selected jobs")
    expect(tools.get_by_role("button", name="Release 0")).to_have_attribute("aria-disabled", "true")
    tools.get_by_role("button", name="Hold 1").press("Enter")
    tools.wait_for(state="detached")
    expect(panel.locator("#jgq-jobs-scroll")).to_be_focused()
    cancel_all(hub, "bob")
    cancel_all(hub, "ann")


def test_an_upload_the_filter_and_the_selection_outlive_a_look_at_a_job(hub: RealHub, bob: Any) -> None:
    from playwright.sync_api import expect

    page = open_lab(hub, bob, "bob")
    panel, held = page.locator(PANEL), []
    submit(page, "sleep 603")
    title = panel.locator(".jgq-job-title", has_text=panel.locator(".jgq-job-title").inner_text().split()[0])
    back = panel.get_by_role("button", name="All jobs")
    back.click()
    panel.get_by_label("Search jobs").fill("sleep 603")
    row = panel.locator(".jgq-job", has=page.locator(".jgq-job-open"))
    row.get_by_role("checkbox").check()
    page.route("**/gpu-quota/jobs*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright refuses a built-in method
    send = panel.locator(".jgq-send button").first
    for end in ("refusal", "success"):
        panel.get_by_label("Command", exact=True).fill("true")
        send.click()
        until(lambda: page.title() and len(held) == 1)
        row.locator(".jgq-job-open").press("Enter")
        expect(back).to_be_focused()
        if end == "refusal":
            held.pop().fulfill(status=422, json={"status": 422, "reason": "no", "message": "There is no room."})
        else:
            held.pop().continue_()
            notified(page, "was submitted.")
        expect(title).to_be_visible()
        back.press("Enter")
        expect(row.locator(".jgq-job-open")).to_be_focused()
        expect(panel.get_by_role("alert").get_by_text("There is no room.")).to_have_count(int(end == "refusal"))
    expect(panel.get_by_label("Search jobs")).to_have_value("sleep 603")
    expect(row.get_by_role("checkbox")).to_be_checked()
    cancel_all(hub, "bob")


@pytest.mark.slow
def test_bob_and_patty_share_four_gpus_by_clicking(hub: RealHub, bob: Any, chromium: Any) -> None:
    bobs, pattys = open_lab(hub, bob, "bob"), logged_in(hub, chromium, "patty")
    for _ in range(4):
        submit(bobs, "sleep 600")
        bobs.locator(PANEL).get_by_role("button", name="All jobs").click()
    running = bobs.locator(f"{PANEL} .jgq-job", has_text="sleep 600").locator(".jgq-state-running")
    until(lambda: running.count() == 4)
    patty = open_lab(hub, pattys, "patty")
    for _ in range(2):
        submit(patty, "sleep 600")
        patty.locator(PANEL).get_by_role("button", name="All jobs").click()
    until(lambda: patty.locator(f"{PANEL} .jgq-state-running").count() == 2)
    paused = bobs.locator(f"{PANEL} .jgq-job", has_text="sleep 600").locator(".jgq-state-paused")
    until(lambda: paused.count() == 2)
    patty.locator(f"{PANEL} .jgq-job").get_by_role("checkbox").first.check()
    patty.locator(f"{PANEL} .jgq-job").get_by_role("checkbox").last.check()
    patty.locator(PANEL).get_by_role("toolbar", name="Selected jobs").get_by_role("button", name="Cancel").click()
    patty.get_by_role("button", name="Cancel jobs").click()
    until(lambda: running.count() == 4)
    pattys.close()
    cancel_all(hub, "bob")


def test_the_token_reaches_no_page(hub: RealHub, bob: Any) -> None:
    seen: list[str] = []
    bob.on("response", lambda answer: seen.append(answer.url))
    bob.on("requestfinished", lambda request: seen.append(text_of(request)))
    page = open_lab(hub, bob, "bob")
    submit(page, "python train.py 1")
    page.locator(PANEL).get_by_text("Log (job succeeded)").wait_for()
    storage = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    found = "\n".join([*seen, page.content(), storage])
    assert "gpu-quota/api/me" in found
    assert server_token(hub, "bob") not in found


def text_of(request: Any) -> str:
    """What a request and its answer say, but for streams, which do not end."""
    if "/events" in request.url or "follow=1" in request.url:
        return json.dumps(request.headers)
    try:
        response = request.response()
        return json.dumps([request.headers, request.post_data, response.headers]) + (response.text() or "")
    except Exception:  # the browser keeps no body of redirects, fonts and workers
        return ""


def server_token(hub: RealHub, name: str) -> str:
    """The token in the environment of a user's server."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                variables = hub.environment(int(folder.name))
            except OSError:
                continue
            if variables.get("JUPYTERHUB_USER") == name and "JUPYTERHUB_API_TOKEN" in variables:
                return variables["JUPYTERHUB_API_TOKEN"]
    raise AssertionError(f"{name} has no server")


@pytest.mark.parametrize(
    "theme",
    [
        pytest.param("JupyterLab Light", id="light"),
        pytest.param("JupyterLab Dark", id="dark", marks=pytest.mark.slow),
        pytest.param("JupyterLab Dark High Contrast", id="high contrast", marks=pytest.mark.slow),
    ],
)
def test_the_sidebar_passes_axe(hub: RealHub, bob: Any, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    assert open_lab(hub, bob, "bob").evaluate(SET_THEME, theme) == 204
    page = open_lab(hub, bob, "bob")
    page.locator(f'body[data-jp-theme-name="{theme}"]').wait_for(state="attached")
    page.locator(f"{PANEL} summary").get_by_text("Advanced options").click()
    if folder := os.environ.get("GPU_QUOTA_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{theme}.png")
    assert_readable(axe, page)
    submit(page, COLOURS)
    page.locator(f"{PANEL} .ansi-cyan-fg").wait_for(state="attached")
    page.locator(f"{PANEL} .jgq-state-running").first.wait_for()
    assert_readable(axe, page)
    cancel_all(hub, "bob")


COLOURS = "printf '\\033[31mred\\n\\033[32mgreen\\n\\033[33myellow\\n\\033[34mblue\\n\\033[36mcyan\\n'; sleep 605"


def assert_readable(axe: Any, page: Any) -> None:
    results = axe.run(page, context=PANEL, options={"resultTypes": ["violations"]})
    serious = [one["id"] for one in results.response["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == [], results.generate_report()
