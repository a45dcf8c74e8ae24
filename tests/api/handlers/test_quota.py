"""Departments and the calendar in the API: previews, acceptance options, and views."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.api.handlers import quota
from jupyter_gpu_quota.api.quota_edits import preview as previews
from jupyter_gpu_quota.api.quota_edits.arithmetic import Arithmetic, amounts_by_pool, arithmetic_of_file
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.core.model import Node
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from tests.api.pages.browser import open_page, seen, shows
from tests.api.world import PREFIX, QUOTA, Reply, ServiceWorld, build_devices, service_world, train_devices
from tests.patience import PATIENCE_S, cpu_s
from tests.quotafile.texts import read

DEPARTMENTS = (
    QUOTA.replace("name: vision\n", "name: vision\n    department: sight\n").replace(
        "name: speech\n", "name: speech\n    department: voice\n"
    )
    + """\
departments:
  - {name: sight, priority: 60, quota: {train: {training: 2, limit: 3}, build: {notebook: 0.5}}}
  - {name: voice, quota: {train: {training: 2}, build: {notebook: 0.5}}}
"""
)
ALWAYS = "dates: [2020-01-01/2099-12-31], timezone: UTC"


def calendar(amounts: str, when: str = ALWAYS) -> str:
    return f"calendar:\n  - {{name: nights, when: {{{when}}}, {amounts}}}\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.run(made.services.store_view.refresh())
        yield made


def test_a_project_is_shown_with_its_department(world: ServiceWorld, chromium: Any) -> None:
    assert world.put_quota(DEPARTMENTS).status == 200
    world.submit("bob")
    [vision] = [row for row in world.get("projects", "bob").json["items"] if row["name"] == "vision"]
    department = vision["department"]
    assert (department["name"], department["priority"]) == ("sight", 60)
    [train] = [row for row in department["pools"] if row["pool"] == "train"]
    assert (train["training_milli"], train["limit_milli"], train["queued_jobs"]) == (2000, 3000, 1)
    assert train["in_force_training_milli"] == 2000
    page = open_page(world, chromium, "", "bob")
    seen(page, "department", "#department-sight-train")
    seen(page, "in sight", "#project-vision-train")
    assert page.locator("#department-voice-train").count() == 0
    page.context.close()


HUGE = QUOTA + "".join(f"  - {{name: q{n}, quota: {{build: {{notebook: 25000}}}}}}\n" for n in range(39))


def test_quotas_of_a_million_devices_are_previewed_and_exported_quickly(world: ServiceWorld) -> None:
    begun = time.process_time()
    seen = world.post("quota/preview", "ann", {"text": HUGE})
    assert seen.status == 200 and len(seen.body) < 20_000
    assert "25000 whole devices for notebooks of q0" in " ".join(seen.json["arithmetic"])
    refused = world.put_quota(HUGE)
    assert (refused.status, refused.json["reason"]) == (409, "overcommitted") and len(refused.body) < 20_000
    assert world.put_quota(HUGE, accept_overcommit=True).status == 200
    job = world.submit("bob")["id"]
    world.step()
    assert world.get(f"jobs/{job}").json["state"] == "starting"
    assert world.post("quota/revisions/1/actions/revert", "ann").status == 200
    assert time.process_time() - begun < cpu_s(5)


def test_an_edit_is_stale_if_work_began_in_what_it_removes(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = quota._put

    async def frozen(*args: Any) -> Any:
        """The edit is checked, then its process stands still while a job is submitted."""
        await asyncio.to_thread(world.submit, "patty")
        return await put(*args)

    monkeypatch.setattr(quota, "_put", frozen)
    answer = world.put_quota(QUOTA[: QUOTA.index("  - name: speech")])
    assert (answer.status, answer.json["reason"]) == (409, "stale")
    assert "project speech, which the quota edit removes" in answer.json["message"]


def test_without_departments_a_project_has_none(world: ServiceWorld) -> None:
    assert all(row["department"] is None for row in world.get("projects", "ann").json["items"])


def test_a_preview_adds_up_departments_and_names_the_window_that_does_not_fit(world: ServiceWorld) -> None:
    text = DEPARTMENTS + calendar("departments: {voice: {train: {training: 2.5}}}", ALWAYS.replace("2020", "2098"))
    fits = world.post("quota/preview", "ann", {"text": DEPARTMENTS}).json
    assert fits["refusals"] == [] and fits["acceptable"]
    far = world.post("quota/preview", "ann", {"text": text}).json
    assert far["refusals"] == [], "two years ahead are looked at"
    near = world.post("quota/preview", "ann", {"text": text.replace("2098", "2020")}).json
    [refusal] = near["refusals"]
    assert "while nights is open: The quotas of pool train add up to 4.5 GPU and it has 4" in refusal
    assert "department voice 2.5 for training" in refusal and near["acceptable"]


def test_an_admin_accepts_an_overcommitted_window_by_name(world: ServiceWorld) -> None:
    text = QUOTA + calendar("projects: {speech: {train: {training: 3}}}")
    refused = world.put_quota(text)
    assert (refused.status, refused.json["reason"]) == (409, "overcommitted")
    assert "while nights is open" in refused.json["message"]
    assert world.put_quota(text, accept_overcommit=True).status == 200


def test_the_file_in_force_is_not_refused_again_for_what_was_accepted(world: ServiceWorld) -> None:
    text = QUOTA.replace("{train: {training: 2}", "{train: {training: 9}", 1)
    assert world.put_quota(text, accept_overcommit=True).status == 200
    again = world.put_quota(text)
    assert (again.status, again.json["unchanged"]) == (200, True)
    assert any("add up to" in line for line in again.json["warnings"])
    headers = {"If-Match": f'"{again.json["revision"]}"'}
    found = world.post("quota/preview", "ann", {"text": text}, headers=headers).json
    assert (found["refusals"], found["acceptable"]) == ([], True)
    assert any("add up to" in line for line in found["warnings"])
    other = world.post("quota/preview", "ann", {"text": text + "# a comment\n"}, headers=headers).json
    assert other["refusals"], "it would be a new revision"


def test_a_refused_file_gets_a_line_for_each_problem_and_the_option_that_accepts_it(world: ServiceWorld) -> None:
    text = QUOTA.replace("{train: {training: 2}", "{train: {training: 9}", 1)
    assert text != QUOTA
    *objections, last = world.put_quota(text).json["message"].split("\n")
    assert objections == world.post("quota/preview", "ann", {"text": text}).json["refusals"]
    assert objections and not any("pool build" in line for line in objections), "that pool is fine"
    assert last.startswith("Accept it by name with --accept-overcommit (in REST: accept_overcommit)")


def test_a_quota_lowered_further_names_the_jobs_that_it_puts_over_it(world: ServiceWorld) -> None:
    jobs = [world.submit("bob")["id"] for _ in range(3)]
    world.step()
    for job in jobs:
        world.see_running(job)
    world.run(world.services.store_view.refresh())
    lowered = QUOTA.replace("{train: {training: 2}", "{train: {training: 1}", 1)
    [row] = world.post("quota/preview", "ann", {"text": lowered}).json["affected"]
    assert row["job"] in jobs and row["effect"] == "over_quota"
    assert (
        "vision uses 3 GPU in pool train and its training quota becomes 1: it goes from 1 to 2 GPU over"
        in row["message"]
    )
    emptied = world.post("quota/preview", "ann", {"text": QUOTA.replace("[Simulated 80G]", "[A100]")}).json["affected"]
    assert {(each["job"], each["effect"]) for each in emptied} == {(job, "drains") for job in jobs}
    assert all("This file moves devices that it has out of pool train" in each["message"] for each in emptied)


def test_a_lowered_quota_of_a_department_names_the_jobs_that_it_puts_over_it(world: ServiceWorld) -> None:
    wide = DEPARTMENTS.replace("{train: {training: 2, limit: 3}", "{train: {training: 3}").replace(
        "{name: voice, quota: {train: {training: 2}", "{name: voice, quota: {train: {training: 1}"
    )
    head, _, tail = wide.partition("name: speech")
    wide = f"{head}name: speech{tail.replace('{train: {training: 2}', '{train: {training: 1}', 1)}"
    assert world.put_quota(wide).status == 200
    jobs = [world.submit("bob")["id"] for _ in range(3)]
    world.step()
    for job in jobs:
        world.see_running(job)
    world.run(world.services.store_view.refresh())
    lowered = wide.replace("{train: {training: 3}", "{train: {training: 2}", 1)
    [row] = world.post("quota/preview", "ann", {"text": lowered}).json["affected"]
    assert row["job"] in jobs and row["effect"] == "over_quota"
    assert "department sight uses 3 GPU in pool train and its training quota becomes 2: 1 GPU of that" in row["message"]


def test_a_ceiling_for_each_user_is_shown_with_the_user_name(world: ServiceWorld) -> None:
    assert (
        world.put_quota(QUOTA.replace("{train: {training: 2}", "{train: {training: 2, per_user: {jobs: 1}}", 1)).status
        == 200
    )
    jobs = [world.submit("bob")["id"] for _ in range(2)]
    world.step()
    world.run(world.services.store_view.refresh())
    [waiting] = [job for job in jobs if world.get(f"jobs/{job}").json["state"] == "queued"]
    found = world.get(f"explain/{waiting}").json
    said = [found["reason"]["message"], world.get(f"jobs/{waiting}").json["reason"]["message"]]
    assert found["reason"]["code"] == "above_user_ceiling" and all("bob" in each for each in said)
    assert world.services.store_view.mirror.jobs[waiting].job.user not in str(found)
    dry = world.post("jobs", "bob", {"command": ["x"], "project": "vision", "gpu": "1", "dry_run": True}).json
    assert "bob" in dry["reason"]["message"]


def test_a_preview_lists_jobs_that_can_no_longer_start(world: ServiceWorld) -> None:
    text = QUOTA.replace("{train: {training: 2}", "{train: {training: 2, per_user: {jobs: 1}}", 1)
    assert world.put_quota(text).status == 200
    jobs = [world.submit("bob")["id"] for _ in range(2)]
    world.step()
    world.run(world.services.store_view.refresh())
    [waiting] = [job for job in jobs if world.get(f"jobs/{job}").json["state"] == "queued"]
    less = text.replace("per_user: {jobs: 1}", "per_user: {jobs: 0.5}")
    [row] = world.post("quota/preview", "ann", {"text": less}).json["affected"]
    assert (row["job"], row["effect"]) == (waiting, "waits")
    assert "It cannot start until that changes, however many GPUs are free" in row["message"]
    assert "Without this file it waits: bob asked for 1 GPU and uses 1;" in row["message"]


def test_a_preview_lists_the_jobs_that_a_lowered_limit_delays(world: ServiceWorld) -> None:
    text = QUOTA.replace("{train: {training: 2}", "{train: {training: 1, limit: 2}", 1)
    assert world.put_quota(text).status == 200
    jobs = [world.submit("bob")["id"] for _ in range(3)]
    world.step()
    for job in jobs[:2]:
        world.see_running(job)
    world.run(world.services.store_view.refresh())
    less = text.replace("limit: 2", "limit: 1")
    affected = world.post("quota/preview", "ann", {"text": less}).json["affected"]
    [row] = [row for row in affected if row["job"] == jobs[2]]
    assert row["effect"] == "waits" and row["message"].startswith('bob\'s job "python train.py" waits: ')
    now, _, without = row["message"].partition("Without this file it waits: ")
    assert "limit is 1" in now and "limit is 2" in without, row["message"]


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        pytest.param(
            "training: 2, per_user: {jobs: 0}",
            "vision has a training quota of 2 GPU in pool train, and its ceiling for each user's jobs is 0",
            id="a quota that nobody may have any of",
        ),
        pytest.param(
            "training: 2, per_user: {jobs: 1}",
            "The jobs of bob have 2 GPU of vision in pool train, and its ceiling for each user's jobs becomes 1:"
            " they continue",
            id="a ceiling for each user below what one has",
        ),
        pytest.param(
            "training: 1, limit: 1",
            "vision has 2 GPU in use in pool train, and its limit becomes 1: running work continues",
            id="a limit below what is in use",
        ),
    ],
)
def test_a_ceiling_below_present_use_is_a_warning(world: ServiceWorld, amounts: str, words: str) -> None:
    jobs = [world.submit("bob")["id"] for _ in range(2)]
    world.step()
    for job in jobs:
        world.see_running(job)
    world.run(world.services.store_view.refresh())
    less = QUOTA.replace("{train: {training: 2}", f"{{train: {{{amounts}}}", 1)
    warnings = world.post("quota/preview", "ann", {"text": less}).json["warnings"]
    assert any(line.startswith(words) for line in warnings), warnings
    assert world.post("quota/preview", "ann", {"text": QUOTA}).json["warnings"] == []
    assert world.put_quota(less).json["warnings"] == warnings
    assert len(world.post("quota/preview", "ann", {"text": less}).json["warnings"]) == ("0}" in amounts), (
        "reported once"
    )


def test_each_error_of_a_file_is_on_a_separate_line(world: ServiceWorld) -> None:
    text = QUOTA.replace("projects:", "projcts:", 1) + "\nspeling: 1\n"
    refused = world.post("quota/preview", "ann", {"text": text})
    found = refused.json["message"].splitlines()
    assert refused.status == 400 and len(found) > 1 and all(line.startswith("line ") for line in found)
    assert any("; did you mean" in line for line in found)


def test_a_dry_run_shows_the_name_of_a_new_user(world: ServiceWorld) -> None:
    text = QUOTA.replace("{train: {training: 2}", "{train: {training: 2, per_user: {jobs: 0.5}}", 1)
    assert world.put_quota(text).status == 200
    dry = world.post("jobs", "bob", {"command": ["x"], "project": "vision", "gpu": "1", "dry_run": True}).json
    assert dry["reason"]["message"].startswith("bob asked for 1 GPU; ") and dry["reason"]["figures"]["user"] == "bob"


def test_a_dry_run_estimates_the_start_of_a_job_that_waits(world: ServiceWorld) -> None:
    text = QUOTA.replace("{train: {training: 2}", "{train: {training: 2, per_user: {jobs: 1}}", 1)
    assert world.put_quota(text).status == 200
    asked = {"command": ["x"], "project": "vision", "gpu": "1", "dry_run": True}
    assert world.post("jobs", "bob", asked).json["estimate_at"] is None
    running = world.submit("bob", time_limit="2h")["id"]
    world.step()
    world.see_running(running)
    world.run(world.services.store_view.refresh())
    dry = world.post("jobs", "bob", asked).json
    assert (dry["starts_now"], dry["reason"]["code"]) == (False, "above_user_ceiling")
    began = datetime.fromisoformat(world.get("jobs").json["items"][0]["submitted_at"])
    assert datetime.fromisoformat(dry["estimate_at"]) - began >= timedelta(hours=2)


def test_a_revert_to_the_present_revision_reports_no_change(world: ServiceWorld) -> None:
    present = world.get("quota", "ann").json["revision"]
    found = world.post(f"quota/revisions/{present}/actions/revert", "ann").json
    assert (found["unchanged"], found["revision"]) == (True, present)


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        pytest.param(
            "projects: {speech: {train: {training: 2.5}}}", "department voice add up to 2.5", id="above its department"
        ),
        pytest.param(
            "departments: {sight: {train: {limit: 1}}}", "limit of department sight", id="a limit below quotas"
        ),
    ],
)
def test_a_contradictory_file_cannot_be_accepted(world: ServiceWorld, amounts: str, words: str) -> None:
    refused = world.put_quota(DEPARTMENTS + calendar(amounts), accept_overcommit=True)
    assert (refused.status, refused.json["reason"]) == (409, "contradicting")
    assert words in refused.json["message"] and "while nights is open" in refused.json["message"]


def test_a_revert_to_a_contradictory_file_is_refused(world: ServiceWorld) -> None:
    """The service puts the first file in force without its devices, and so without this check."""
    world.apply(DEPARTMENTS + calendar("projects: {speech: {train: {training: 2.5}}}"))
    contradictory = world.get("quota", "ann").json["revision"]
    assert world.put_quota(DEPARTMENTS).status == 200
    refused = world.post(f"quota/revisions/{contradictory}/actions/revert", "ann")
    assert (refused.status, refused.json["reason"]) == (409, "contradicting")


def test_views_and_projections_use_the_amounts_in_force_now(world: ServiceWorld) -> None:
    open_now = calendar("projects: {speech: {train: {training: 1}, build: {notebook: 0.125}}}")
    assert world.put_quota(QUOTA + open_now).status == 200
    [speech] = [row for row in world.get("projects", "ann").json["items"] if row["name"] == "speech"]
    amounts = {row["pool"]: (row["training_milli"], row["notebook_milli"]) for row in speech["pools"]}
    assert amounts == {"train": (1000, 0), "build": (0, 125)}
    choices = world.get("me", "patty").json["notebook_choices"]
    assert [choice["quota_milli"] for choice in choices if choice["project"] == "speech"] == [125]
    document = snapshotfile.read(world.get("snapshot", "ann").body)
    assert isinstance(document, snapshotfile.SnapshotDocument)
    assert len(document.policy.windows) > 50, "a saved snapshot is decided on with its calendar"


def test_a_lowered_quota_is_shown_as_set_and_in_force_with_the_jobs_of_its_deadline(
    world: ServiceWorld,
) -> None:
    jobs = [world.submit("bob", preemptible=False)["id"] for _ in range(2)]
    world.step()
    for job in jobs:
        world.see_running(job)
    world.run(world.services.store_view.refresh())
    moved = QUOTA.replace("{train: {training: 2}", "{train: {training: 1}", 1)
    moved = moved[: moved.rindex("training: 2")] + "training: 3" + moved[moved.rindex("training: 2") + 11 :]
    late = f"{moved}policy: {{drain_by: 2099-12-31T18:00:00Z}}\n"
    found = world.post("quota/preview", "ann", {"text": late}).json
    warning = next(line for line in found["arithmetic"] if line.startswith("Drain deadline"))
    assert "from 2099-12-31T18:00:00Z on" in warning and warning.endswith(f"At present it affects job {jobs[1]}.")
    assert world.put_quota(late).status == 200
    for _ in range(3):
        world.submit("patty", project="speech")
    rows = {row["name"]: row["pools"] for row in world.get("projects", "ann").json["items"]}
    [train] = [row for row in rows["speech"] if row["pool"] == "train"]
    assert (train["training_milli"], train["in_force_training_milli"]) == (3000, 2000)


def test_amounts_are_shown_as_in_force_now_with_the_usual_ones_and_the_next_change(world: ServiceWorld) -> None:
    text = QUOTA + calendar(
        "projects: {speech: {train: {training: 1}}}", "dates: [2020-01-01/2031-01-29], timezone: UTC"
    )
    found = world.post("quota/preview", "ann", {"text": text}).json["arithmetic"]
    assert [line for line in found if line.startswith("Pool train")] == [
        "Pool train: 4 devices; now, while nights is open: notebook quotas none,"
        " training quotas 1 (speech) + 2 (vision) = 3; 1 GPU is left over.",
        "Pool train, while no window is open: notebook quotas none,"
        " training quotas 2 (speech) + 2 (vision) = 4; none is left over.",
        "Pool train, packed: 3 devices needed: 1 for training of speech; 2 whole devices for training of vision.",
        "Pool train, largest rank on one node that always fits: 1 GPU (speech), 2 GPU (vision)."
        " Larger ones rely on moves.",
        *[line for line in found if line.startswith("Pool train: these amounts stay until")],
    ]
    assert len(found) == 7, "pool build has no window"
    assert world.put_quota(text).status == 200
    page = "\n".join(world.get("quota", "ann").json["in_force"])
    assert "now, while nights is open" in page and "while no window is open" in page


def test_lines_of_pools_that_an_edit_leaves_as_they_are_are_marked(world: ServiceWorld) -> None:
    same = world.post("quota/preview", "ann", {"text": QUOTA}).json
    assert same["unchanged_arithmetic"] == same["arithmetic"]
    raised = world.post("quota/preview", "ann", {"text": QUOTA.replace("training: 2", "training: 1", 1)}).json
    assert raised["unchanged_arithmetic"] == [line for line in raised["arithmetic"] if line.startswith("Pool build")]
    other = QUOTA.replace("[Simulated 80G]", "[Simulated 80G, Simulated 16G]")
    taken = world.post("quota/preview", "ann", {"text": other}).json
    assert taken["unchanged_arithmetic"] == [], "the devices of both pools change"


def test_the_largest_rank_on_one_node_is_shown_for_projects_and_departments(world: ServiceWorld) -> None:
    found = world.post("quota/preview", "ann", {"text": DEPARTMENTS}).json
    assert found["checked_ranks"] == [
        {"pool": "train", "owner": name, "is_department": name in ("sight", "voice"), "checked_milli": 2000}
        for name in ("speech", "vision", "sight", "voice")
    ], "pool build has no training quota"
    line = (
        "Pool train, largest rank on one node that always fits: 2 GPU (speech), 2 GPU (vision),"
        " 2 GPU (department sight), 2 GPU (department voice). Larger ones rely on moves."
    )
    assert line in found["arithmetic"]
    assert world.put_quota(DEPARTMENTS).status == 200
    assert line in world.get("quota", "ann").json["in_force"]


def test_an_explanation_compares_the_rank_with_the_largest_that_always_fits(world: ServiceWorld) -> None:
    assert world.put_quota(QUOTA.replace("training: 2", "training: 4"), accept_overcommit=True).status == 200
    world.submit("bob", gpu="4", preemptible=False)
    world.step()
    waiting = world.submit("patty", project="speech", gpu="2")["id"]
    found = world.get(f"explain/{waiting}", "patty").json
    assert found["unchecked_rank"] == {"rank_milli": 2000, "checked_milli": 0}
    assert "A rank of 2 GPU on one node is more than the 0 that speech can always have" in found["reason"]["message"]


# R34
@pytest.mark.parametrize(("weight", "is_bound"), [(0, True), (1, False)])
def test_only_a_bound_is_called_the_latest_start_in_the_same_words_everywhere(
    world: ServiceWorld, chromium: Any, weight: int, is_bound: bool
) -> None:
    """No project has a quota, and Bob's job is protected by its minimum run time. One with a weight may come first."""
    text = QUOTA.replace("training: 2", "training: 0, weight: 0", 1).replace("training: 2", "training: 0")
    text += f"  - {{name: audio, quota: {{train: {{training: 0, weight: {weight}}}}}}}\n"
    assert world.put_quota(text).status == 200
    running = world.submit("bob")["id"]
    world.step()
    world.see_running(running)
    waiting = world.submit("patty", project="speech", gpu="4")["id"]
    world.step()
    found = world.get(f"explain/{waiting}", "patty").json
    text = found["estimate_text"]
    condition = " at the latest, based on" if is_bound else "; other work may delay it."
    assert text.startswith("Planned start: ") and condition in text
    for path, where in (("jobs", ".jobs .jgq-start"), (f"jobs/{waiting}", "#now .jgq-start")):
        page = open_page(world, chromium, path, "patty")
        shows(page, where, [text])
        page.context.close()
    url = ["--url", f"http://127.0.0.1:{world.port}{PREFIX}", "--token", "token-patty"]
    for command in ("job", "explain"):
        assert text in " ".join(CliRunner().invoke(main, [command, waiting, *url]).stdout.split())
    assert found["estimate_is_bound"] is is_bound, found
    assert ("at the latest" in found["reason"]["message"]) is is_bound


