"""Jobs are held, released, cancelled and run again, and say why they wait or ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from jupyter_gpu_quota.client import Client, Refused
from jupyter_gpu_quota.core.facts import RankFact
from tests.api.handlers.jobs.test_submitting import send_bundle
from tests.api.world import ServiceWorld


def test_hold_release_and_cancel_are_repeatable(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    seen = [
        world.post(f"jobs/{job}/actions/{change}").json["state"]
        for change in ("hold", "hold", "release", "cancel", "cancel")
    ]
    assert seen == ["held", "held", "queued", "cancelled", "cancelled"]
    refused = world.post(f"jobs/{job}/actions/hold")
    assert (refused.status, refused.json["reason"]) == (409, "ended")
    assert refused.json["message"] == f"Job {job} has ended (cancelled); nothing was changed."
    released = world.post(f"jobs/{job}/actions/release").json["message"]
    assert released.endswith(f"nothing was changed. `jupyter gpu-quota clone {job}` submits it as a new job.")
    assert world.get(f"jobs/{job}").json["ended_at"] is not None


def test_a_released_job_is_not_described_as_held(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    held = world.post(f"jobs/{job}/actions/hold").json
    assert (held["state"], held["target"], held["reason"]["code"]) == ("running", "held", "held_by_user")
    world.step()
    released = world.post(f"jobs/{job}/actions/release").json
    assert (released["state"], released["target"], released["reason"]) == ("pausing", "paused", None)
    found = world.get(f"explain/{job}").json["reason"]["message"]
    assert found == "The job is pausing: it saves what it has, then it is queued again at its old position."
    world.see(_gone(job))
    (listed,) = world.get("jobs").json["items"]
    assert listed["state"] == "paused" and "held" not in (listed["reason"] or {}).get("message", "")


def test_an_ended_job_is_not_described_as_starting(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    for found in (world.get(f"jobs/{job}").json["reason"], world.get(f"explain/{job}").json["reason"]):
        assert "so it started." in found["message"] and "now" not in found["message"], "it runs already"
    world.see_running(job, ended_at=world.clock(), exit_status=3, tree_gone=True)
    found = [world.get(f"{resource}/{job}").json["reason"] for resource in ("jobs", "explain")]
    found += [each["reason"] for each in world.get("jobs").json["items"]]
    assert {each["message"] for each in found} == {
        "The command on node node-1 ended with exit status 3. Its log may have the cause."
    }
    assert found[0]["figures"] == {"exit_status": 3, "node": "node-1"}


TAINT = "Unschedulable: 0/2 nodes are available: 1 node(s) had untolerated taint(s)"


def test_a_job_that_its_node_does_not_take_says_why_and_what_to_do(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()

    def reasons() -> set[str]:
        world.run(world.services.store_view.refresh())
        return {world.get(f"{each}/{job}").json["reason"]["message"] for each in ("jobs", "explain")}

    waits = RankFact(job=job, attempt=1, rank=0, handle=None, started_at=None, trouble=TAINT)
    world.see(waits)
    (said,) = reasons()
    assert f" The command has not begun on node node-1: {TAINT}. Tolerate the taint" in said
    assert world.get(f"jobs/{job}").json["rank_records"][0]["trouble"] == TAINT
    world.see(replace(waits, ended_at=world.clock(), tree_gone=True, trouble=None, why_lost=TAINT))
    for said in reasons():
        assert f"Attempt 1 was lost on node node-1: {TAINT}. Tolerate the taint" in said
    (rank,) = world.get(f"jobs/{job}").json["rank_records"]
    assert rank["exit_text"] == f"lost: {TAINT}"


def test_a_paused_job_shows_its_present_reason_and_the_cause_of_the_pause(world: ServiceWorld) -> None:
    mine = [world.submit("bob", project="vision", name=f"mine {n}")["id"] for n in range(4)]
    world.step()
    for job in mine:
        world.see_running(job)
    theirs = world.submit("patty", project="speech")["id"]
    world.step()
    world.run(world.services.store_view.refresh())
    [paused] = [job for job in world.get("jobs").json["items"] if job["state"] == "pausing"]
    since = world.store.job(paused["id"]).job.pausing_since_at or 0  # type: ignore[union-attr]
    assert datetime.fromisoformat(paused["grace_ends_at"]).timestamp() * 1000 == since + 60_000, "the default grace"
    world.see(_gone(paused["id"]))
    world.step()
    world.see_running(theirs)
    world.run(world.services.store_view.refresh())
    [listed] = [job for job in world.get("jobs").json["items"] if job["id"] == paused["id"]]
    shown = world.get(f"jobs/{paused['id']}").json
    explained = world.get(f"explain/{paused['id']}").json["reason"]
    assert listed["reason"]["code"] == shown["reason"]["code"] == explained["code"] == "above_fair_share"
    assert listed["paused_because"]["code"] == "reclaimed" == paused["reason"]["code"]
    assert listed["grace_ends_at"] is None
    assert shown["paused_because"]["message"].startswith("speech asked for 1 GPU")
    world.post(f"jobs/{mine[0] if mine[0] != listed['id'] else mine[1]}/actions/cancel")
    world.step()
    assert world.get(f"jobs/{listed['id']}").json["paused_because"]["code"] == "reclaimed"


def test_a_held_job_is_not_described_with_a_grace_period(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    world.see_running(job)
    world.post(f"jobs/{job}/actions/hold")
    world.step()
    assert "s to save" in world.get(f"jobs/{job}").json["reason"]["message"]
    world.see(_gone(job))
    held = world.get(f"jobs/{job}").json
    assert held["state"] == "held"
    assert held["reason"]["message"] == "bob held the job. It waits until it is released."


@pytest.mark.parametrize(("change", "says"), [("hold", "lea held the job."), ("cancel", "lea cancelled the job.")])
def test_another_user_who_held_or_cancelled_a_job_is_named(world: ServiceWorld, change: str, says: str) -> None:
    job = world.submit("bob")["id"]
    world.post(f"jobs/{job}/actions/{change}", "lea")
    for shown in (world.get(f"jobs/{job}").json, world.get(f"explain/{job}").json, *world.get("jobs").json["items"]):
        assert shown["reason"]["message"].startswith(says)
        assert shown["reason"]["figures"] == {"by": "lea"}


def _gone(job: str) -> RankFact:
    return RankFact(
        job=job, attempt=1, rank=0, handle="100", started_at=1, ended_at=2, exit_status=75,
        pause_requested=True, tree_gone=True,
    )  # fmt: skip


def test_a_lead_may_cancel_and_another_member_may_not(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    refused = world.post(f"jobs/{job}/actions/cancel", "olga")
    assert (refused.status, refused.json["reason"]) == (403, "not_yours")
    assert "bob" in refused.json["message"]
    assert world.post(f"jobs/{job}/actions/cancel", "lea").json["state"] == "cancelled"


def test_rerun_queues_the_same_spec_as_a_new_job(world: ServiceWorld, tmp_path: Path) -> None:
    digest = send_bundle(world, tmp_path)
    old = world.submit(bundle=digest, gpu="0.5", variables={"SEED": "1"}, time_limit="90m", name="first")
    new = world.post(f"jobs/{old['id']}/actions/rerun", "olga").json
    old, new = (world.get(f"jobs/{job['id']}").json for job in (old, new))
    same = ("command", "gpu", "gpu_milli", "bundle", "variables", "time_limit_s", "project", "pool", "name")
    assert {key: new[key] for key in same} == {key: old[key] for key in same}
    assert (new["user"], new["clone_of"], new["id"] != old["id"]) == ("olga", old["id"], True)


@pytest.mark.parametrize("again", ["rerun", "clone"])
def test_a_job_named_after_its_command_can_run_again(world: ServiceWorld, again: str) -> None:
    old = world.submit(command=["python", "scripts/train.py", "--lr=0.1"])
    answer = world.post(f"jobs/{old['id']}/actions/{again}", "bob", {})
    assert (answer.status, answer.json["name"]) == (201, old["name"])


def test_a_copy_may_differ(world: ServiceWorld) -> None:
    old = world.submit("lea", priority=90)
    copy = world.post(f"jobs/{old['id']}/actions/clone", "bob", {"name": "copy", "gpu": "2"}).json
    assert (copy["name"], copy["gpu_milli"], copy["priority"]) == ("copy", 2000, 50)
    more = {"cpu_milli": 300, "memory_mib": 64, "time_limit": "90m", "nodes": 1}
    other = world.post(f"jobs/{old['id']}/actions/clone", "bob", more).json
    assert (other["cpu_milli"], other["memory_mib"], other["time_limit_s"], other["ranks"]) == (300, 64, 5400, 1)
    before = len(world.get("jobs", "bob").json["items"])
    dry = world.post(f"jobs/{old['id']}/actions/clone", "bob", {"gpu": "2", "dry_run": True})
    assert dry.json["charged_milli"] == 2000 and len(world.get("jobs", "bob").json["items"]) == before
    refused = world.post(f"jobs/{old['id']}/actions/clone", "bob", {"priority": 90})
    assert (refused.status, refused.json["reason"]) == (403, "priority")


def test_a_job_with_secrets_is_not_repeated_without_them(world: ServiceWorld) -> None:
    old = world.submit(secrets={"TOKEN": "hunter2"})
    refused = world.post(f"jobs/{old['id']}/actions/rerun")
    assert (refused.status, refused.json["reason"]) == (409, "had_secrets")
    assert "TOKEN" in refused.json["message"]


def test_a_job_with_secrets_is_repeated_with_them(world: ServiceWorld) -> None:
    old = world.submit(secrets={"TOKEN": "hunter2", "KEY": "k"})
    some = world.post(f"jobs/{old['id']}/actions/rerun", "bob", {"secrets": {"KEY": "k"}})
    assert some.status == 409 and "TOKEN" in some.json["message"] and "KEY" not in some.json["message"]
    both = world.post(f"jobs/{old['id']}/actions/rerun", "bob", {"secrets": {"KEY": "k", "TOKEN": "new"}})
    assert (both.status, both.json["secret_names"]) == (201, ["KEY", "TOKEN"])
    assert world.store.secrets(both.json["id"]) == {"KEY": "k", "TOKEN": "new"}
    assert b"hunter2" not in both.body and b"new" not in both.body


def test_the_client_repeats_a_job_with_the_keys_of_trackers(world: ServiceWorld) -> None:
    environment = {"JUPYTER_GPU_QUOTA_TRACKER_VARIABLES": "WANDB_*", "WANDB_API_KEY": "k", "WANDB_MODE": "offline"}
    client = Client(f"http://127.0.0.1:{world.port}", "token-bob", environment=environment)
    old = client.submit("python train.py", dir=None)
    assert (old.view.secret_names, client.job(old.id).variables) == (["WANDB_API_KEY"], {"WANDB_MODE": "offline"})
    assert world.store.secrets(client.rerun(old.id).id) == {"WANDB_API_KEY": "k"}
    other = client.submit("python train.py", dir=None, secrets={"TOKEN": "t"})
    with pytest.raises(Refused, match="TOKEN"):
        client.rerun(other.id)
    assert client.rerun(other.id, secrets={"TOKEN": "t"}).view.secret_names == ["TOKEN", "WANDB_API_KEY"]


def test_a_clone_of_an_elastic_job_may_have_fewer_nodes_than_its_least(world: ServiceWorld) -> None:
    old = world.submit("bob", nodes=2, min_nodes=2)["id"]
    clone = world.post(f"jobs/{old}/actions/clone", "bob", {"nodes": 1})
    assert (clone.status, clone.json["ranks"]) == (201, 1)


def test_a_clone_that_is_too_large_is_refused_with_the_limit(world: ServiceWorld) -> None:
    old = world.submit("bob")["id"]
    secrets = {f"SECRET_{number}": "x" * 30_000 for number in range(3)}
    refused = world.post(f"jobs/{old}/actions/clone", "bob", {"secrets": secrets})
    assert (refused.status, refused.json["reason"]) == (400, "invalid")
    assert "at most 65536 fit" in refused.json["message"]
