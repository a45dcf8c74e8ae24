"""Whose work an edit of policy.enforcement would end: named in the preview, accepted by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpu_quota.api.quota_edits.edit import Edit
from jupyter_gpu_quota.api.quota_edits.idle import idle_edits
from jupyter_gpu_quota.core.model import Policy, Snapshot
from tests.client.test_real_service import run
from tests.controllers.setups.enforcement import DEVICES, EnforcementSetup, policy, setup
from tests.quotafile.texts import read

__all__ = ["setup"]
SLICE = {"user": "olga", "server": "", "project": "vision", "pool": "train", "gpu": "0.5"}


@pytest.fixture
def root(setup: EnforcementSetup) -> EnforcementSetup:
    setup.world.add("root", admin=True, scopes=("read", "submit", "admin"))
    setup.apply(policy())
    return setup


def preview(setup: EnforcementSetup, memory: str) -> Any:
    reply = setup.world.post("quota/preview", "root", {"text": policy(memory)})
    assert reply.status == 200, reply.body
    return reply.json


def notebook(setup: EnforcementSetup) -> str:
    with setup.world.stepping():
        return str(setup.world.post("notebooks", "hub", SLICE).json["id"])


def test_stopped_workloads_are_listed_as_affected_with_the_effect(root: EnforcementSetup) -> None:
    job, slice = root.running(), notebook(root)
    root.read(**{job: 100, slice: 100})
    waiting = root.world.submit("olga", gpu="0.5")["id"]
    seen = preview(root, "driver")
    rows = {row["job"]: row for row in seen["affected"]}
    assert {name: row["effect"] for name, row in rows.items()} == {job: "held", slice: "stopped", waiting: "held"}
    assert "has to save and is held 6 minutes after" in rows[job]["message"]
    assert "is enforced at memory " in rows[job]["message"]
    assert "requires at least memory driver" in rows[job]["message"]
    assert rows[slice]["message"].startswith("The server of olga's notebook of 0.5 GPU is stopped 6 minutes after")
    assert "held before it starts" in rows[waiting]["message"]
    assert seen["stops"] == [
        "By policy.enforcement 1 running job is held and 1 notebook server is stopped, 6 minutes after it is in force."
    ]


@pytest.mark.parametrize(
    ("gpu", "memory"),
    [
        pytest.param("1", "hardware", id="a whole device"),
        pytest.param("0.5", "policed", id="a fraction that will be watched as soon as the file asks for it"),
        pytest.param("0.5", "cooperative", id="a fraction that is held so now"),
    ],
)
def test_other_workloads_are_not_affected(root: EnforcementSetup, gpu: str, memory: str) -> None:
    root.read(**{root.running(gpu): 100})
    seen = preview(root, memory)
    assert (seen["stops"], seen["affected"]) == ([], [])


def test_work_that_ends_anyway_needs_no_acceptance(root: EnforcementSetup) -> None:
    root.read(**{root.running(): 100})
    root.apply(policy("driver"))
    assert preview(root, "driver")["stops"] == []


def test_it_is_refused_until_it_is_accepted_by_name(root: EnforcementSetup) -> None:
    root.read(**{root.running(): 100})
    edit = {"text": policy("driver")}
    refused = root.world.call("PUT", "quota", "root", edit, {"If-Match": "2"})
    assert (refused.status, refused.json["reason"]) == (409, "stops_work")
    assert "--accept-stops" in refused.json["message"]
    done = root.world.call("PUT", "quota", "root", edit | {"accept_stops": True}, {"If-Match": "2"})
    assert done.status == 200, done.body
    assert root.world.call("PUT", "quota", "root", {"text": policy()}, {"If-Match": "3"}).status == 200
    back = "quota/revisions/3/actions/revert"
    assert root.world.post(back, "root").json["reason"] == "stops_work"
    assert root.world.post(f"{back}?accept_stops=1", "root").status == 200


def test_the_preview_command_exits_with_1_and_names_the_accepting_option(root: EnforcementSetup) -> None:
    root.read(**{root.running(): 100})
    code, out, found = run(root.world, "root", "quota", "preview", "-", stdin="revision: 2\n" + policy("driver"))
    assert (code, "held: bob's job" in out) == (1, True), (out, found)
    assert "refused: By policy.enforcement 1 running job is held, 6" in found and "--accept-stops" in found
    text = "revision: 2\n" + policy("driver")
    assert run(root.world, "root", "quota", "apply", "-", stdin=text)[0] == 1
    assert run(root.world, "root", "quota", "apply", "-", "--accept-stops", stdin=text)[0] == 0


# --- policy.idle ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("idle", "simulated", "said"),
    [
        pytest.param("{mode: reclaim}", False, "policy.idle.mode becomes reclaim", id="freeing begins"),
        pytest.param("{suspend: true}", False, "no effect in mode report", id="suspending while nothing is freed"),
        pytest.param(
            "{mode: reclaim, suspend: true}", True, "there is no real device", id="suspending without a device"
        ),
        pytest.param(
            "{mode: reclaim, suspend: true}", False, "each server tests that itself", id="suspending where it may work"
        ),
        pytest.param("{mode: report}", False, None, id="a policy that only reports"),
    ],
)
def test_the_effect_of_an_idle_policy_is_a_warning(
    root: EnforcementSetup, idle: str, simulated: bool, said: str | None
) -> None:
    devices = [replace(device, simulated=simulated) for device in DEVICES]
    root.world.apply(policy(), devices)
    reply = root.world.post("quota/preview", "root", {"text": f"{policy()[:-2]}, idle: {idle}}}\n"})
    assert reply.status == 200, reply.body
    found = " ".join(reply.json["warnings"])
    assert said in found if said else found == ""


def edited(idle: str) -> list[str]:
    """The warnings of a first file with this section, before any node has reported."""
    nothing = Snapshot(version=1, now=0, nodes=(), devices=())
    file = read(f"version: 1\npools: []\nprojects: []\npolicy: {{idle: {idle}}}\n")
    return [*idle_edits(Edit(file=file, present=None, old=Policy(revision=0), snapshot=nothing, nodes={}, now=0))]


def test_before_a_device_is_known_suspending_is_not_called_without_effect() -> None:
    found = " ".join(edited("{mode: reclaim, suspend: true}"))
    assert "there is no real device" not in found and "each server tests that itself" in found


def test_all_times_after_which_a_notebook_is_warned_are_named() -> None:
    times = "gpu_idle_after: 20m, kernel_idle_after: 30m, when_nobody_waits: 25m, warn_for: 5m"
    [found] = edited(f"{{mode: reclaim, {times}}}")
    assert (
        "Each whose GPU is unused for 1200 s and whose kernels are idle for 1800 s while work waits in its pool, or "
        "for 1500 s and 1800 s while none waits, is warned, and its kernels are shut down 300 s later" in found
    )