def test_the_next_change_of_an_amount_is_shown(world: ServiceWorld) -> None:
    world.services.store_view.now = lambda: 1_800_000_000_000  # 2027-01-15T08:00:00Z
    when = 'from: "20:00", to: "06:00", timezone: UTC'
    found = world.post(
        "quota/preview", "ann", {"text": QUOTA + calendar("projects: {speech: {train: {training: 1}}}", when)}
    ).json["arithmetic"]
    assert "Pool train: these amounts change at 2027-01-15T20:00:00Z." in found
    assert not any("while no window" in line for line in found), "none is open now"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        pytest.param("dates: [2020-01-01/2020-12-31], timezone: UTC", True, id="its dates are over"),
        pytest.param("days: [sat], dates: [2027-02-01/2027-02-05], timezone: UTC", True, id="no such day among them"),
        pytest.param("days: [sat], timezone: UTC", False, id="it opens some day"),
        pytest.param(ALWAYS, False, id="it is open"),
    ],
)
def test_a_window_that_never_opens_is_reported(world: ServiceWorld, when: str, expected: bool) -> None:
    text = QUOTA + calendar("projects: {speech: {train: {training: 1}}}", when)
    said = world.post("quota/preview", "ann", {"text": text}).json["arithmetic"]
    assert any(line.startswith("Calendar nights: it does not open within two years") for line in said) is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            QUOTA.replace("[Simulated 80G]", "[A100, H100]"),
            "No device matches the selector of pool train, gpu_model: [A100, H100]; the devices here are"
            " 1 x Simulated 16G, 4 x Simulated 80G.",
            id="none of that model is here",
        ),
        pytest.param(
            QUOTA.replace("{gpu_model: [Simulated 80G]}", "{node: [big-1]}"),
            "No device matches the selector of pool train, node: [big-1]; the devices here are 1 x Simulated 16G,"
            " 4 x Simulated 80G, on the nodes one.",
            id="none on that node",
        ),
        pytest.param(
            QUOTA.replace("gpu_model: [Simulated 16G]", "gpu_model: [Simulated 80G]"),
            "Pool build has no device: the devices that match it are in train, which is listed before it.",
            id="all of them are in a pool before",
        ),
    ],
)
def test_a_pool_without_a_device_gives_the_reason(world: ServiceWorld, text: str, words: str) -> None:
    [refusal] = world.post("quota/preview", "ann", {"text": text}).json["refusals"]
    assert refusal.startswith(words), "the cause is reported before its effects"
    assert words in world.put_quota(text).json["message"]


