"""The enforcement controller: labels are read back and stored, work above its share is stopped, weak shares refused."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.api.access.work_in_progress import DEVICE_CHECKS
from jupyter_gpu_quota.api.state import offers
from jupyter_gpu_quota.backends.kubernetes.enforcement import NO_AGENT, ClusterEnforcement
from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup, notebook_cgroup
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer
from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from jupyter_gpu_quota.controllers import weak_shares
from jupyter_gpu_quota.controllers.enforcement import SWEEP_EVERY_MS
from jupyter_gpu_quota.controllers.memory_enforcement import MemoryEnforcement
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare
from jupyter_gpu_quota.core.enforcement.over_share import FRESH_MS
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.samples import AGENT, WORKLOADS, DeviceSample, ProcessUse
from jupyter_gpu_quota.store.records.calls import LeaseLost, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import RecordMemoryEnforcement, Request
from tests.api.world import QUOTA, service_world
from tests.controllers.setups.enforcement import DEVICES, EnforcementSetup, policy, readings, setup
from tests.patience import PATIENCE_S, until

__all__ = ["setup"]

FRACTION = {"command": ["x"], "gpu": "0.5"}


# --- labels -----------------------------------------------------------------------------------------------------------
def test_a_label_is_shown_after_read_back_and_survives_a_restart(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    assert setup.view(job)["enforcement"] == {"memory": "none", "compute": "none", "why": "it was not read back yet"}
    setup.read(**{job: 100})
    assert setup.label(job) == ("cooperative", "none")
    why = setup.view(job)["enforcement"]["why"]
    assert "driver: the driver was not asked" in why and "policed: policy.enforcement does not require it" in why
    (allocation,) = setup.world.services.store_view.allocations_of(job)
    assert setup.world.store.labels([allocation.id])[allocation.id].memory == "cooperative"


def test_each_change_is_audited_once(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    for _ in range(3):
        setup.read(1_000, **{job: 100})
    rows = [row for row in setup.world.store.audit()[0] if row.kind == "share.enforcement"]
    assert [(row.subject, '"memory":"cooperative"' in row.payload) for row in rows] == [(job, True)]
    setup.child.kill()
    setup.child.wait()
    setup.read(1_000, **{job: 100})
    assert setup.label(job) == ("none", "none")
    assert len([row for row in setup.world.store.audit()[0] if row.kind == "share.enforcement"]) == 2


def test_a_whole_device_is_enforced_by_hardware_while_it_can_be_read(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running("1")
    setup.read(**{job: 100})
    assert setup.label(job) == ("hardware", "hardware")
    setup.now += 60_000
    setup.run_enforcement()
    assert setup.label(job) == ("none", "none") and "older than" in setup.view(job)["enforcement"]["why"]


def leaf_with_our_child(setup: EnforcementSetup, job: str) -> Cgroups:
    cgroups = Cgroups(setup.world.state_dir)
    if cgroups.why_not:
        pytest.skip(f"no control group can be made here: {cgroups.why_not}")
    assert cgroups.make(job_cgroup(job, 1, 0)) == ""
    (cgroups.path(job_cgroup(job, 1, 0)) / "cgroup.procs").write_text(str(setup.child.pid))
    return cgroups


def test_the_driver_label_needs_the_limit_of_the_jobs_own_cgroup(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    cgroups, device = leaf_with_our_child(setup, job), setup.device_of(job)
    share_mib, other = setup.view(job)["allocations"][0]["memory_mib"], None
    try:
        setup.limits[device] = LimitAnswer(limit_mib=share_mib, is_known=True)
        setup.read(**{job: 100})
        assert setup.label(job) == ("driver", "none")
        setup.limits[device] = LimitAnswer(limit_mib=share_mib * 2, is_known=True)
        setup.read(31_000, **{job: 100})
        assert setup.label(job)[0] == "cooperative", "the library reported something else later"
        assert f"{share_mib * 2} MiB, not {share_mib} MiB" in setup.view(job)["enforcement"]["why"]
        setup.limits[device] = LimitAnswer(limit_mib=share_mib, is_known=True)
        other = subprocess.Popen(["sleep", "600"])
        (cgroups.path(job_cgroup(job, 1, 0)) / "cgroup.procs").write_text(str(other.pid))
        (cgroups.root / "cgroup.procs").write_text(str(setup.child.pid))  # type: ignore[operator]
        setup.read(31_000, **{job: 100})
        assert setup.label(job)[0] == "cooperative", "it got out of its group"
        assert f"({setup.child.pid}) is not in the cgroup" in setup.view(job)["enforcement"]["why"]
    finally:
        cgroups.kill(job_cgroup(job, 1, 0))
        setup.child.kill()
        setup.child.wait()
        if other is not None:
            other.wait(PATIENCE_S)
        cgroups.remove(job_cgroup(job, 1, 0))


def test_a_process_outside_the_cgroup_ends_the_driver_label(setup: EnforcementSetup) -> None:
    """Its first process stays in the cgroup with the limit, and another one leaves it."""
    setup.apply(policy())
    job = setup.running()
    cgroups, device = leaf_with_our_child(setup, job), setup.device_of(job)
    share_mib, other = setup.view(job)["allocations"][0]["memory_mib"], subprocess.Popen(["sleep", "600"])
    setup.limits[device] = LimitAnswer(limit_mib=share_mib, is_known=True)
    found = process(other.pid)
    assert found is not None
    setup.using = {
        job: (ProcessUse(handle=str(other.pid), memory_mib=100, percent=1, places=(("", other.pid, found.started),)),)
    }
    try:
        setup.read(**{job: 100})
        assert setup.label(job)[0] == "cooperative"
        assert f"its process {other.pid} is not in the cgroup" in setup.view(job)["enforcement"]["why"]
        rank = job_cgroup(job, 1, 1)
        assert cgroups.make(rank) == ""
        (cgroups.path(rank) / "cgroup.procs").write_text(str(other.pid))
        setup.read(1_000, **{job: 100})
        assert setup.label(job)[0] == "driver", "another rank of the same job is in a group of its own"
    finally:
        for each in (job_cgroup(job, 1, 0), job_cgroup(job, 1, 1)):
            cgroups.kill(each)
        for child in (setup.child, other):
            child.kill()
            child.wait()
        for each in (job_cgroup(job, 1, 0), job_cgroup(job, 1, 1)):
            cgroups.remove(each)


def test_the_cgroup_of_an_ended_notebook_is_removed_by_the_second_sweep(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    cgroups = Cgroups(setup.world.state_dir)
    if cgroups.why_not:
        pytest.skip(f"no control group can be made here: {cgroups.why_not}")
    name = booked(setup)
    names = [notebook_cgroup(name), notebook_cgroup("over"), job_cgroup("J", 1, 0)]
    assert [cgroups.make(name) for name in names] == [""] * 3
    setup.run_enforcement()
    assert cgroups.names() == sorted(names), "the list of notebooks may be older than the cgroup"
    setup.now += SWEEP_EVERY_MS
    setup.run_enforcement()
    assert cgroups.names() == sorted([names[0], names[2]])
    assert {(each.device, each.mib) for each in setup.requests if each.group.endswith("over")} >= {
        ("GPU-0", 0),
        ("GPU-1", 0),
    }
    for name in names:
        cgroups.remove(name)


def test_a_leader_whose_lease_ended_cleans_nothing_up(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    swept: list[object] = []
    setup.enforcement.sweep = lambda *given: swept.append(given)  # type: ignore[method-assign]
    setup.now += 10_000
    with pytest.raises(LeaseLost):
        setup.world.controllers.enforcement.run_once(setup.now)
    assert swept == []


def test_a_job_above_its_share_is_warned_then_held_and_its_neighbour_is_not(setup: EnforcementSetup) -> None:
    setup.apply(policy("policed"))
    job, neighbour = setup.running(), setup.running(who="olga")
    assert setup.device_of(job) == setup.device_of(neighbour)
    setup.read(**{job: 7000, neighbour: 100})
    assert setup.label(job) == ("policed", "none")
    assert "stopped if it still does 60 s" in setup.view(job)["enforcement"]["why"]
    assert setup.view(job)["target"] == "running"
    readings(setup, 4, **{job: 7000, neighbour: 100})
    found = setup.view(job)
    assert (found["target"], found["reason"]["code"]) == ("held", "over_share")
    assert "7000 MiB" in found["reason"]["message"]
    assert setup.view(neighbour)["target"] == "running" and "uses more" not in str(setup.view(neighbour))


HOUR_MS = 3_600_000


def test_work_above_its_share_is_stopped_in_time_after_the_clock_was_set_back(setup: EnforcementSetup) -> None:
    setup.apply(policy("policed"))
    job = setup.running()
    setup.read(**{job: 7000})
    readings(setup, 2, **{job: 7000})
    setup.now -= HOUR_MS
    setup.world.controllers.take_over()
    readings(setup, 8, **{job: 7000})
    assert setup.view(job)["target"] == "held"


def test_work_within_its_share_is_not_warned_any_more_after_the_clock_was_set_back(setup: EnforcementSetup) -> None:
    setup.apply(policy("policed"))
    job = setup.running()
    setup.read(**{job: 7000})
    setup.now -= HOUR_MS
    setup.world.controllers.take_over()
    readings(setup, 2, **{job: 100})
    assert "uses more" not in setup.view(job)["enforcement"]["why"]


def test_a_share_enforced_too_weakly_is_held_in_time_after_the_clock_was_set_back(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    setup.apply(policy("driver"))
    readings(setup, 8, **{job: 100})
    assert job in setup.world.controllers.enforcement.weak.warned
    setup.now -= HOUR_MS
    setup.world.controllers.take_over()
    readings(setup, 20, **{job: 100})
    assert setup.view(job)["target"] == "held"


def test_the_reason_is_shown_while_the_job_pauses_and_while_it_is_held(setup: EnforcementSetup) -> None:
    setup.apply(policy("policed"))
    job = setup.running()
    setup.read(**{job: 7000})
    readings(setup, 4, **{job: 7000})
    setup.world.step()
    assert (setup.view(job)["state"], setup.view(job)["reason"]["code"]) == ("pausing", "over_share")
    setup.world.see_running(job, ended_at=setup.now, exit_status=75, tree_gone=True, pause_requested=True)
    found = setup.view(job)
    assert (found["state"], found["reason"]["code"]) == ("held", "over_share"), found
    assert setup.world.post(f"jobs/{job}/actions/release").json["reason"] is None


def test_a_job_that_does_not_stop_is_held_once_and_keeps_its_label(setup: EnforcementSetup) -> None:
    """The backend kills it, and the scheduling controller quarantines its device."""
    setup.apply(policy("policed"))
    job = setup.running()
    setup.read(**{job: 7000})
    readings(setup, 10, **{job: 7000})
    holds = [row for row in setup.world.store.audit()[0] if row.kind == "job.hold"]
    assert len(holds) == 1 and holds[0].actor == "system:policing"
    setup.world.step()
    assert (setup.view(job)["state"], setup.label(job)) == ("pausing", ("policed", "none"))
    setup.read(10_000, **{job: None})
    assert setup.label(job)[0] == "cooperative", "it is still read back"


@pytest.mark.parametrize("simulated", [True, False])
def test_work_on_a_simulated_device_is_never_above_its_share(simulated: bool) -> None:
    unused: Any = None
    memory = MemoryEnforcement(unused, unused)
    part = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=100, attempt=1, simulated=simulated)
    row = DeviceSample(
        node="n", device="d0", at=1, utilisation_percent=1, memory_used_mib=900, coverage_permille=1000,
        simulated=simulated, workloads={"J": 1}, workload_memory_mib={"J": 900},
    )  # fmt: skip
    memory.read([("d0", part)], {"d0": row})
    assert list(memory.excess) == ([] if simulated else [("J", "d0")])


@pytest.mark.parametrize(
    ("memory", "used"),
    [
        pytest.param("none", 7000, id="a policy without requirements only shows it"),
        pytest.param("cooperative", 7000, id="a cooperative policy only shows it"),
        pytest.param("policed", None, id="unknown use"),
        pytest.param("policed", 3000, id="use within the share"),
    ],
)
def test_other_workloads_are_not_stopped(setup: EnforcementSetup, memory: str, used: int | None) -> None:
    setup.apply(policy(memory))
    job = setup.running()
    setup.read(**{job: used})
    readings(setup, 6, **{job: used})
    assert setup.view(job)["target"] == "running"
    assert ("uses more" in setup.view(job)["enforcement"]["why"]) == (used == 7000)


def test_the_level_policed_needs_memory_readings(setup: EnforcementSetup) -> None:
    setup.apply(policy("policed"))
    job = setup.running()
    setup.read(**{job: 100})
    assert setup.label(job)[0] == "policed"
    setup.read(10_000, **{job: None})
    assert setup.label(job)[0] == "cooperative"
    readings(setup, 10, **{job: None})
    assert setup.view(job)["target"] == "running", "a gap in the readings ends no work"


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("memory", "gpu", "refused"),
    [
        pytest.param("driver", "0.5", True, id="a fraction that no driver here can limit"),
        pytest.param("policed", "0.5", False, id="a fraction that memory enforcement covers"),
        pytest.param("hardware", "1", False, id="a whole device"),
        pytest.param("hardware", "0.5", True, id="a fraction is not enforced by hardware"),
        pytest.param("none", "0.5", False, id="a policy without requirements"),
    ],
)
def test_a_share_that_no_device_can_enforce_is_refused_with_advice(
    setup: EnforcementSetup, memory: str, gpu: str, refused: bool
) -> None:
    setup.apply(policy(memory))
    reply = setup.world.post("jobs", "bob", {"command": ["x"], "gpu": gpu})
    slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": gpu}
    if not refused:
        assert reply.status == 201, reply.body
        return
    for answer in (reply, setup.world.post("notebooks", "hub", slice)):
        assert (answer.status, answer.json["reason"]) == (409, "enforcement_too_weak"), answer.body
        for word in (f"requires at least memory {memory}", "offers memory policed", "Ask for a whole device", "doctor"):
            assert word in answer.json["message"], answer.json["message"]
        assert "bob asked for 0.5" in answer.json["message"]


def test_checks_that_wait_for_a_driver_are_limited_per_person(
    setup: EnforcementSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.apply(policy("policed"))
    most = 4
    monkeypatch.setattr(offers, "DEVICE_CHECKS", replace(DEVICE_CHECKS, most=most))
    began, may_end, replies = list[int](), threading.Event(), list[int]()
    capabilities = setup.enforcement.capabilities

    def waiting(*given: Any, **named: Any) -> Any:
        began.append(1)
        may_end.wait(PATIENCE_S)
        return capabilities(*given, **named)

    def submit() -> None:
        replies.append(setup.world.post("jobs", "bob", FRACTION).status)

    setup.world.services.offers.backend = SimpleNamespace(capabilities=waiting)
    checks = [threading.Thread(target=submit) for _ in range(most)]
    try:
        for check in checks:
            check.start()
        until(lambda: len(began) == len(checks))
        refused = setup.world.post("jobs", "bob", FRACTION)
        assert (refused.status, refused.json["reason"]) == (429, "too_many_device_checks")
        assert setup.world.post("jobs", "bob", {"command": ["x"], "gpu": "1"}).status == 201, "it needs no check"
    finally:
        may_end.set()
        for check in checks:
            check.join()
    assert replies == [201] * len(checks)


@pytest.mark.parametrize(
    ("memory", "sampled", "refused"),
    [
        pytest.param("policed", {}, False, id="the agent of the node reads the devices"),
        pytest.param("driver", {}, True, id="no agent limits memory"),
        pytest.param("policed", {"at": -FRESH_MS - 1}, True, id="the agent is silent"),
        pytest.param("policed", {"at": FRESH_MS + 1}, True, id="the samples are of the future"),
        pytest.param("policed", {"why": {AGENT: NO_AGENT}}, True, id="there is no agent"),
        pytest.param("policed", {"why": {WORKLOADS: "no hostPID"}}, True, id="the agent sees no processes"),
        pytest.param("policed", {"memory_used_mib": None}, True, id="the agent cannot read the memory of the devices"),
        pytest.param(
            "policed", {"workload_memory_mib": {"other": None}}, True, id="the agent cannot read that of processes"
        ),
    ],
)
def test_in_a_cluster_memory_that_agents_read_is_policed(
    setup: EnforcementSetup, memory: str, sampled: dict[str, Any], refused: bool
) -> None:
    setup.apply(policy(memory))
    pods = PodSettings(namespace="n", hub="h", image="i", volume_claim="v")
    setup.world.services.offers.backend = ClusterEnforcement(None, None, pods)  # type: ignore[arg-type]
    setup.read()
    setup.world.run(setup.world.services.store_view.refresh_if_stale())
    found = setup.world.services.store_view.samples
    changed = sampled | {"at": setup.now + sampled.get("at", 0)}
    setup.world.services.store_view.samples = {name: replace(row, **changed) for name, row in found.items()}
    setup.world.add("root", admin=True, scopes=("read", "submit", "admin"))
    reply = setup.world.post("quota/preview", "root", {"text": policy(memory)})
    assert [("Unknown for 2 devices" in each) for each in reply.json["warnings"]] == [True] * refused, reply.body
    assert setup.world.post("jobs", "bob", FRACTION).status == (409 if refused else 201)


def test_simulated_devices_enforce_nothing(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.add("bob")
        world.apply(f"{QUOTA}policy: {{enforcement: {{memory: cooperative}}}}\n")
        reply = world.post("jobs", "bob", {"command": ["x"], "gpu": "0.5"})
        assert (reply.status, "simulated" in reply.json["message"]) == (409, True)
        assert "choose another pool" not in reply.json["message"]


def test_a_whole_device_is_never_too_weak_simulated_or_not(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.add("bob")
        world.apply(f"{QUOTA}policy: {{enforcement: {{memory: driver}}}}\n")
        job = world.submit("bob", gpu="1")["id"]
        world.step()
        world.see_running(job)
        world.run(world.services.store_view.refresh())
        start = world.clock()
        for later in range(0, 1_000_000, 50_000):
            world.clock = lambda later=later: start + later  # type: ignore[misc]
            world.controllers.turn(world.controllers.enforcement)
        found = world.get(f"jobs/{job}").json
        assert (found["target"], found["enforcement"]["memory"]) == ("running", "none")


def test_a_share_read_back_as_too_weak_is_held_with_the_reason(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    setup.apply(policy("driver"))
    setup.read(**{job: 100})
    assert setup.view(job)["target"] == "running", "a start takes its time"
    readings(setup, 5, **{job: 100})
    assert setup.view(job)["target"] == "running"
    assert "it is paused and held, unless that has changed" in setup.view(job)["enforcement"]["why"]
    readings(setup, 15, **{job: 100})
    found = setup.view(job)
    assert (found["target"], found["reason"]["code"]) == ("held", "enforcement_too_weak")
    assert "memory driver" in found["reason"]["message"] and "policy.enforcement" in found["reason"]["message"]
    assert "It saves" not in found["reason"]["message"]


def test_a_countdown_ends_when_the_policy_no_longer_requires_it(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    setup.apply(policy("driver"))
    readings(setup, 8, **{job: 100})
    assert job in setup.world.controllers.enforcement.weak.warned
    setup.apply(policy())
    readings(setup, 20, **{job: 100})
    assert setup.view(job)["target"] == "running" and "is asked" not in setup.view(job)["enforcement"]["why"]


def test_missing_readings_neither_end_a_countdown_nor_complete_it(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.running()
    setup.apply(policy("driver"))
    readings(setup, 8, **{job: 100})
    at = setup.world.controllers.enforcement.weak.warned[job].stop_at
    assert at is not None
    setup.now = at + 1
    setup.run_enforcement()
    assert setup.view(job)["target"] == "running"
    setup.read(1_000, **{job: 100})
    assert (setup.view(job)["target"], setup.world.controllers.enforcement.weak.warned[job].stop_at) == ("held", at)


def test_a_waiting_job_that_no_device_can_enforce_is_held(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    fraction, whole = setup.world.submit("bob", gpu="0.5")["id"], setup.world.submit("bob", gpu="1")["id"]
    setup.apply(policy("driver"))
    setup.run_enforcement()
    found = setup.view(fraction)
    assert (found["state"], found["reason"]["code"]) == ("held", "enforcement_unavailable")
    assert "held before it starts" in found["reason"]["message"]
    assert setup.view(whole)["state"] == "queued"
    setup.world.step()
    assert setup.view(whole)["state"] == "starting"


@pytest.mark.parametrize(
    "unavailable",
    [
        pytest.param({"health": "unhealthy", "trouble": "XID 79"}, id="unhealthy"),
        pytest.param({"health": "quarantined"}, id="quarantined"),
        pytest.param({}, id="gone"),
    ],
)
def test_a_job_keeps_waiting_while_the_only_able_device_is_unavailable(
    setup: EnforcementSetup, unavailable: dict[str, Any]
) -> None:
    setup.apply(policy("policed"))
    setup.weak = "GPU-1"
    job = setup.world.submit("bob", gpu="0.5")["id"]
    if unavailable:
        setup.world.see(DeviceFact(device="GPU-0", **unavailable))
    else:
        setup.world.inventory(DEVICES[1:])
    setup.run_enforcement()
    assert setup.view(job)["state"] == "queued"


def test_a_job_keeps_waiting_while_the_enforcement_levels_are_unknown(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    job = setup.world.submit("bob", gpu="0.5")["id"]
    setup.apply(policy("driver"))
    setup.gone = "all"
    setup.run_enforcement()
    assert setup.view(job)["state"] == "queued"


def test_an_unavailable_store_stops_no_work(setup: EnforcementSetup) -> None:
    assert weak_shares.WEAK_FOR_MS >= 60_000
    setup.apply(policy())
    job = setup.running()
    setup.world.services.store_view.samples = {}
    setup.run_enforcement()
    assert setup.view(job)["target"] == "running"


# --- notebooks --------------------------------------------------------------------------------------------------------
def test_the_server_of_a_notebook_above_its_share_is_stopped(setup: EnforcementSetup) -> None:
    setup.apply(policy("policed"))
    killed: list[str] = []

    effects = setup.world.controllers.enforcement.effects
    effects.stop_server = lambda record: setup.stopped.append(record.notebook.id)
    setup.enforcement.stop_notebook = lambda order: killed.append(order.notebook)  # type: ignore[method-assign]
    notebook = booked(setup)
    setup.read(**{notebook: 7000})
    readings(setup, 4, **{notebook: 7000})
    assert (setup.stopped, killed) == ([notebook], [])
    readings(setup, 4, **{notebook: 7000})
    assert (len(setup.stopped), killed) == (2, [notebook]), "one that did not stop is killed"
    setup.world.call("DELETE", f"notebooks/{notebook}", "hub")
    setup.read(1_000)
    assert setup.world.controllers.enforcement.memory._stopped_at == {}


def booked(setup: EnforcementSetup) -> str:
    slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": "0.5"}
    with setup.world.stepping():
        return str(setup.world.post("notebooks", "hub", slice).json["id"])


def test_a_warning_that_was_stored_while_the_database_failed_is_not_repeated(
    setup: EnforcementSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.apply(policy("policed"))
    notebook, store = booked(setup), setup.world.controllers.enforcement.effects.store
    setup.read(**{notebook: 100})
    record = store.record

    def fails(*requests: Request) -> None:
        record(*requests)
        if any(isinstance(each, RecordMemoryEnforcement) for each in requests):
            raise StoreUnavailable("the connection broke after the commit")

    with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
        broken.setattr(store, "record", fails)
        setup.read(1_000, **{notebook: 7000})
    readings(setup, 2, 1_000, **{notebook: 7000})
    assert [row.kind for row in setup.world.store.audit()[0] if row.actor == "system:policing"] == [
        "notebook.over_share"
    ]
