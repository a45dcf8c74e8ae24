"""The controllers of a machine on the fake library: the use of a job, and an unhealthy device."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.controllers.main import build, now_ms
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.deployment.selected_backend import backend_of
from jupyter_gpu_quota.settings import GPUQuota, database_url
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ChangeJob, JobSpec, Recorded, SubmitJob
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu
from tests.patience import Stopwatch, until

QUOTA = """
version: 1
pools: [{name: train, selector: {gpu_model: [NVIDIA H200]}, uses: [training]}]
projects: [{name: vision, quota: {train: {training: 2}}, members: {users: [bob]}}]
policy: {preemption: {grace: 60s}}
"""


class Machine:
    """A scheduling controller that the test runs, with a reading every tenth of a second."""

    def __init__(self, controller: SchedulingController) -> None:
        self.controller = controller

    def until(self, found: Callable[[], object], what: str) -> None:
        def turned() -> object:
            self.controller.run_once(self.controller.clock())
            if self.controller.due.get("sample", 0) > now_ms() + 100:
                self.controller.due["sample"] = now_ms() + 100
            return found()

        until(turned, what=what)

    def ask(self, *requests: object) -> None:
        found = self.controller.store.record(list(requests), now=now_ms())  # type: ignore[arg-type]
        assert all(isinstance(each, Recorded) for each in found), found

    def submit(self, name: str) -> None:
        user = self.controller.store.user_id("bob", now=now_ms())
        spec = JobSpec(
            name=name, project="vision", pool="train", gpu_asked="1", gpu_milli=1000,
            command=(sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"),
        )  # fmt: skip
        self.ask(SubmitJob(job=name, user=user, account=None, spec=spec))

    def runs_on(self, name: str) -> str | None:
        record = self.controller.mirror.jobs.get(name)
        held = [part.device for part in self.controller.mirror.allocations() if part.workload == name]
        return held[0] if record is not None and record.job.state is JobState.RUNNING and held else None

    def sample(self, device: str) -> DeviceSample | None:
        return self.controller.store.latest_samples().get(device)

    def pids(self, name: str) -> frozenset[int]:
        return self.controller.executor.pids().get(name, frozenset())


@pytest.fixture
def machine(script: Script, tmp_path: Path) -> Iterator[Machine]:
    script.device(0)
    script.device(1)
    config = GPUQuota(state_dir=str(tmp_path / "state"), simulated_devices=[])
    (tmp_path / "state").mkdir(mode=0o700)
    with closing(open_store(database_url(config))) as store:
        controllers = build(config, backend_of(config), store, store)
        controller = controllers.scheduling.make()
        assert isinstance(controller, SchedulingController)
        found = Machine(controller)
        parsed = quotafile.parse(QUOTA)
        assert not isinstance(parsed, list), parsed
        found.ask(
            ApplyQuota(
                actor="system:controller", text=QUOTA, document=parsed.to_document(), policy=parsed.policy(1),
                expected_revision=None,
            )
        )  # fmt: skip
        yield found
        end_all(found)
        assert isinstance(controller.executor, LocalJobs)
        controllers.close()
        controller.executor.close()


def end_all(machine: Machine) -> None:
    jobs = [name for name, record in machine.controller.mirror.jobs.items() if record.ended_at is None]
    machine.ask(*(ChangeJob(job=name, actor="bob", change="cancel") for name in jobs))
    machine.until(lambda: not machine.controller.mirror.allocations(), "an end of all jobs")


def test_a_job_is_sampled_and_evicted_from_an_unhealthy_device(machine: Machine, script: Script) -> None:
    machine.submit("J")
    machine.until(lambda: machine.runs_on("J") and machine.pids("J"), "a job that runs")
    first = machine.runs_on("J")
    assert first in ("GPU-0", "GPU-1")
    index, pid = first[-1], min(machine.pids("J"))
    FakeGpu(script).uses(pid, 2000, 60, index)
    machine.until(lambda: (row := machine.sample(first)) and row.workloads == {"J": 60}, "the job's use")
    row = machine.sample(first)
    assert row is not None and (row.workload_memory_mib, row.foreign_mib) == ({"J": 2000}, 0)
    script.drop(f"{index} process")
    script.put(f"{index} memory 143771 0", f"{index} percent 0")
    script.add(f"{index} xid 79")
    machine.until(lambda: machine.runs_on("J") not in (first, None), "the job on the other device")
    assert machine.controller.mirror.devices[first].trouble == "XID 79: the GPU has fallen off the bus"


def test_a_driver_that_hangs_stops_neither_ticks_nor_jobs(machine: Machine, script: Script) -> None:
    machine.submit("J")
    machine.until(lambda: machine.runs_on("J"), "a job that runs")
    script.add("system hang nvmlDeviceGetUtilizationRates 600000")
    slowest, device = 0.0, machine.runs_on("J") or ""

    def seen_unknown() -> bool:
        nonlocal slowest
        with Stopwatch() as watch:
            machine.controller.run_once(machine.controller.clock())
        slowest = max(slowest, watch.seconds)
        row = machine.sample(device)
        return row is not None and row.why.get("J") == "the driver's library does not answer"

    machine.until(seen_unknown, "the reason")
    assert slowest < 2.0, "a tick waited for the driver"
    assert machine.runs_on("J") == device
    row = machine.sample(device)
    assert row is not None and json.loads(json.dumps(dict(row.workloads))) == {"J": None}
