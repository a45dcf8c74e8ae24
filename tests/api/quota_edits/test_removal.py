"""A project or pool with work is removed from the quota file, in the API: the messages and the effects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.world import QUOTA, ServiceWorld, service_world

WITHOUT_VISION = QUOTA[: QUOTA.index("  - name: vision")] + QUOTA[QUOTA.index("  - name: speech") :]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.run(made.services.store_view.refresh())
        yield made


def busy(world: ServiceWorld) -> tuple[str, str]:
    """Bob runs four jobs in vision and queues one; the ids of a running and of the queued one."""
    jobs = [world.submit("bob", project="vision", name=f"train {n}")["id"] for n in range(5)]
    world.step()
    for job in jobs[:4]:
        world.see_running(job)
    world.run(world.services.store_view.refresh())
    return jobs[0], jobs[4]


def test_an_owner_may_change_their_jobs_after_the_project_was_removed(world: ServiceWorld) -> None:
    running, queued = busy(world)
    assert world.put_quota(WITHOUT_VISION, accept_removal=True).status == 200
    world.run(world.services.store_view.refresh())
    assert {job["id"] for job in world.get("jobs?live=1", "bob").json["items"]} >= {running, queued}
    assert [job["id"] for job in world.get("jobs?project=vision&state=queued", "bob").json["items"]] == [queued]
    for path in (f"jobs/{running}", f"jobs/{running}/logs", f"jobs/{running}/outputs", f"explain/{queued}"):
        assert world.get(path, "bob").status == 200, path
    assert world.post(f"jobs/{queued}/actions/hold", "bob").status == 200
    assert world.post(f"jobs/{running}/actions/cancel", "bob").status == 200
    assert world.get("jobs", "olga").json["items"] == [], "who was only a member sees them no more"
    assert world.get(f"jobs/{running}", "olga").status == 404


# R68
def test_removing_a_project_with_work_needs_acceptance(world: ServiceWorld) -> None:
    busy(world)
    refused = world.put_quota(WITHOUT_VISION)
    assert (refused.status, refused.json["reason"]) == (409, "removes_work")
    assert refused.json["message"].startswith("The file removes project vision, which has 5 jobs.")
    assert world.put_quota(WITHOUT_VISION, accept_removal=True).status == 200


def test_a_refused_file_names_all_that_must_be_accepted(world: ServiceWorld) -> None:
    busy(world)
    too_much = WITHOUT_VISION.replace("training: 2", "training: 9")
    refused = world.put_quota(too_much)
    assert (refused.status, refused.json["reason"]) == (409, "overcommitted")
    for option in ("--accept-overcommit", "The file removes project vision", "--accept-removal"):
        assert option in refused.json["message"], option
    refused = world.put_quota(too_much, accept_overcommit=True)
    assert refused.json["reason"] == "removes_work" and "--accept-overcommit" not in refused.json["message"]


def test_a_revert_that_removes_work_needs_acceptance(world: ServiceWorld) -> None:
    assert world.put_quota(WITHOUT_VISION).status == world.put_quota(QUOTA).status == 200
    world.run(world.services.store_view.refresh())
    busy(world)
    refused = world.post("quota/revisions/2/actions/revert", "ann")
    assert (refused.status, refused.json["reason"]) == (409, "removes_work")
    assert world.post("quota/revisions/2/actions/revert?accept_removal=1", "ann").status == 200


def test_a_file_is_applied_while_the_hub_cannot_name_anybodys_groups(world: ServiceWorld) -> None:
    world.submit("bob", project="vision")
    world.get("me", "ann")
    world.hub.away = True
    assert world.put_quota(QUOTA.replace("users: [bob, olga]", "users: [olga]")).status == 200


def test_removing_a_project_without_work_needs_no_acceptance(world: ServiceWorld) -> None:
    assert world.put_quota(WITHOUT_VISION).status == 200


def test_a_preview_names_every_job_and_notebook_of_a_removed_project(world: ServiceWorld) -> None:
    running, queued = busy(world)
    slice_ = world.post("notebooks", "hub", {"user": "olga", "project": "vision", "pool": "build", "gpu": "1/8"}).json
    world.step()
    world.run(world.services.store_view.refresh())
    seen = world.post("quota/preview", "ann", {"text": WITHOUT_VISION}).json
    assert seen["removals"] == ["The file removes project vision, which has 5 jobs and 1 notebook slice."]
    rows = {row["job"]: row for row in seen["affected"]}
    assert len(rows) == 6 and rows[slice_["id"]]["kind"] == "notebook"
    assert rows[running]["effect"] == "over_quota" and rows[queued]["effect"] == "waits"
    assert rows[slice_["id"]]["message"] == (
        "olga's notebook of 0.125 GPU keeps its GPUs. Project vision is no longer in the quota file. This notebook"
        " keeps its GPUs until its server stops; nothing else starts on them before."
    )
    assert (
        'bob\'s job "train 0" continues for now, and is paused when others claim its GPUs. Project vision'
        in rows[running]["message"]
    )
    assert (
        'bob\'s job "train 4" waits: Project vision is no longer in the quota file, so this' in rows[queued]["message"]
    )


def test_apply_pauses_the_jobs_that_the_preview_listed(world: ServiceWorld) -> None:
    busy(world)
    patty = world.submit("patty", project="speech", gpu="3")["id"]
    world.run(world.services.store_view.refresh())
    text = WITHOUT_VISION.replace("{training: 2}", "{training: 3}")
    seen = world.post("quota/preview", "ann", {"text": text}).json
    named = {row["job"] for row in seen["affected"] if row["effect"] == "paused"}
    assert world.put_quota(text, accept_removal=True).status == 200
    world.step()
    jobs = world.get("jobs", "ann").json["items"]
    assert named == {job["id"] for job in jobs if job["state"] == "pausing"} and len(named) == 3
    assert [row["effect"] for row in seen["affected"] if row["job"] == patty] == ["starts"]


def test_a_preview_lists_the_work_of_users_who_lose_their_membership(world: ServiceWorld) -> None:
    world.add("gus", groups=["vision-team"])
    mine, his = world.submit("bob", project="vision"), world.submit("gus", project="vision")
    world.run(world.services.store_view.refresh())
    seen = world.post("quota/preview", "ann", {"text": QUOTA.replace("users: [bob, olga]", "users: [olga]")}).json
    [row] = [row for row in seen["affected"] if row["effect"] == "loses_membership"]
    assert row["job"] == mine["id"] and "bob sees it and may hold or cancel it" in row["message"]
    seen = world.post("quota/preview", "ann", {"text": QUOTA.replace("[vision-team]", "[other-team]")}).json
    assert [row["job"] for row in seen["affected"] if row["effect"] == "loses_membership"] == [his["id"]]


def test_a_former_member_may_hold_a_job_but_not_release_it(world: ServiceWorld) -> None:
    job = world.submit("bob", project="vision")["id"]
    assert world.put_quota(QUOTA.replace("users: [bob, olga]", "users: [olga]")).status == 200
    assert world.post(f"jobs/{job}/actions/hold", "bob").json["state"] == "held"
    refused = world.post(f"jobs/{job}/actions/release", "bob")
    assert (refused.status, refused.json["reason"]) == (403, "not_a_member")
    assert "bob is no longer a member of vision and may not start work there" in refused.json["message"]
    assert world.get(f"jobs/{job}", "bob").json["state"] == "held"
    assert world.post(f"jobs/{job}/actions/release", "lea").json["state"] == "queued", "a lead answers for the project"
    assert world.post(f"jobs/{job}/actions/cancel", "bob").json["state"] == "cancelled"


def test_listings_mark_the_work_of_a_removed_project(world: ServiceWorld) -> None:
    running, queued = busy(world)
    world.post("notebooks", "hub", {"user": "olga", "project": "vision", "pool": "build", "gpu": "1/8"})
    world.step()
    assert world.put_quota(WITHOUT_VISION, accept_removal=True).status == 200
    world.run(world.services.store_view.refresh())
    reasons = {job["id"]: job["reason"]["code"] for job in world.get("jobs", "bob").json["items"]}
    assert (reasons[running], reasons[queued]) == ("project_gone", "no_such_project")
    [slice_] = world.get("notebooks", "olga").json["items"]
    assert slice_["reason"]["code"] == "project_gone"
    assert world.get(f"jobs/{running}", "bob").json["reason"]["code"] == "project_gone"
    assert world.get(f"explain/{running}", "bob").json["reason"]["code"] == "project_gone"
    assert "Project vision is no longer in the quota file" in slice_["reason"]["message"]
