"""The controllers of a machine on the fake library: the use of a job, and an unhealthy device."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.fake_library import Script
from tests.gpu.machine import Machine, controllers_of
from tests.gpu.world import FakeGpu
from tests.patience import Stopwatch

QUOTA = """
version: 1
pools: [{name: train, selector: {gpu_model: [NVIDIA H200]}, uses: [training]}]
projects: [{name: vision, quota: {train: {training: 2}}, members: {users: [bob]}}]
policy: {preemption: {grace: 60s}}
"""


WAITS = (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)")


@pytest.fixture
def machine(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    script.device(0)
    script.device(1)
    with controllers_of(tmp_path / "state", monkeypatch) as found:
        found.apply(QUOTA)
        yield found


def test_a_job_is_sampled_and_evicted_from_an_unhealthy_device(machine: Machine, script: Script) -> None:
    machine.submit("J", *WAITS)
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
    machine.submit("J", *WAITS)
    machine.until(lambda: machine.runs_on("J"), "a job that runs")
    script.add("system hang nvmlDeviceGetUtilizationRates 600000")
    slowest, device = 0.0, machine.runs_on("J") or ""

    def seen_unknown() -> bool:
        nonlocal slowest
        with Stopwatch() as watch:
            machine.turn()
        slowest = max(slowest, watch.seconds)
        row = machine.sample(device)
        return row is not None and row.why.get("J") == "the driver's library does not answer"

    machine.until(seen_unknown, "the reason")
    assert slowest < 2.0, "a tick waited for the driver"
    assert machine.runs_on("J") == device
    row = machine.sample(device)
    assert row is not None and json.loads(json.dumps(dict(row.workloads))) == {"J": None}
