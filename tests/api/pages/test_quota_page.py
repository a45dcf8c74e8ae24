"""The quota page in a browser: an edit is previewed and accepted before it is applied; a revision is reverted to."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.api.pages.browser import FITS, WITHIN_MS, gets_focus, has_value, open_page, said, seen
from tests.api.world import QUOTA, service_world
from tests.patience import until


def test_an_overcommitted_file_cannot_be_applied_until_that_is_accepted(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota", viewport={"width": 390, "height": 900})
        text, apply, why = page.locator("#quota-text"), page.locator("#quota-apply"), page.locator("#quota-why")
        assert why.text_content() == "Preview it first."
        text.fill(text.input_value().replace("training: 2", "training: 20", 1))
        page.locator("#quota-preview").click()
        page.get_by_role("heading", name="Does not fit").wait_for(timeout=WITHIN_MS)
        assert apply.is_disabled()
        assert why.text_content() == "It does not fit: lower a quota, or accept that."
        assert page.evaluate(FITS)
        page.locator("#quota-overcommit").check()
        assert apply.is_enabled() and why.text_content() == ""
        text.fill(text.input_value() + "\n")
        assert apply.is_disabled() and "preview it again" in why.text_content()
        page.context.close()


def test_an_edit_of_the_quotas_is_previewed_before_it_can_be_applied(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota")
        apply = page.locator("#quota-apply")
        assert apply.is_disabled()
        text = page.locator("#quota-text")
        text.fill(text.input_value().replace("training: 2", "training: 1", 1))
        page.locator("#quota-preview").click()
        page.get_by_text("training quotas 2 (speech) + 1 (vision) = 3").wait_for(timeout=WITHIN_MS)
        apply.click()
        page.get_by_text("Revision 2 is in force").first.wait_for(timeout=WITHIN_MS)
        assert world.store.quota().revision == 2  # type: ignore[union-attr]
        page.context.close()


def test_the_applied_file_stays_in_the_editor_and_so_does_what_is_typed_next(tmp_path: Path, chromium: Any) -> None:
    held: list[Any] = []
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota")
        text = page.locator("#quota-text")
        text.fill(text.input_value().replace("training: 2", "training: 1", 1))
        page.locator("#quota-preview").click()
        page.locator("#quota-apply:not([aria-disabled])").wait_for(timeout=WITHIN_MS)
        page.route(
            "**/api/v1/quota",
            lambda route: held.append(route) if route.request.method == "GET" else route.continue_(),
        )
        page.locator("#quota-apply").click()
        said(page, "Revision 2 is in force.")
        until(lambda: page.title() and len(held) > 0)
        has_value(page, "#quota-text", re.compile("revision: 2"))
        text.fill("typed next")
        held[0].continue_()
        seen(page, "Revision 2 is in force.", ".lead")
        has_value(page, "#quota-text", "typed next")
        page.context.close()


def test_a_preview_shows_calendar_changes_and_unknown_members(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota")
        text, nights = page.locator("#quota-text"), "name: nights, when: {timezone: UTC}"
        edited = text.input_value().replace("[bob, olga]", "[bbo, olga]")
        text.fill(f"{edited}calendar: [{{{nights}, projects: {{vision: {{train: {{training: 1}}}}}}}}]\n")
        page.locator("#quota-preview").click()
        page.get_by_role("heading", name="Changes in the calendar").wait_for(timeout=WITHIN_MS)
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
        page.get_by_role("heading", name="Warnings (the edit can be applied)").wait_for(timeout=WITHIN_MS)
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
        page.get_by_text("The file removes project vision, which has 1 job.").wait_for(timeout=WITHIN_MS)
        assert page.locator("#quota-apply").is_disabled()
        assert "removes projects or pools that have work" in page.locator("#quota-why").text_content()
        page.locator("#quota-removal").check()
        page.locator("#quota-apply").click()
        page.get_by_text("Revision 2 is in force").first.wait_for(timeout=WITHIN_MS)
        page.context.close()


def test_an_earlier_revision_is_put_in_force_again(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        world.put_quota(QUOTA.replace("training: 2", "training: 1", 1), comment="less")
        page = open_page(world, chromium, "quota")
        page.on("dialog", lambda dialog: dialog.accept())
        assert "less" in page.locator("#revision-2").inner_text()
        page.locator("#revert-1").click()
        said(page, "Revision 3 is in force, with the text of revision 1.")
        seen(page, "Revision 3 is in force.", ".lead")
        has_value(page, "#quota-text", re.compile("revision: 3"))
        assert page.locator("#in-force-list li").count() > 0
        page.context.close()


def test_a_lead_reads_the_file_and_an_edit_survives_another_revision(tmp_path: Path, chromium: Any) -> None:
    with service_world(tmp_path) as world:
        page = open_page(world, chromium, "quota", "lea")
        assert page.locator("textarea").count() == 0 and "name: vision" in page.locator(".file").inner_text()
        page.context.close()
        page = open_page(world, chromium, "quota")
        text = page.locator("#quota-text")
        mine = text.input_value().replace("training: 2", "training: 1", 1)
        text.fill(mine)
        world.put_quota(QUOTA.replace("notebook: 0.5", "notebook: 0.25", 1))
        seen(page, "Revision 2 is in force.", ".lead")
        assert text.input_value() == mine, "what was typed stays"
        page.locator("#quota-preview").click()
        page.get_by_role("heading", name="Based on another revision").wait_for(timeout=WITHIN_MS)
        assert page.locator("#quota-apply").is_disabled()
        page.get_by_role("button", name="Load revision 2").click()
        said(page, "Revision 2 is loaded. Your edit of revision 1 is kept below it.")
        gets_focus(page, "quota-text")
        has_value(page, "#quota-text", re.compile("notebook: 0.25"))
        assert page.locator("#quota-kept-1 textarea").input_value() == mine
        text.fill(text.input_value().replace("training: 2", "training: 1", 1))
        page.locator("#quota-preview").click()
        page.locator("#quota-apply:not([aria-disabled])").wait_for(timeout=WITHIN_MS)
        page.locator("#quota-apply").click()
        seen(page, "Revision 3 is in force.", ".lead")
        assert "notebook: 0.25" in text.input_value() and "training: 1" in text.input_value()
        questions = list[str]()
        page.on("dialog", lambda dialog: (questions.append(dialog.type), dialog.accept()))
        page.reload()
        assert questions == ["beforeunload"], "the kept edit would be lost"
        page.context.close()
