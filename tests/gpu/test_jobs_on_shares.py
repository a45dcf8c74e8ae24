"""Real jobs on shares of a device, on the fake library and on the machine's own GPU: use, labels, enforcement."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.enforcement.over_share import MIN_READINGS, WARN_FOR_MS
from jupyter_gpu_quota.core.model import Allocation
from jupyter_gpu_quota.core.reasons import OverShare
from tests.gpu.machine import Machine, controllers_of
from tests.gpu.world import FakeGpu, Gpu

QUOTA = """
version: 1
pools: [{{name: train, selector: {{gpu_model: ["{model}"]}}, uses: [training]}}]
projects: [{{name: vision, quota: {{train: {{training: 1}}}}, members: {{users: [bob]}}}}]
policy: {{enforcement: {{memory: policed}}}}
"""
WORK = (sys.executable, str(Path(__file__).with_name("work.py")))
WITHIN_MIB = 1024


@pytest.fixture
def machine(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with controllers_of(tmp_path / "state", monkeypatch) as found:
        found.apply(QUOTA.format(model=gpu.devices()[0].model))
        yield found


def started(machine: Machine, gpu: Gpu, name: str, mib: int, *, gpu_milli: int) -> str:
    """A job that holds so much memory; returns its device when a reading has seen the memory."""
    machine.submit(name, *work(gpu, mib), gpu_milli=gpu_milli)
    machine.until(lambda: machine.runs_on(name) and machine.pids(name), "a job that runs")
    if isinstance(gpu, FakeGpu):
        gpu.uses(min(machine.pids(name)), mib, None)
    device = machine.runs_on(name)
    assert device is not None
    machine.until(lambda: (used_mib(machine, device, name) or 0) >= mib, "the memory of the job")
    return device


def work(gpu: Gpu, mib: int) -> tuple[str, ...]:
    if isinstance(gpu, FakeGpu):
        return (sys.executable, "-c", "import time; time.sleep(600)")
    return (*WORK, str(mib), "0")


def used_mib(machine: Machine, device: str, name: str) -> int | None:
    row = machine.sample(device)
    return None if row is None else row.workload_memory_mib.get(name)


def share_mib(machine: Machine, name: str) -> int:
    return allocation(machine, name).memory_mib


def allocation(machine: Machine, name: str) -> Allocation:
    return next(part for part in machine.controller.mirror.allocations() if part.workload == name)


def label(machine: Machine, name: str) -> str:
    """The enforcement of the memory of a job, as it is stored."""
    part = allocation(machine, name).id
    return machine.controller.store.labels([part])[part].memory


def test_a_job_above_its_share_is_stopped_and_its_neighbour_is_not(gpu: Gpu, machine: Machine) -> None:
    device = started(machine, gpu, "within", WITHIN_MIB, gpu_milli=500)
    assert started(machine, gpu, "over", share_mib(machine, "within") + WITHIN_MIB, gpu_milli=500) == device
    machine.enforcement.run()
    assert (label(machine, "within"), label(machine, "over")) == ("policed", "policed")
    for _ in range(MIN_READINGS):
        machine.ahead_ms += WARN_FOR_MS // MIN_READINGS
        before = machine.sample(device)
        machine.until(lambda: machine.sample(device) != before, "a new reading")  # noqa: B023 - called in this turn
        machine.enforcement.run()
    machine.until(lambda: machine.runs_on("over") is None, "the end of the job above its share")
    machine.until(lambda: not machine.pids("over"), "the end of its processes")
    reason = machine.controller.mirror.jobs["over"].reason
    assert isinstance(reason, OverShare), reason
    assert machine.runs_on("within") == device and used_mib(machine, device, "within")