def test_before_a_device_is_reported_nothing_is_said_of_how_quotas_fit() -> None:
    file = read("version: 1\npools: [{name: a}]\nprojects: [{name: p, quota: {a: {training: 4}}}]\n")
    found = arithmetic_of_file(file, (), 0)
    assert found.sentences == (
        "Pool a: no node has reported a device yet, so whether this fits is not known; notebook quotas none, training "
        "quotas 4 (p).",
        "Pool a, packed: 4 devices needed: 4 whole devices for training of p.",
    )
    assert found.refusals == () and not found.checked["a"].projects
    assert amounts_by_pool(file.policy(1), (), 0) == found.pools


@pytest.mark.parametrize(
    ("selector", "clusters", "words"),
    [
        pytest.param(
            "",
            ["west"],
            "Pool a takes devices of the hub's own cluster, and none is there; those here are in cluster west: add "
            "`selector: {cluster: west}`.",
            id="no selector",
        ),
        pytest.param(
            ", selector: {gpu_model: [80G]}",
            ["west", "east"],
            "Pool a takes devices of the hub's own cluster, and none is there; those here are in clusters east, west: "
            "add `cluster: east` to its selector, or another of them.",
            id="a selector without a cluster",
        ),
        pytest.param(
            ", selector: {gpu_model: [80G]}",
            ["west", "local"],
            "No device matches the selector of pool a, gpu_model: [80G]; the devices here are 1 x A40, 1 x Simulated "
            "80G, in the clusters local, west.",
            id="one in another cluster would match",
        ),
    ],
)
def test_a_pool_without_a_device_in_the_hub_s_own_cluster_gives_the_reason(
    selector: str, clusters: list[str], words: str
) -> None:
    file = read(f"version: 1\npools: [{{name: a{selector}}}]\nprojects: [{{name: p, quota: {{a: {{training: 4}}}}}}]\n")
    nodes = {name: Node(id=name, name=name, cpu_milli=1000, memory_mib=1024, cluster=name) for name in clusters}
    devices = [
        replace(device, pool=None, node=name, model="A40" if name == "local" else device.model)
        for device, name in zip(train_devices(len(clusters)), clusters, strict=True)
    ]
    [refusal] = arithmetic_of_file(file, devices, 0, nodes).refusals
    assert refusal.startswith(words)


