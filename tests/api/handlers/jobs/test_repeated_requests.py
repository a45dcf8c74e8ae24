"""A request that is sent again with its idempotency key is the same job; another request with that key is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.store.records.commands import SubmitJob
from tests.api.world import QUOTA, Reply, ServiceWorld

SENT = {"command": ["x"], "idempotency_key": "k", "time_limit": "2h", "gpu": "2", "pool": "train"}
LOWER_MAXIMUM = QUOTA.replace("    members: {users: [bob", "    maximum: {time_limit: 1h}\n    members: {users: [bob")


def clone_of(world: ServiceWorld, job: str, **more: Any) -> Reply:
    """The answer to a clone with a key of its own."""
    return world.post(f"jobs/{job}/actions/clone", "bob", {"idempotency_key": "c"} | more)


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(LOWER_MAXIMUM, id="a lower maximum"),
        pytest.param(QUOTA.replace("users: [bob, olga]", "users: [olga]"), id="no longer a member"),
        pytest.param(QUOTA.replace("users: [patty]", "users: [patty, bob]"), id="in two projects"),
        pytest.param(QUOTA.replace("train: {training: 2}, ", "", 1), id="no quota in the pool"),
    ],
)
def test_a_repeated_request_is_the_same_job_whatever_the_quota_file_says_now(world: ServiceWorld, later: str) -> None:
    job = world.post("jobs", "bob", SENT).json["id"]
    clone = clone_of(world, job, gpu="1").json["id"]
    world.apply(later)
    repeated = [world.post("jobs", "bob", SENT), clone_of(world, job, gpu="1")]
    assert [(reply.status, reply.json["id"]) for reply in repeated] == [(200, job), (200, clone)]
    assert all(reply.headers["location"].endswith(f"/jobs/{reply.json['id']}") for reply in repeated)
    others = [world.post("jobs", "bob", SENT | {"gpu": "1"}), clone_of(world, job, gpu="0.5")]
    assert [(reply.status, reply.json["reason"]) for reply in others] == [(409, "key_reused")] * 2
    assert world.get("jobs").json["_pagination"]["total"] == 2


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        pytest.param({"time_limit": "3h"}, "time_limit", id="another time limit"),
        pytest.param({"time_limit": None}, "time_limit", id="the default time limit"),
        pytest.param({"cpu_milli": 2000}, "cpu_milli", id="other host resources"),
        pytest.param({"gpu_model": "80G"}, "gpu_model", id="a model"),
        pytest.param({"data": [], "pool": None}, "data, pool", id="no data and any pool"),
    ],
)
def test_a_field_that_the_quota_file_could_complete_is_compared_as_it_was_sent(
    world: ServiceWorld, more: dict[str, object], differs: str
) -> None:
    job = world.post("jobs", "bob", SENT).json["id"]
    other = world.post("jobs", "bob", SENT | more)
    assert (other.status, other.json["reason"]) == (409, "key_reused")
    assert f"was used for job {job}, which differs in {differs}; nothing was stored" in other.json["message"]


def test_a_default_that_is_sent_makes_no_other_request(world: ServiceWorld) -> None:
    job = world.post("jobs", "bob", SENT).json["id"]
    assert world.post("jobs", "bob", SENT | {"priority": 50, "project": None, "retries": 0}).json["id"] == job


def test_the_key_of_a_clone_is_for_clones_of_that_job_only(world: ServiceWorld) -> None:
    first, second = world.submit()["id"], world.submit()["id"]
    clone = clone_of(world, first)
    assert (clone.status, clone_of(world, first).json["id"]) == (201, clone.json["id"])
    other = clone_of(world, second)
    assert (other.status, other.json["reason"]) == (409, "key_reused") and "clone_of" in other.json["message"]
    assert world.post("jobs", "bob", {"command": ["python", "train.py"], "idempotency_key": "c"}).status == 409


def test_a_dry_run_has_no_key(world: ServiceWorld) -> None:
    world.post("jobs", "bob", SENT)
    dry = world.post("jobs", "bob", SENT | {"command": ["y"], "dry_run": True})
    assert (dry.status, dry.json["charged_milli"]) == (200, 2000)


def test_a_key_that_an_older_release_stored_is_compared_with_its_job(world: ServiceWorld) -> None:
    like = world.store.job(world.submit(command=["x"])["id"])
    assert like is not None
    job = world.services.new_id(world.clock())
    world.record(SubmitJob(job=job, user=like.job.user, account=None, spec=like.spec, idempotency_key="k"))
    repeated = world.post("jobs", "bob", {"command": ["x"], "idempotency_key": "k"})
    assert (repeated.status, repeated.json["id"]) == (200, job)
    other = world.post("jobs", "bob", {"command": ["y"], "idempotency_key": "k"})
    assert other.json["reason"] == "key_reused" and "command" in other.json["message"]
