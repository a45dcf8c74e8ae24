"""The list of jobs in a browser: it follows, filters and sorts, submits, and changes jobs one by one and in bulk."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.pages.browser import WITHIN_MS, gets_focus, open_page, said, seen, settle, shows, tab_to
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("jobs")) as made:
        for number in range(4):
            made.submit(name=f"digits {number}")
        made.submit("patty", name="speaks")
        made.step()
        yield made


def listed(page: Any, *names: str) -> None:
    shows(page, "#jobs tbody th a", list(names))


def test_a_job_that_is_submitted_elsewhere_appears_by_itself(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "bob")
    job = world.submit(name="appears")["id"]
    page.locator(f"#job-{job}").wait_for(timeout=WITHIN_MS)
    page.locator(f"#jgq-hold-or-release-{job}").click()
    page.locator(f"#jgq-hold-or-release-{job}", has_text="Release").wait_for(timeout=WITHIN_MS)
    assert world.get(f"jobs/{job}").json["state"] == "held"
    page.context.close()


def test_the_list_of_jobs_keeps_the_focus_after_a_hold(world: ServiceWorld, chromium: Any) -> None:
    job = world.submit(name="in the list")["id"]
    page = open_page(world, chromium, "jobs", "bob")
    page.on("dialog", lambda dialog: dialog.accept())
    tab_to(page, f"jgq-hold-or-release-{job}")
    page.keyboard.press("Enter")
    page.locator(f"#jgq-hold-or-release-{job}", has_text="Release").wait_for(timeout=WITHIN_MS)
    gets_focus(page, f"jgq-hold-or-release-{job}")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(f"#jgq-cancel-{job}").wait_for(state="detached", timeout=WITHIN_MS)
    gets_focus(page, f"open-{job}")
    page.context.close()


def test_jobs_are_filtered_and_sorted_by_the_service_and_the_address_keeps_that(
    world: ServiceWorld, chromium: Any
) -> None:
    page = open_page(world, chromium, "jobs", "ann")
    page.locator("#filter-search").fill("digits")
    page.locator("#filter-user").fill("bob")
    page.locator("#filter-project").select_option("vision")
    page.locator("#filter-state").select_option("running")
    page.locator("#filter-since").select_option("24h")
    listed(page, "digits 2", "digits 1", "digits 0")
    page.get_by_role("button", name="Submitted").click()
    listed(page, "digits 0", "digits 1", "digits 2")
    assert page.get_by_role("columnheader", name="Submitted").get_attribute("aria-sort") == "ascending"
    assert "search=digits&user=bob&project=vision&state=running&since=24h&sort=submitted_at" in page.url
    page.reload()
    listed(page, "digits 0", "digits 1", "digits 2")
    page.locator("#filter-user").fill("patty")
    page.get_by_text("No job matches.").wait_for(timeout=WITHIN_MS)
    page.get_by_role("button", name="Show all").click()
    page.locator("#jobs", has_text="speaks").wait_for(timeout=WITHIN_MS)
    page.context.close()


def test_older_links_still_filter(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs?mine=1&live=1", "patty")
    listed(page, "speaks")
    assert page.get_by_role("button", name="Mine").get_attribute("aria-pressed") == "true"
    page.context.close()


def test_jobs_of_others_have_no_buttons_and_private_ones_are_not_listed(world: ServiceWorld, chromium: Any) -> None:
    hidden = world.submit(name="hush", private=True)["id"]
    page = open_page(world, chromium, "jobs", "olga")
    assert page.locator("#jobs tbody tr").count() > 3 and page.locator(f"#job-{hidden}").count() == 0
    assert page.locator("#jobs .actions button").count() == 0
    page.context.close()


def test_several_jobs_are_cancelled_at_once(world: ServiceWorld, chromium: Any) -> None:
    jobs = [world.submit(name=f"bulk {number}")["id"] for number in range(3)]
    page = open_page(world, chromium, "jobs?search=bulk", "bob")
    page.on("dialog", lambda dialog: dialog.accept())
    for job in jobs[:2]:
        page.locator(f"#job-{job} input[type=checkbox]").check()
    seen(page, "2 selected", "[role=toolbar]")
    page.locator("#bulk-cancel").click()
    said(page, "2 jobs: cancel requested.")
    assert [world.get(f"jobs/{job}").json["state"] for job in jobs] == ["cancelled", "cancelled", "queued"]
    page.context.close()


def test_a_job_is_submitted_from_the_page_after_a_dry_run(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "patty")
    page.get_by_text("Submit a job").click()
    page.get_by_label("Command", exact=True).fill("python train.py --lr 1")
    page.get_by_label("GPUs", exact=True).fill("9")
    page.locator("#submit .jgq-error").wait_for(timeout=WITHIN_MS)
    assert page.get_by_role("button", name="Submit", exact=True).is_disabled()
    page.get_by_label("GPUs", exact=True).fill("0.5")
    page.locator("#submit .jgq-outcome b").wait_for(timeout=WITHIN_MS)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/*", timeout=WITHIN_MS)
    settle(page)
    newest = world.get("jobs?mine=1", "patty").json["items"][0]
    assert page.url.endswith(newest["id"])
    assert (newest["command"], newest["gpu"]) == (["python", "train.py", "--lr", "1"], "0.5")
    page.context.close()


def test_a_script_is_uploaded_with_its_job(world: ServiceWorld, chromium: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(world, chromium, "jobs", "patty")
    page.get_by_text("Submit a job").click()
    script = {"name": "train.py", "mimeType": "text/x-python", "buffer": b"print('uploaded')\n"}
    page.get_by_label("File", exact=True).set_input_files([script])
    expect(page.get_by_label("Command", exact=True)).to_have_value("python train.py", timeout=WITHIN_MS)
    page.locator("#submit .jgq-outcome b").wait_for(timeout=WITHIN_MS)
    send = page.get_by_role("button", name="Submit", exact=True)
    coloured = send.evaluate("button => getComputedStyle(button).backgroundColor")
    send.hover()
    expect(send).to_have_css("background-color", coloured)  # its text is white
    send.click()
    page.wait_for_url("**/jobs/*", timeout=WITHIN_MS)
    newest = world.get("jobs?mine=1", "patty").json["items"][0]
    assert (newest["live"], newest["command"]) == (False, ["python", "train.py"])
    (stored,) = [path for path in (world.state_dir / "bundles").rglob(f"{newest['bundle']}*") if path.is_file()]
    with tarfile.open(stored) as bundle:
        assert bundle.extractfile("train.py").read() == script["buffer"]  # type: ignore[union-attr]
    page.context.close()


def test_an_upload_is_cancelled(world: ServiceWorld, chromium: Any) -> None:
    held: list[Any] = []
    before = world.get("jobs?mine=1", "patty").json["items"][0]["id"]
    page = open_page(world, chromium, "jobs", "patty")
    page.route("**/bundles/*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright refuses a built-in method
    page.get_by_text("Submit a job").click()
    page.get_by_label("File", exact=True).set_input_files(
        [{"name": "a.py", "mimeType": "text/x-python", "buffer": b"1"}]
    )
    page.get_by_role("button", name="Submit", exact=True).click()
    until(lambda: page.title() and len(held) == 1)
    page.locator(".jgq-send").get_by_role("button", name="Cancel").click()
    seen(page, "Cancelled.", ".jgq-send [role=alert]")
    assert world.get("jobs?mine=1", "patty").json["items"][0]["id"] == before
    page.context.close()


def test_a_member_of_two_projects_submits_to_the_one_that_the_form_shows(world: ServiceWorld, chromium: Any) -> None:
    world.add("tim", groups=["vision-team"])
    world.apply(QUOTA.replace("users: [patty]", "users: [patty, tim]"))
    page = open_page(world, chromium, "jobs", "tim")
    page.get_by_text("Submit a job").click()
    page.get_by_label("Command", exact=True).fill("true")
    shown = page.locator("#submit").get_by_label("Project", exact=True).locator("option").first.inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/*", timeout=WITHIN_MS)
    assert world.get("jobs?mine=1", "tim").json["items"][0]["project"] == shown
    page.context.close()


def test_the_preview_is_asked_for_again_when_the_pool_has_changed(world: ServiceWorld, chromium: Any) -> None:
    asked: list[Any] = []
    page = open_page(world, chromium, "jobs", "patty")
    page.clock.install()  # the form waits 200 times as long as an answer took
    page.on("request", lambda one: '"dry_run":true' in (one.post_data or "") and asked.append(one))
    page.get_by_text("Submit a job").click()
    page.get_by_label("Command", exact=True).fill("true")
    page.locator("#submit .jgq-outcome b").wait_for(timeout=WITHIN_MS)
    before = len(asked)
    world.submit("patty", name="meanwhile")
    until(lambda: page.clock.fast_forward(60_000) or (page.title() and len(asked) > before))
    page.context.close()


def test_a_job_with_some_data_is_submitted_although_its_preview_is_not_available(
    world: ServiceWorld, chromium: Any
) -> None:
    world.add("ute", groups=["vision-team"])
    data = [{"name": name, "path": f"/data/{name}", "groups": ["vision-team"]} for name in ("images", "labels")]
    world.apply(f"{QUOTA}data: {json.dumps(data)}\n")
    page = open_page(world, chromium, "jobs", "ute")
    page.route(
        "**/jobs",
        lambda route: route.abort() if '"dry_run":true' in (route.request.post_data or "") else route.continue_(),
    )
    page.get_by_text("Submit a job").click()
    page.get_by_label("Command", exact=True).fill("python train.py")
    page.get_by_text("Advanced options").click()
    assert page.get_by_label("images", exact=True).is_checked()
    page.get_by_label("images", exact=True).uncheck()
    seen(page, "The preview is not available", "#submit .jgq-outcome")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/*", timeout=WITHIN_MS)
    assert world.get("jobs?mine=1", "ute").json["items"][0]["data"] == ["labels"]
    page.context.close()


def test_without_a_quota_for_jobs_no_form_is_offered(world: ServiceWorld, chromium: Any) -> None:
    page = open_page(world, chromium, "jobs", "outsider")
    page.get_by_text("Your projects have no quota for jobs").wait_for(timeout=WITHIN_MS)
    assert page.locator("#submit").count() == 0
    page.context.close()


def test_a_failed_job_has_its_reason_in_the_list(world: ServiceWorld, chromium: Any) -> None:
    job = world.get("jobs?search=digits%200", "ann").json["items"][0]["id"]
    world.see_running(job, ended_at=world.clock(), exit_status=3, tree_gone=True)
    page = open_page(world, chromium, "jobs", "bob")
    seen(page, "ended with exit status 3. Its log may have the cause.", f"#job-{job} .why")
    page.context.close()