def test_a_window_that_changes_only_a_weight_is_not_named_beside_the_amounts() -> None:
    text = QUOTA + calendar("projects: {speech: {train: {weight: 3}}}", 'from: "20:00", to: "06:00", timezone: UTC')
    devices = [replace(device, pool="train") for device in train_devices()]
    found = arithmetic_of_file(read(text), devices, 1_800_000_000_000).pools["train"]
    assert not any("change at" in line for line in found)
    late = arithmetic_of_file(read(text), devices, 1_800_000_000_000 + 15 * 3_600_000).pools["train"]
    assert "nights is open" not in " ".join(late) and "no window is open" not in " ".join(late)
    assert late[:3] == found[:3]


def test_a_job_for_a_pool_without_a_device_is_refused_with_the_selector_and_the_devices(world: ServiceWorld) -> None:
    text = QUOTA.replace("[Simulated 80G]", "[A100]")
    assert world.put_quota(text, accept_overcommit=True).status == 200
    world.quota = QuotaFile.from_document(world.store.quota().document)  # type: ignore[union-attr]
    world.inventory((*train_devices(), *build_devices()))
    world.run(world.services.store_view.refresh())
    refused = world.post("jobs", "bob", {"command": ["x"]})
    assert (refused.status, refused.json["reason"]) == (409, "no_device")
    assert (
        "No device matches the selector of pool train, gpu_model: [A100]; the devices here" in refused.json["message"]
    )


def test_others_are_answered_while_a_preview_is_thought_of(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit("bob")["id"]
    begun, may_end, found = threading.Event(), threading.Event(), list[Reply]()

    def slow(*args: Any) -> Arithmetic:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return arithmetic_of_file(*args)

    monkeypatch.setattr(previews, "arithmetic_of_file", slow)
    request = threading.Thread(target=lambda: found.append(world.post("quota/preview", "ann", {"text": QUOTA})))
    request.start()
    try:
        assert begun.wait(PATIENCE_S)
        assert world.get("jobs", "bob").json["items"][0]["reason"]["code"] == "within_guarantee"
        assert world.get(f"explain/{job}", "bob").status == world.get("projects", "ann").status == 200
    finally:
        may_end.set()
        request.join(PATIENCE_S)
    assert found[0].status == 200
