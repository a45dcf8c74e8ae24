"""The page of one job in a browser: actions by keyboard, logs of all attempts, metrics, outputs and attempts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.core.facts import RankFact
from tests.api.pages.browser import WITHIN_MS, gets_focus, has_value, open_page, said, seen, shows, tab_to
from tests.api.world import ServiceWorld, service_world
from tests.patience import until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def log_of(world: ServiceWorld, job: str, attempt: int = 1, rank: int = 0) -> RotatingLog:
    return RotatingLog(rank_paths(str(world.state_dir), job, attempt, rank).log, 1 << 22)


def test_a_job_is_held_released_and_cancelled_with_the_keyboard(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="by hand")["id"]
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    page.on("dialog", lambda dialog: dialog.accept())
    tab_to(page, "jgq-hold-or-release")
    for action, words, then in (("Hold", "by hand is held.", "Release"), ("Release", "by hand is released", "Hold")):
        shows(page, "#jgq-hold-or-release", action)
        page.keyboard.press("Enter")
        said(page, words)
        page.locator("#jgq-hold-or-release", has_text=then).wait_for(timeout=WITHIN_MS)
        gets_focus(page, "jgq-hold-or-release")
        held = page.locator("#reason", has_text="bob held the job.")
        held.wait_for(state="visible" if action == "Hold" else "detached", timeout=WITHIN_MS)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    said(page, "by hand is cancelled.")
    page.locator("#jgq-cancel").wait_for(state="detached", timeout=WITHIN_MS)
    gets_focus(page, "jgq-clone")
    page.context.close()


def test_the_changes_that_would_start_a_job_are_shown_once(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="large", gpu="3", preemptible=False)["id"]
    world.run(world.services.store_view.refresh())
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    seen(page, "It would start if", "#reason")
    assert page.locator("main").inner_text().count("It would start if") == 1
    page.context.close()


@pytest.mark.parametrize(
    ("who", "buttons"),
    [
        pytest.param("bob", ["Hold", "Cancel", "Clone", "Run again"], id="its owner"),
        pytest.param("lea", ["Hold", "Cancel", "Clone", "Run again"], id="the lead"),
        pytest.param("olga", ["Clone", "Run again"], id="another member"),
    ],
)
def test_only_users_who_may_change_a_job_get_the_buttons(
    world: ServiceWorld, chromium: Any, who: str, buttons: list[str]
) -> None:
    page = open_page(world, chromium, f"jobs/{world.submit()['id']}", who)
    assert page.locator("#job-head button").all_inner_texts() == buttons
    page.context.close()


def test_a_job_is_run_again(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="again")["id"]
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda address: job not in address, timeout=WITHIN_MS)
    assert world.get("jobs").json["items"][0]["clone_of"] == job
    page.context.close()


def test_a_hold_of_a_running_job_is_reported_when_it_has_stopped(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="leaves")["id"]
    world.step()
    world.see_running(job)
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    page.locator("#jgq-hold-or-release").click()
    said(page, "leaves saves and stops; then it is held.")
    world.step()
    world.see(
        RankFact(
            job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=75,
            pause_requested=True, tree_gone=True,
        )
    )  # fmt: skip
    said(page, "leaves is held.")
    page.get_by_text("bob held the job. It waits until it is released.").wait_for(timeout=WITHIN_MS)
    gets_focus(page, "jgq-hold-or-release")
    page.context.close()


def test_every_attempts_log_can_be_read(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="twice", retries=1)["id"]
    world.step()
    for attempt in (1, 2):
        log_of(world, job, attempt).write(f"words of {attempt}\n".encode())
    world.see_running(job)
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    seen(page, "words of 1", ".jgq-log")
    world.see(
        RankFact(job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=-9, tree_gone=True)
    )
    world.step()
    world.see_running(job, attempt=2)
    seen(page, "words of 2", ".jgq-log")
    which = page.locator("#log-which")
    which.locator("option", has_text="attempt 2").wait_for(state="attached", timeout=WITHIN_MS)
    assert which.locator("option").all_text_contents() == ["attempt 2", "attempt 1"]
    has_value(page, "#log-which", "2.0")
    which.select_option("1.0")
    shows(page, ".jgq-log", "words of 1\n")
    page.reload()
    shows(page, ".jgq-log", "words of 1\n")
    has_value(page, "#log-which", "1.0")
    seen(page, "signal 9 (SIGKILL)", "#rank-1-0 td:last-child")
    seen(page, "–", "#rank-2-0 td:last-child")
    page.context.close()


def test_a_log_without_its_beginning_is_marked(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="long", nodes=2)["id"]
    world.step()
    log_of(world, job).write(b"0123456789abcde\n" * (1 << 15))
    log_of(world, job, rank=1).write(b"short\n")
    world.see(*(RankFact(job=job, attempt=1, rank=n, handle="1", started_at=1) for n in (0, 1)))
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    cut, which = page.get_by_text(f"logs --attempt 1 --rank 0 {job} prints the stored log"), page.locator("#log-which")
    cut.wait_for(timeout=WITHIN_MS)
    which.select_option("1.1")
    seen(page, "short", ".jgq-log")
    assert page.get_by_text("the beginning is not shown").count() == 0
    which.select_option("1.0")
    cut.wait_for(timeout=WITHIN_MS)
    page.context.close()


def test_a_log_grows_and_metrics_since_the_first_report_are_drawn(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit()["id"]
    world.step()
    begin = world.hold_clock()
    for done in range(3):
        world.clock = lambda at=begin + done * 20_000: at  # type: ignore[misc]
        world.see_running(job, done=done, total=10, metrics={"loss": 1 / (1 + done)})
        world.store.add_series(now=world.clock())
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    log_of(world, job).write(b"epoch 1 <b>bold</b>\n")
    seen(page, "epoch 1 <b>bold</b>", ".jgq-log")
    page.locator("#metrics canvas").first.wait_for(timeout=WITHIN_MS)
    seen(page, "loss: 0.33333", "#metrics figcaption")
    world.see_running(job, done=4, total=10, metrics={"loss": 0.25})
    seen(page, "loss: 0.25", "#metrics figcaption")
    seen(page, "4 of 10", "#progress")
    assert page.faults == []
    page.context.close()


def test_a_truncated_list_of_outputs_is_marked(
    world: ServiceWorld, chromium: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.api.handlers.logs.MAX_OUTPUTS", 220)
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    outputs = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    outputs.mkdir(parents=True)
    for number, caption in ((201, "outputs folder: the first 200 of 201"), (230, "the first 200 of more than 220")):
        for name in range(number):
            (outputs / f"{name:04}").touch()
        page = open_page(world, chromium, f"jobs/{job}", "bob")
        seen(page, caption, "#outputs caption")
        assert page.get_by_role("link", name="Download as one archive").get_attribute("href").endswith("?archive=1")
        assert page.get_by_role("link", name="0000").get_attribute("href").endswith(f"jobs/{job}/outputs/0000")
        page.context.close()


def test_outputs_of_an_ended_job_are_removed_after_a_question(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="full")["id"]
    outputs = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
    outputs.mkdir(parents=True)
    (outputs / "model.bin").write_bytes(b"12345")
    page, questions = open_page(world, chromium, f"jobs/{job}", "bob"), list[str]()
    page.on("dialog", lambda dialog: (questions.append(dialog.message), dialog.accept()))
    seen(page, "model.bin", "#outputs")
    assert page.locator("#jgq-remove-outputs").count() == 0, "it has not ended"
    world.post(f"jobs/{job}/actions/cancel")
    page.locator("#jgq-remove-outputs").click(timeout=WITHIN_MS)
    seen(page, "Removing…", "#jgq-remove-outputs")
    assert questions == ["Remove the outputs of full?\nThe files are deleted. The log of the job stays."]
    (row,) = [row for row in world.store.audit()[0] if row.kind == "job.remove_outputs"]
    assert row.subject == job
    (outputs / "model.bin").unlink()  # as the controller does
    said(page, "The outputs are removed.")
    seen(page, "None: the job left no files, or they were removed.", "#outputs-section")
    gets_focus(page, "outputs-title")
    page.context.close()
    page = open_page(world, chromium, f"jobs/{job}", "olga")
    assert page.locator("#jgq-remove-outputs").count() == 0, "another member may not"
    page.context.close()


def test_a_failed_read_of_outputs_is_reported_and_tried_again(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, f"jobs/{world.submit()['id']}", "bob")
    seen(page, "None yet", "#outputs-section")
    page.route("**/outputs?*", lambda route: route.fulfill(status=503, json={"reason": "busy", "message": "Too busy."}))
    page.reload()
    seen(page, "The outputs could not be read: Too busy.", "#outputs-section")
    assert "None yet" not in page.locator("#outputs-section").inner_text()
    page.unroute("**/outputs?*")
    page.get_by_role("button", name="Try again").click()
    seen(page, "None yet", "#outputs-section")
    assert "could not be read" not in page.locator("#outputs-section").inner_text()
    page.context.close()


def test_outputs_are_read_one_at_a_time_while_the_job_changes(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit()["id"]
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    seen(page, "None yet", "#outputs-section")
    reads: list[Any] = []
    page.route("**/outputs?*", lambda route: reads.append(route))  # noqa: PLW0108 - Playwright refuses a built-in method
    for action, then in (("hold", "Release"), ("release", "Hold")):
        world.post(f"jobs/{job}/actions/{action}", "bob")
        page.locator("#jgq-hold-or-release", has_text=then).wait_for(timeout=WITHIN_MS)
    until(lambda: page.title() and reads)
    assert len(reads) == 1
    reads[0].fulfill(json={"items": [], "total": 0, "truncated": False, "_pagination": {}})
    until(lambda: page.title() and len(reads) == 2)
    reads[1].continue_()
    seen(page, "None yet", "#outputs-section")
    page.context.close()


def test_a_job_with_secrets_is_run_again_with_their_values_which_no_page_keeps(
    world: ServiceWorld, chromium: Any
) -> None:
    job = world.submit(secrets={"TOKEN": "hunter2", "KEY": "k"})["id"]
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    page.get_by_role("button", name="Run again").click()
    form = page.get_by_role("form", name="Secrets of the job")
    form.get_by_label("KEY").fill("k2")
    assert form.get_by_label("TOKEN").get_attribute("type") == "password"
    form.get_by_label("TOKEN").fill("correct horse")
    form.get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda address: job not in address, timeout=WITHIN_MS)
    newest = world.get("jobs").json["items"][0]
    assert (newest["clone_of"], world.store.secrets(newest["id"])) == (job, {"KEY": "k2", "TOKEN": "correct horse"})
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert "horse" not in kept + page.content()
    page.context.close()


def test_the_provenance_of_each_attempt_can_be_opened(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(retries=1)["id"]
    world.step()
    for attempt, version in ((1, "3.11.7"), (2, "3.12.1")):
        path = Path(rank_paths(str(world.state_dir), job, attempt, 0).provenance)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {
            "python": "/opt/bin/python",
            "python_from": "PATH",
            "version": version,
            "distributions": {"torch": "2.6"},
        }
        data = {"GPU_QUOTA_DATA_IMAGES": {"path": "/data/images", "version": "2026-11"}}
        path.write_text(json.dumps(found | {"data": data}))
    world.see_running(job, ended_at=2, exit_status=-9, tree_gone=True)
    world.step()
    world.see_running(job, attempt=2)
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    provenance = page.locator(".jgq-provenance")
    assert "3.12.1" not in provenance.text_content()
    provenance.get_by_text("Provenance").click()
    seen(page, "3.12.1 · /opt/bin/python", ".jgq-provenance dd")
    seen(page, "torch==2.6", ".jgq-provenance")
    provenance.get_by_label("Attempt").select_option("attempt 1")
    seen(page, "3.11.7", ".jgq-provenance dd")
    assert page.faults == []
    page.context.close()


@pytest.mark.parametrize(
    ("status", "why", "expected"),
    [
        pytest.param(1, None, "exit 1", id="by itself"),
        pytest.param(None, None, "lost", id="unseen"),
        pytest.param(None, "node n is lost", "lost: node n is lost", id="with its node"),
    ],
)
def test_a_rank_has_its_end_in_words(world: ServiceWorld, status: int | None, why: str | None, expected: str) -> None:
    job = world.submit(retries=1)["id"]
    world.step()
    world.see_running(job, ended_at=world.clock(), exit_status=status, tree_gone=True, why_lost=why)
    assert world.get(f"jobs/{job}").json["rank_records"][0]["exit_text"] == expected


def test_the_details_have_what_was_requested(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(cpu_milli=300, memory_mib=64, time_limit="90m", preemptible=False, priority=40, private=True)
    page = open_page(world, chromium, f"jobs/{job['id']}", "bob")
    assert page.locator("#host").inner_text() == "0.3 CPU and 64 MiB"
    facts = page.locator("#facts-list").inner_text()
    assert all(words in facts for words in ("40, not preemptible", "90m", "python train.py", "0 of 0"))
    assert page.locator("#job-state .tag").all_inner_texts() == ["simulated", "private"]
    page.context.close()


def test_a_page_that_is_refused_later_stops_asking(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit()["id"]
    page = open_page(world, chromium, f"jobs/{job}", "bob")
    page.route(f"**/api/v1/jobs/{job}", lambda route: route.fulfill(status=404, json={"message": "gone"}))
    world.post(f"jobs/{job}/actions/hold")
    page.get_by_text("you may not see it now").wait_for(timeout=WITHIN_MS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if job in request.url else None)
    world.post(f"jobs/{job}/actions/release")
    page.wait_for_timeout(1500)
    assert asked == []
    assert page.get_by_role("button", name="Try again").is_visible()
    page.context.close()
