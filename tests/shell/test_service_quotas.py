"""Departments and the calendar at the web door: previews, what may be accepted by name, and where they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota import snapshotfile
from tests.shell.service_world import PREFIX, QUOTA, Reply, ServiceWorld, service_world

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
        made.run(made.door.world.refresh())
        yield made


def put(world: ServiceWorld, text: str, **more: object) -> Reply:
    revision = world.get("quota", "ann").json["revision"]
    return world.call("PUT", "quota", "ann", {"text": text} | more, headers={"If-Match": f'"{revision}"'})


def test_a_project_is_shown_with_its_department(world: ServiceWorld) -> None:
    assert put(world, DEPARTMENTS).status == 200
    world.submit("bob")
    [vision] = [row for row in world.get("projects", "bob").json["items"] if row["name"] == "vision"]
    department = vision["department"]
    assert (department["name"], department["priority"]) == ("sight", 60)
    [train] = [row for row in department["pools"] if row["pool"] == "train"]
    assert (train["training_milli"], train["limit_milli"], train["queued_jobs"]) == (2000, 3000, 1)
    assert train["in_force_training_milli"] == 2000
    page = world.get(PREFIX, "bob").body.decode()
    assert 'id="department-sight-train"' in page and "in sight" in page and 'id="department-voice' not in page


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
    assert "while nights is open: The quotas of pool train add up to 4.50 GPU and it has 4.00" in refusal
    assert "voice (department) 0.00 for notebooks and 2.50 for training" in refusal and near["acceptable"]


def test_an_admin_accepts_an_overcommitted_window_by_name(world: ServiceWorld) -> None:
    text = QUOTA + calendar("projects: {speech: {train: {training: 3}}}")
    refused = put(world, text)
    assert (refused.status, refused.json["reason"]) == (409, "overcommitted")
    assert "while nights is open" in refused.json["message"]
    assert put(world, text, accept_overcommit=True).status == 200


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        pytest.param(
            "projects: {speech: {train: {training: 2.5}}}", "department voice add up to 2.50", id="above its department"
        ),
        pytest.param(
            "departments: {sight: {train: {limit: 1}}}", "limit of department sight", id="a limit below quotas"
        ),
    ],
)
def test_nobody_can_accept_what_contradicts_itself(world: ServiceWorld, amounts: str, words: str) -> None:
    refused = put(world, DEPARTMENTS + calendar(amounts), accept_overcommit=True)
    assert (refused.status, refused.json["reason"]) == (409, "contradicting")
    assert words in refused.json["message"] and "while nights is open" in refused.json["message"]


def test_what_is_shown_and_foreseen_is_what_is_in_force_now(world: ServiceWorld) -> None:
    open_now = calendar("projects: {speech: {train: {training: 1}, build: {notebook: 0.125}}}")
    assert put(world, QUOTA + open_now).status == 200
    [speech] = [row for row in world.get("projects", "ann").json["items"] if row["name"] == "speech"]
    amounts = {row["pool"]: (row["training_milli"], row["notebook_milli"]) for row in speech["pools"]}
    assert amounts == {"train": (1000, 0), "build": (0, 125)}
    choices = world.get("me", "patty").json["notebook_choices"]
    assert [choice["quota_milli"] for choice in choices if choice["project"] == "speech"] == [125]
    document = snapshotfile.read(world.get("snapshot", "ann").body)
    assert isinstance(document, snapshotfile.SnapshotDocument)
    assert len(document.policy.windows) > 50, "a saved snapshot is decided on with its calendar"
