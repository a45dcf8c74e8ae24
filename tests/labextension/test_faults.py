"""Hostile names and logs, a service that restarts, changed memberships, and a browser without a network."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hub.real_hub import RealHub
from tests.labextension.lab import (
    LAB_OPENS_MS,
    PANEL,
    QUOTA,
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

pytestmark = [needs_lab, pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

HOSTILE = "<img src=x onerror=alert(1)>'; $(touch hit).py"
MARKUP = "<img src=x onerror=alert(1)>"
NOISE = f"""
import sys
from pathlib import Path
from jupyter_gpu_quota.job import output_path, report_progress
print("\\x1b]0;title\\x07\\x1b[2J\\x1b[1;1H<script>alert(1)</script>\\x1b]8;;javascript:alert(1)\\x1b\\\\link\\x1b]8;;\\x1b\\\\")
sys.stdout.write("x" * 3_000_000)
print("\\n\\x1b[31mred line")
print("still red\\n" * 5_000 + "\\x1b[0mlast line")
output_path({MARKUP!r} + ".svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
report_progress(1, 1, **{{{MARKUP!r}: 0.5}})
"""
CELLS = """
from IPython.display import HTML, Javascript, display
print("\\x1b]8;;javascript:alert(1)\\x1b\\\\link\\x1b]8;;\\x1b\\\\<script>alert(1)</script>")
display(HTML("<img src=x onerror=alert(1)><script>alert(1)</script>"), Javascript("alert(1)"))
"""
AWAY_MS = 120_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[RealHub]:
    with lab_hub(folder) as made:
        yield made


@pytest.fixture
def bob(hub: RealHub, chromium: Any) -> Iterator[Any]:
    context = logged_in(hub, chromium, "bob")
    yield context
    cancel_all(hub, "bob")
    context.close()


def test_a_hostile_file_name_is_text_everywhere(hub: RealHub, folder: Path, bob: Any) -> None:
    (folder / "bob" / "work" / HOSTILE).write_text("print('it ran')")
    page, ran = watched(open_lab(hub, bob, "bob", "/tree/work/train.py"))
    page.locator('.lm-TabBar-tab[data-id="filebrowser"]').click()
    page.locator(".jp-DirListing-item", has_text="onerror").click(button="right")
    page.get_by_role("menuitem", name="Run as GPU Job…").click()
    panel = page.locator(PANEL)
    panel.get_by_role("button", name="Submit", exact=True).click()
    panel.get_by_text("Log (job succeeded)").wait_for()
    panel.locator(".jgq-log").get_by_text("it ran").wait_for(state="attached")
    notified(page, "onerror")
    assert ran == [] and page.locator("img[src='x']").count() == 0
    assert not list(folder.rglob("hit"))


def test_a_hostile_log_is_inert_and_bounded(hub: RealHub, folder: Path, bob: Any) -> None:
    (folder / "bob" / "work" / "noise.py").write_text(NOISE)
    page, ran = watched(open_lab(hub, bob, "bob"))
    title = page.title()
    submit(page, "python noise.py")
    panel = page.locator(PANEL)
    log = panel.locator(".jgq-log")
    log.get_by_text("last line").wait_for(state="attached")
    panel.get_by_text("the beginning is not shown").wait_for()
    assert log.evaluate("node => node.textContent.length") <= 400_000
    red = log.locator(".jgq-log-block").locator(".ansi-red-fg")
    assert red.count() > 2, "a colour continues in the next block"
    assert log.locator("script, img, a").count() == 0
    files: list[Any] = []
    bob.on("response", lambda answer: "/outputs/" in answer.url and files.append(answer.headers))
    panel.get_by_role("button", name=f"{MARKUP}.svg").click()
    until(lambda: page.title() and bool(files))
    assert files[0]["content-disposition"].startswith("attachment")
    assert files[0]["content-security-policy"] == "sandbox; default-src 'none'"
    assert ran == [] and page.title() == title and panel.locator("img").count() == 0


def test_the_outputs_of_a_hostile_notebook_are_inert(hub: RealHub, folder: Path, bob: Any) -> None:
    cell = {"cell_type": "code", "source": CELLS, "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "bob" / "work" / "hostile.ipynb").write_text(json.dumps(notebook))
    page, ran = watched(open_lab(hub, bob, "bob"))
    submit(page, "hostile.ipynb")
    panel = page.locator(PANEL)
    panel.get_by_text("Log (job succeeded)").wait_for(timeout=AWAY_MS)
    log = panel.locator(".jgq-log")
    log.get_by_text("link<script>alert(1)</script>").wait_for(state="attached")
    assert log.locator("script, img, a").count() == 0
    panel.get_by_role("button", name="hostile.ipynb", exact=True).wait_for()
    panel.get_by_role("button", name="All jobs").click()
    panel.locator(".jgq-job", has_text="hostile.ipynb").get_by_text("succeeded").first.wait_for()
    assert ran == []


def watched(page: Any) -> tuple[Any, list[str]]:
    """A page, and the messages of the dialogs that scripts open in it from now on."""
    ran: list[str] = []
    page.on("dialog", lambda dialog: (ran.append(dialog.message), dialog.dismiss()))
    return page, ran


def test_the_form_outlives_a_restart_of_the_service(hub: RealHub, bob: Any) -> None:
    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    panel.get_by_label("Command", exact=True).fill("python train.py 2")
    panel.get_by_label("Folder", exact=True).fill("work")
    panel.get_by_text("Starts now.").wait_for()
    for pid in hub.service_pids():
        with suppress(ProcessLookupError):  # the first one's end ends the others
            os.kill(pid, signal.SIGKILL)
    panel.get_by_role("alert").first.wait_for(timeout=AWAY_MS)
    assert panel.get_by_label("Command", exact=True).input_value() == "python train.py 2"
    panel.get_by_label("GPUs", exact=True).fill("9")  # its dry run has no answer
    until(hub.stage.is_ready, 60)
    panel.locator(".jgq-error").get_by_text("no node has more than 4").wait_for(timeout=AWAY_MS)
    panel.get_by_label("GPUs", exact=True).fill("1")
    panel.get_by_text("Starts now.").wait_for()
    panel.get_by_role("button", name="Submit", exact=True).click()
    panel.get_by_text("Log (job succeeded)").wait_for(timeout=AWAY_MS)


def test_a_lost_answer_to_submit_queues_no_second_job(hub: RealHub, bob: Any) -> None:
    def lose(route: Any) -> None:
        route.fetch()
        route.abort()

    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    page.route("**/gpu-quota/jobs*", lose, times=1)
    panel.get_by_label("Folder", exact=True).fill("work")
    panel.get_by_label("Command", exact=True).fill("sleep 601")
    panel.get_by_role("button", name="Submit", exact=True).click()
    panel.locator(".jgq-form").get_by_role("alert").first.wait_for()
    assert panel.get_by_label("Command", exact=True).input_value() == "sleep 601"
    panel.get_by_role("button", name="Submit", exact=True).click()
    panel.get_by_role("button", name="All jobs").click()
    panel.locator(".jgq-job", has_text="sleep 601").first.wait_for()
    jobs = hub.service("GET", "/jobs?mine=1&live=1", token=hub.person("bob").token).body["items"]
    assert [job["command"] for job in jobs] == [["sleep", "601"]]


def test_the_second_of_two_tabs_sees_the_state(hub: RealHub, bob: Any) -> None:
    first, second = open_lab(hub, bob, "bob"), open_lab(hub, bob, "bob")
    submit(first, "sleep 602")
    panels = [page.locator(PANEL) for page in (first, second)]
    panels[1].locator(".jgq-job-open", has_text="sleep 602").first.click()
    panels[0].get_by_role("button", name="Hold").click()
    panels[1].get_by_role("button", name="Release").wait_for()
    panels[0].get_by_role("button", name="Release").click()
    panels[1].get_by_role("button", name="Hold").wait_for()
    panels[1].get_by_role("button", name="Cancel", exact=True).click()
    panels[0].get_by_role("button", name="Cancel", exact=True).click()
    first.get_by_role("button", name="Cancel job").click()
    second.get_by_role("button", name="Cancel job").click()
    for panel in panels:
        panel.locator(".jgq-job-title .jgq-state").get_by_text("cancelled").wait_for()


def test_eight_tabs_read_one_stream(hub: RealHub, bob: Any) -> None:
    begun: list[Any] = []
    ended: list[Any] = []
    bob.on("request", lambda request: "gpu-quota/api/events" in request.url and begun.append(request))
    for end in ("requestfinished", "requestfailed"):
        bob.on(end, lambda request: ended.append(request))  # noqa: PLW0108 - Playwright refuses a built-in method
    pages = [open_lab(hub, bob, "bob") for _ in range(8)]
    token = hub.person("bob").token
    hub.service("POST", "/jobs", {"command": ["sleep", "600"], "name": "seen by all"}, token=token)
    for page in pages:
        page.locator(PANEL).get_by_text("seen by all").first.wait_for()
    assert len([one for one in begun if one not in ended]) == 1
    before = len(begun)
    pages[0].close()
    until(lambda: pages[1].title() and len(begun) > before, what="another stream")


def test_a_browser_that_was_offline_for_an_hour_shows_the_present(hub: RealHub, bob: Any) -> None:
    page = bob.new_page()
    page.clock.install()
    page.goto(f"{hub.stage.url}/user/bob/lab")
    page.locator('.lm-TabBar-tab[data-id="jupyter-gpu-quota"]').click(timeout=LAB_OPENS_MS)
    panel = page.locator(PANEL)
    panel.locator(".jgq-project").first.wait_for()
    asked: list[str] = []
    page.on("request", lambda request: "gpu-quota/" in request.url and asked.append(request.url))
    bob.set_offline(True)
    page.clock.run_for(20_000)
    panel.get_by_role("alert").first.wait_for()
    asked.clear()
    page.clock.run_for(3_600_000)
    assert len(asked) < 3_600 / 15, "it tries again at most every 15 s"
    token = hub.person("bob").token
    hub.service("POST", "/jobs", {"command": ["sleep", "600"], "name": "meanwhile"}, token=token)
    bob.set_offline(False)
    until(lambda: page.clock.run_for(15_000) or panel.get_by_text("meanwhile").first.is_visible())
    until(lambda: page.clock.run_for(15_000) or not panel.get_by_role("alert").count())


def test_another_release_is_named_and_reading_works(hub: RealHub, bob: Any) -> None:
    def older(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "version": "0.0.9"})

    bob.route("**/gpu-quota/status*", older)
    panel = open_lab(hub, bob, "bob").locator(PANEL)
    panel.get_by_text("This server has release 0.0.9 of jupyter-gpu-quota").wait_for()
    panel.get_by_role("button", name="Submit", exact=True).wait_for()


def test_a_user_without_a_project_reads_the_reason(hub: RealHub, chromium: Any) -> None:
    edit(hub, QUOTA.replace("users: [bob, ann]", "users: [bob]"))
    context = logged_in(hub, chromium, "ann", has_slice=False)
    page = context.new_page()
    page.goto(f"{hub.stage.url}/user/ann/lab")
    page.locator('.lm-TabBar-tab[data-id="jupyter-gpu-quota"]').click(timeout=LAB_OPENS_MS)
    panel = page.locator(PANEL)
    panel.get_by_text("You are in no project with GPUs.").wait_for()
    panel.get_by_text("This server was started without a GPU.").wait_for()
    panel.get_by_label("Command", exact=True).fill("true")
    panel.locator(".jgq-outcome .jgq-error").wait_for()
    context.close()


def test_a_member_of_three_projects_chooses_and_one_who_is_removed_keeps_the_log(hub: RealHub, bob: Any) -> None:
    more = QUOTA + "".join(
        f"  - {{name: {name}, members: {{users: [bob]}}, quota: {{train: {{}}}}}}\n" for name in ("xx", "yy")
    )
    edit(hub, more)
    page = open_lab(hub, bob, "bob")
    panel = page.locator(PANEL)
    choice = panel.get_by_label("Project", exact=True)
    until(lambda: choice.locator("option").all_inner_texts() == ["bobs", "xx", "yy"])
    choice.select_option("xx")
    submit(page, "python train.py 9000")
    panel.locator(".jgq-log").get_by_text("step 3").first.wait_for(state="attached")
    edit(hub, more.replace("{name: xx, members: {users: [bob]}", "{name: xx, members: {users: [ann]}"))
    panel.locator(".jgq-log").get_by_text("step 30").first.wait_for(state="attached")
    panel.get_by_role("button", name="All jobs").click()
    until(lambda: "xx" not in panel.get_by_label("Project", exact=True).locator("option").all_inner_texts(), 90)
    panel.locator(".jgq-job-open", has_text="train.py 9000").first.click()
    panel.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel job").click()
    panel.get_by_text("Log (job cancelled)").wait_for()
    edit(hub, QUOTA)


def edit(hub: RealHub, text: str) -> None:
    """Put a quota file into force, as an administrator."""
    token = hub.stage.admin_token
    present = hub.service("GET", "/quota", token=token).body["revision"]
    body = f"revision: {present}\n{text}"
    answer = hub.service("PUT", "/quota", {"text": body, "accept_removal": True, "accept_stops": True}, token=token)
    assert answer.status == 200, answer
