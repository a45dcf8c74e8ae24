"""Shares as the service tells of them: read back, labelled, stored; offenders stopped, and what is too weak refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.state.offers import Offers
from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup, notebook_cgroup
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer, LimitRequest
from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.backends.local.host.record_files import write_record
from jupyter_gpu_quota.backends.local.jobs.paths import rank_paths
from jupyter_gpu_quota.backends.local.sampling.reader_client import NoReading
from jupyter_gpu_quota.backends.local.sampling.reading import DeviceReading, Reading
from jupyter_gpu_quota.controllers import weak_shares
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Device
from jupyter_gpu_quota.core.samples import DeviceSample, ProcessUse
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import PATIENCE_S

DEVICES = tuple(
    Device(id=f"GPU-{n}", node="node-1", index=n, model="H200", memory_mib=8000, pool=None, uuid=f"GPU-{n}")
    for n in (0, 1)
)
REAL = """\
version: 1
pools: [{name: train, selector: {gpu_model: [H200]}, uses: [training, notebook]}]
projects:
  - name: vision
    members: {users: [bob, olga]}
    quota: {train: {training: 1, notebook: 1}}
"""


def policy(memory: str = "none", compute: str = "none") -> str:
    return f"{REAL}policy: {{enforcement: {{memory: {memory}, compute: {compute}}}}}\n"


class Stage:
    """A world with two real devices, whose readings and limits the test tells."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.now, self.sequence = world, world.clock(), 0
        self.limits: dict[str, LimitAnswer] = {}
        self.requests: list[LimitRequest] = []
        self.samples: dict[str, DeviceSample] = {}
        self.child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "XLA_CLIENT_MEM_FRACTION": "0.4"},
        )  # fmt: skip
        world.clock = lambda: self.now
        for name in ("bob", "olga"):
            world.add(name)
        self.enforcement = LocalEnforcement(world.state_dir, limits=self._limits, probe=self._probe)
        world.controllers.enforcement_backend = self.enforcement
        world.controllers.take_over()
        self.stopped: list[str] = []
        self.using: dict[str, tuple[ProcessUse, ...]] = {}
        self.weak = self.gone = ""
        world.services.offers = Offers(self.enforcement)

    def _limits(self, requests: Sequence[LimitRequest]) -> list[LimitAnswer]:
        self.requests += requests
        return [self.limits.get(each.device, LimitAnswer(why="NVML: Not Supported")) for each in requests]

    def _probe(self) -> Reading | NoReading:
        """What NVML tells of the devices: not of one that is ``gone``, and of ``weak`` no processes."""
        unavailable = {"mig": "turned off", "limits": "NVML: Not Supported"}
        devices = tuple(
            DeviceReading(
                uuid=each.id, index=each.index, model=each.model, memory_mib=each.memory_mib, unavailable=unavailable,
                why={"processes": "NVML: No Permission"} if each.id == self.weak else {},
            )
            for each in DEVICES
            if each.id != self.gone
        )  # fmt: skip
        return NoReading(why="it hangs") if self.gone == "all" else Reading(devices=devices, driver="580.1")

    def apply(self, text: str) -> None:
        self.world.apply(text, DEVICES)

    def running(self, gpu: str = "0.5", who: str = "bob") -> str:
        """A job that runs, as our child."""
        job: str = self.world.submit(who, gpu=gpu)["id"]
        self.world.step()
        found = process(self.child.pid)
        assert found is not None
        status = Path(rank_paths(str(self.world.state_dir), job, 1, 0).status)
        status.parent.mkdir(parents=True)
        write_record(str(status), {"pid": found.pid, "pid_started": found.started})
        self.world.see(RankFact(job=job, attempt=1, rank=0, handle=str(found.pid), started_at=self.now))
        return job

    def device_of(self, job: str) -> str:
        return str(self.view(job)["allocations"][0]["device"])

    def view(self, job: str) -> Any:
        return self.world.get(f"jobs/{job}").json

    def read(self, pass_ms: int = 0, **memory_mib: int | None) -> None:
        """A new reading of all devices: how much each workload has of it."""
        self.now += pass_ms
        self.sequence += 1
        rows = [
            DeviceSample(
                node="node-1", device=device.id, at=self.now, utilisation_percent=1, memory_used_mib=1,
                coverage_permille=1000, simulated=False, workloads=dict.fromkeys(memory_mib, 1),
                workload_memory_mib=memory_mib, processes=self.using,
            )
            for device in DEVICES
        ]  # fmt: skip
        assert self.world.store.add_samples("node-1", self.sequence, rows, now=self.now)
        self.look()

    def look(self) -> None:
        self.world.controllers.turn(self.world.controllers.enforcement)

    def label(self, job: str) -> tuple[str, str]:
        held = self.view(job)["enforcement"]
        return held["memory"], held["compute"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with service_world(tmp_path) as world:
        stage = Stage(world)
        yield stage
        stage.child.kill()
        stage.child.communicate()


# --- labels -----------------------------------------------------------------------------------------------------------
def test_a_label_is_shown_once_it_was_read_back_and_survives_a_restart(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running()
    assert stage.view(job)["enforcement"] == {"memory": "none", "compute": "none", "why": "it was not read back yet"}
    stage.read(**{job: 100})
    assert stage.label(job) == ("cooperative", "none")
    why = stage.view(job)["enforcement"]["why"]
    assert "driver: the driver was not asked" in why and "policed: policy.enforcement does not require it" in why
    (allocation,) = stage.world.services.store_view.allocations_of(job)
    assert stage.world.store.labels([allocation.id])[allocation.id].memory == "cooperative"


def test_what_changes_is_in_the_audit_once(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running()
    for _ in range(3):
        stage.read(1_000, **{job: 100})
    rows = [row for row in stage.world.store.audit()[0] if row.kind == "share.enforcement"]
    assert [(row.subject, '"memory":"cooperative"' in row.payload) for row in rows] == [(job, True)]
    stage.child.kill()
    stage.child.wait()
    stage.read(1_000, **{job: 100})
    assert stage.label(job) == ("none", "none")
    assert len([row for row in stage.world.store.audit()[0] if row.kind == "share.enforcement"]) == 2


def test_a_whole_device_is_held_by_hardware_while_it_is_read(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running("1")
    stage.read(**{job: 100})
    assert stage.label(job) == ("hardware", "hardware")
    stage.now += 60_000
    stage.look()
    assert stage.label(job) == ("none", "none") and "older than" in stage.view(job)["enforcement"]["why"]


def leaf_with_our_child(stage: Stage, job: str) -> Cgroups:
    cgroups = Cgroups(stage.world.state_dir)
    if cgroups.why_not:
        pytest.skip(f"no control group can be made here: {cgroups.why_not}")
    assert cgroups.make(job_cgroup(job, 1, 0)) == ""
    (cgroups.path(job_cgroup(job, 1, 0)) / "cgroup.procs").write_text(str(stage.child.pid))
    return cgroups


def test_the_drivers_limit_is_what_is_read_back_of_the_group_that_the_job_is_in(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running()
    cgroups, device = leaf_with_our_child(stage, job), stage.device_of(job)
    share_mib, other = stage.view(job)["allocations"][0]["memory_mib"], None
    try:
        stage.limits[device] = LimitAnswer(limit_mib=share_mib)
        stage.read(**{job: 100})
        assert stage.label(job) == ("driver", "none")
        stage.limits[device] = LimitAnswer(limit_mib=share_mib * 2)
        stage.read(31_000, **{job: 100})
        assert stage.label(job)[0] == "cooperative", "the library reported something else later"
        assert f"{share_mib * 2} MiB, not {share_mib} MiB" in stage.view(job)["enforcement"]["why"]
        stage.limits[device] = LimitAnswer(limit_mib=share_mib)
        other = subprocess.Popen(["sleep", "600"])
        (cgroups.path(job_cgroup(job, 1, 0)) / "cgroup.procs").write_text(str(other.pid))
        (cgroups.root / "cgroup.procs").write_text(str(stage.child.pid))  # type: ignore[operator]
        stage.read(31_000, **{job: 100})
        assert stage.label(job)[0] == "cooperative", "it got out of its group"
        assert f"({stage.child.pid}) is not in the cgroup" in stage.view(job)["enforcement"]["why"]
    finally:
        cgroups.kill(job_cgroup(job, 1, 0))
        stage.child.kill()
        stage.child.wait()
        if other is not None:
            other.wait(PATIENCE_S)
        cgroups.remove(job_cgroup(job, 1, 0))


def test_a_process_of_a_job_that_is_in_another_group_ends_the_drivers_label(stage: Stage) -> None:
    """Its first process stays where the limit is, and sends another one out of it."""
    stage.apply(policy())
    job = stage.running()
    cgroups, device = leaf_with_our_child(stage, job), stage.device_of(job)
    share_mib, other = stage.view(job)["allocations"][0]["memory_mib"], subprocess.Popen(["sleep", "600"])
    stage.limits[device] = LimitAnswer(limit_mib=share_mib)
    found = process(other.pid)
    assert found is not None
    stage.using = {
        job: (ProcessUse(handle=str(other.pid), memory_mib=100, percent=1, places=(("", other.pid, found.started),)),)
    }
    try:
        stage.read(**{job: 100})
        assert stage.label(job)[0] == "cooperative"
        assert f"its process {other.pid} is not in the cgroup" in stage.view(job)["enforcement"]["why"]
        rank = job_cgroup(job, 1, 1)
        assert cgroups.make(rank) == ""
        (cgroups.path(rank) / "cgroup.procs").write_text(str(other.pid))
        stage.read(1_000, **{job: 100})
        assert stage.label(job)[0] == "driver", "another rank of the same job is in a group of its own"
    finally:
        for each in (job_cgroup(job, 1, 0), job_cgroup(job, 1, 1)):
            cgroups.kill(each)
        for child in (stage.child, other):
            child.kill()
            child.wait()
        for each in (job_cgroup(job, 1, 0), job_cgroup(job, 1, 1)):
            cgroups.remove(each)


def test_the_group_of_a_notebook_that_is_over_is_swept_and_those_of_others_are_not(stage: Stage) -> None:
    stage.apply(policy())
    cgroups = Cgroups(stage.world.state_dir)
    if cgroups.why_not:
        pytest.skip(f"no control group can be made here: {cgroups.why_not}")
    slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": "0.5"}
    with stage.world.stepping():
        booked = stage.world.post("notebooks", "hub", slice).json["id"]
    names = [notebook_cgroup(booked), notebook_cgroup("over"), job_cgroup("J", 1, 0)]
    assert [cgroups.make(name) for name in names] == [""] * 3
    stage.look()
    assert cgroups.names() == sorted([names[0], names[2]])
    assert {(each.device, each.mib) for each in stage.requests if each.group.endswith("over")} >= {
        ("GPU-0", 0),
        ("GPU-1", 0),
    }
    for name in names:
        cgroups.remove(name)


# --- memory enforcement  ----------------------------------------------------------------------------------------------
def readings(stage: Stage, count: int, every_ms: int = 20_000, **memory_mib: int | None) -> None:
    for _ in range(count):
        stage.read(every_ms, **memory_mib)


def test_who_takes_more_is_warned_and_then_held_and_its_neighbour_is_not(stage: Stage) -> None:
    stage.apply(policy("policed"))
    job, neighbour = stage.running(), stage.running(who="olga")
    assert stage.device_of(job) == stage.device_of(neighbour)
    stage.read(**{job: 7000, neighbour: 100})
    assert stage.label(job) == ("policed", "none")
    assert "stopped if it still does 60 s" in stage.view(job)["enforcement"]["why"]
    assert stage.view(job)["target"] == "running"
    readings(stage, 4, **{job: 7000, neighbour: 100})
    found = stage.view(job)
    assert (found["target"], found["reason"]["code"]) == ("held", "over_share")
    assert "7000 MiB" in found["reason"]["message"]
    assert stage.view(neighbour)["target"] == "running" and "uses more" not in str(stage.view(neighbour))


def test_the_reason_stands_while_it_cgroups_and_when_it_has_left(stage: Stage) -> None:
    stage.apply(policy("policed"))
    job = stage.running()
    stage.read(**{job: 7000})
    readings(stage, 4, **{job: 7000})
    stage.world.step()
    assert (stage.view(job)["state"], stage.view(job)["reason"]["code"]) == ("pausing", "over_share")
    stage.world.see_running(job, ended_at=stage.now, exit_status=75, tree_gone=True, pause_requested=True)
    found = stage.view(job)
    assert (found["state"], found["reason"]["code"]) == ("held", "over_share"), found
    assert stage.world.post(f"jobs/{job}/actions/release").json["reason"] is None


def test_an_offender_that_refuses_to_die_is_asked_once_and_keeps_its_label(stage: Stage) -> None:
    """Its kill is the executor's, and its device's quarantine the scheduler's: nobody else is touched meanwhile."""
    stage.apply(policy("policed"))
    job = stage.running()
    stage.read(**{job: 7000})
    readings(stage, 10, **{job: 7000})
    holds = [row for row in stage.world.store.audit()[0] if row.kind == "job.hold"]
    assert len(holds) == 1 and holds[0].actor == "system:policing"


@pytest.mark.parametrize(
    ("memory", "used"),
    [
        pytest.param("none", 7000, id="a policy that asks for nothing only says so"),
        pytest.param("cooperative", 7000, id="nor does one that trusts"),
        pytest.param("policed", None, id="what is unknown is no offence"),
        pytest.param("policed", 3000, id="who keeps to its share"),
    ],
)
def test_nobody_else_is_stopped(stage: Stage, memory: str, used: int | None) -> None:
    stage.apply(policy(memory))
    job = stage.running()
    stage.read(**{job: used})
    readings(stage, 6, **{job: used})
    assert stage.view(job)["target"] == "running"
    assert ("uses more" in stage.view(job)["enforcement"]["why"]) == (used == 7000)


def test_the_level_policed_needs_memory_readings(stage: Stage) -> None:
    stage.apply(policy("policed"))
    job = stage.running()
    stage.read(**{job: 100})
    assert stage.label(job)[0] == "policed"
    stage.read(10_000, **{job: None})
    assert stage.label(job)[0] == "cooperative"
    readings(stage, 10, **{job: None})
    assert stage.view(job)["target"] == "running", "a gap in the readings ends nobody's work"


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("memory", "gpu", "refused"),
    [
        pytest.param("driver", "0.5", True, id="a fraction that no driver here can limit"),
        pytest.param("policed", "0.5", False, id="a fraction that can be watched"),
        pytest.param("hardware", "1", False, id="a whole device"),
        pytest.param("hardware", "0.5", True, id="a fraction is no hardware"),
        pytest.param("none", "0.5", False, id="a policy that asks for nothing"),
    ],
)
def test_what_no_device_could_hold_is_refused_with_what_to_do(
    stage: Stage, memory: str, gpu: str, refused: bool
) -> None:
    stage.apply(policy(memory))
    reply = stage.world.post("jobs", "bob", {"command": ["x"], "gpu": gpu})
    slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": gpu}
    if not refused:
        assert reply.status == 201, reply.body
        return
    for answer in (reply, stage.world.post("notebooks", "hub", slice)):
        assert (answer.status, answer.json["reason"]) == (409, "enforcement_too_weak"), answer.body
        for word in (f"held by {memory} or better", "offers memory policed", "Ask for a whole device", "doctor"):
            assert word in answer.json["message"], answer.json["message"]
        assert "bob asked for 0.5" in answer.json["message"]


def test_simulated_devices_hold_nothing(tmp_path: Path) -> None:
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


def test_what_is_read_back_as_too_weak_is_held_with_the_reason(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running()
    stage.apply(policy("driver"))
    stage.read(**{job: 100})
    assert stage.view(job)["target"] == "running", "a start takes its time"
    readings(stage, 5, **{job: 100})
    assert stage.view(job)["target"] == "running"
    assert "it is paused and held, unless that has changed" in stage.view(job)["enforcement"]["why"]
    readings(stage, 15, **{job: 100})
    found = stage.view(job)
    assert (found["target"], found["reason"]["code"]) == ("held", "enforcement_too_weak")
    assert "memory driver" in found["reason"]["message"] and "policy.enforcement" in found["reason"]["message"]
    assert "It saves" not in found["reason"]["message"]


def test_a_countdown_ends_with_the_policy_that_began_it(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running()
    stage.apply(policy("driver"))
    readings(stage, 8, **{job: 100})
    assert job in stage.world.controllers.enforcement.weak.warned
    stage.apply(policy())
    readings(stage, 20, **{job: 100})
    assert stage.view(job)["target"] == "running" and "is asked" not in stage.view(job)["enforcement"]["why"]


def test_a_gap_in_the_readings_neither_ends_a_countdown_nor_carries_it_out(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.running()
    stage.apply(policy("driver"))
    readings(stage, 8, **{job: 100})
    at = stage.world.controllers.enforcement.weak.warned[job].stop_at
    assert at is not None
    stage.now = at + 1
    stage.look()
    assert stage.view(job)["target"] == "running"
    stage.read(1_000, **{job: 100})
    assert (stage.view(job)["target"], stage.world.controllers.enforcement.weak.warned[job].stop_at) == ("held", at)


def test_a_job_that_waits_for_what_nothing_could_hold_is_held_before_it_starts(stage: Stage) -> None:
    stage.apply(policy())
    fraction, whole = stage.world.submit("bob", gpu="0.5")["id"], stage.world.submit("bob", gpu="1")["id"]
    stage.apply(policy("driver"))
    stage.look()
    found = stage.view(fraction)
    assert (found["state"], found["reason"]["code"]) == ("held", "enforcement_unavailable")
    assert "held before it starts" in found["reason"]["message"]
    assert stage.view(whole)["state"] == "queued"
    stage.world.step()
    assert stage.view(whole)["state"] == "starting"


def test_a_job_keeps_waiting_while_the_enforcement_levels_are_unknown(stage: Stage) -> None:
    stage.apply(policy())
    job = stage.world.submit("bob", gpu="0.5")["id"]
    stage.apply(policy("driver"))
    stage.gone = "all"
    stage.look()
    assert stage.view(job)["state"] == "queued"


def test_a_store_that_is_away_ends_nothing(stage: Stage) -> None:
    assert weak_shares.WEAK_FOR_MS >= 60_000
    stage.apply(policy())
    job = stage.running()
    stage.world.services.store_view.samples = {}
    stage.look()
    assert stage.view(job)["target"] == "running"


# --- notebooks --------------------------------------------------------------------------------------------------------
def test_the_server_of_a_notebook_that_takes_more_is_stopped(stage: Stage) -> None:
    stage.apply(policy("policed"))
    killed: list[str] = []

    effects = stage.world.controllers.enforcement.effects
    effects.stop_server = lambda record: stage.stopped.append(record.notebook.id)
    stage.enforcement.stop_notebook = lambda order: killed.append(order.notebook)  # type: ignore[method-assign]
    slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": "0.5"}
    with stage.world.stepping():
        notebook = stage.world.post("notebooks", "hub", slice).json["id"]
    stage.read(**{notebook: 7000})
    readings(stage, 4, **{notebook: 7000})
    assert (stage.stopped, killed) == ([notebook], [])
    readings(stage, 4, **{notebook: 7000})
    assert (len(stage.stopped), killed) == (2, [notebook]), "one that did not stop is killed"
