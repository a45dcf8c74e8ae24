"""The samples of simulated devices: known use is measured, and unknown use is None."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.host.processes import ProcessStat
from jupyter_gpu_quota.backends.local.sampling import simulated
from jupyter_gpu_quota.backends.local.sampling.machine import open_sampler
from jupyter_gpu_quota.backends.local.sampling.nvml_sampler import NvmlSampler
from jupyter_gpu_quota.backends.local.sampling.simulated import SimulatedSampler
from jupyter_gpu_quota.core.model import Allocation, Device

KINDS = [{"model": "Simulated 80G", "memory_mib": 81_920, "count": 2}, {"model": "Simulated 16G", "memory_mib": 16_384}]
A, B, C = simulated.simulated("here", KINDS)


def held(workload: str, device: Device) -> Allocation:
    return Allocation(
        id=f"{workload}@{device.id}", workload=workload, rank=0, device=device.id, gpu_milli=500, memory_mib=1
    )


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Sets the CPU seconds of a process; other processes do not exist."""
    used: dict[int, ProcessStat] = {}

    def put(pid: int, seconds: int, started: int = 5) -> None:
        used[pid] = ProcessStat(pid, "R", 1, pid, pid, started, seconds * os.sysconf("SC_CLK_TCK"))

    monkeypatch.setattr(simulated, "process", used.get)
    yield put


def percents(rows: list[Any]) -> dict[str, int | None]:
    return {row.device: row.utilisation_percent for row in rows}


def test_the_first_reading_of_a_process_is_unknown_and_the_next_is_its_use(cpu: Callable[..., None]) -> None:
    reader, holders, pids = SimulatedSampler(), {A: [held("J", A)], B: []}, {"J": frozenset({10, 11})}
    cpu(10, 100)
    cpu(11, 7)
    (first, idle) = reader.sample(holders, pids, now=0)
    assert (first.utilisation_percent, first.coverage_permille, first.workloads) == (None, 0, {"J": None})
    assert (idle.utilisation_percent, idle.coverage_permille, idle.simulated) == (0, 1000, True)
    cpu(10, 103)
    cpu(11, 8)
    (row, _) = reader.sample(holders, pids, now=10_000)
    assert (row.utilisation_percent, row.coverage_permille, row.workloads) == (40, 1000, {"J": 40})
    assert row.memory_used_mib is None


def test_the_use_of_a_device_is_the_sum_of_its_workloads(cpu: Callable[..., None]) -> None:
    reader, holders = SimulatedSampler(), {A: [held("J", A), held("K", A)]}
    pids = {"J": frozenset({10}), "K": frozenset({11})}
    cpu(10, 0)
    cpu(11, 0)
    reader.sample(holders, pids, now=0)
    cpu(10, 3)
    cpu(11, 2)
    assert percents(reader.sample(holders, pids, now=10_000)) == {A.id: 50}
    cpu(10, 13)
    cpu(11, 12)
    assert percents(reader.sample(holders, pids, now=20_000)) == {A.id: 100}


def test_a_workload_with_unknown_processes_makes_its_device_unknown(cpu: Callable[..., None]) -> None:
    reader, holders = SimulatedSampler(), {A: [held("J", A), held("NOTEBOOK", A)]}
    cpu(10, 0)
    reader.sample(holders, {"J": frozenset({10})}, now=0)
    cpu(10, 5)
    (row,) = reader.sample(holders, {"J": frozenset({10})}, now=10_000)
    assert (row.utilisation_percent, row.workloads) == (None, {"J": 50, "NOTEBOOK": None})
    assert set(row.why) == {"utilisation_percent", "memory_used_mib", "NOTEBOOK"}


def test_a_process_with_a_reused_pid_is_new(cpu: Callable[..., None]) -> None:
    reader, holders, pids = SimulatedSampler(), {A: [held("J", A)]}, {"J": frozenset({10})}
    cpu(10, 100, 5)
    reader.sample(holders, pids, now=0)
    cpu(10, 1, 6)
    assert percents(reader.sample(holders, pids, now=10_000)) == {A.id: None}
    cpu(10, 2, 6)
    assert percents(reader.sample(holders, pids, now=20_000)) == {A.id: 10}


def test_a_new_child_counts_from_its_start(cpu: Callable[..., None]) -> None:
    reader, holders = SimulatedSampler(), {A: [held("J", A)]}
    cpu(10, 1)
    reader.sample(holders, {"J": frozenset({10})}, now=0)
    cpu(11, 4)
    assert percents(reader.sample(holders, {"J": frozenset({10, 11})}, now=10_000)) == {A.id: 40}


@pytest.mark.parametrize(
    ("age_ms", "percent"),
    [
        pytest.param(2_000, 50, id="it started after the last reading: its use since its start"),
        pytest.param(400, None, id="it has only just started"),
        pytest.param(20_000, None, id="it is older and was not known"),
    ],
)
def test_a_job_that_is_new_since_the_last_reading(cpu: Callable[..., None], age_ms: int, percent: int | None) -> None:
    started = 700 * os.sysconf("SC_CLK_TCK")
    reader, holders = SimulatedSampler(uptime_ms=lambda: 700_000 + age_ms), {A: [held("J", A)]}
    reader.sample(holders, {}, now=0)
    cpu(10, 1, started)
    cpu(11, 0, started + 10)
    row = reader.sample(holders, {"J": frozenset({10, 11})}, now=10_000)[0]
    assert (row.utilisation_percent, row.workloads) == (percent, {"J": percent})


def test_the_use_of_ended_processes_is_unknown(cpu: Callable[..., None]) -> None:
    reader, holders, pids = SimulatedSampler(), {A: [held("J", A)]}, {"J": frozenset({10})}
    reader.sample(holders, pids, now=0)
    assert percents(reader.sample(holders, pids, now=10_000)) == {A.id: None}


def test_without_elapsed_time_the_use_is_unknown(cpu: Callable[..., None]) -> None:
    reader, holders, pids = SimulatedSampler(), {A: [held("J", A)]}, {"J": frozenset({10})}
    cpu(10, 1)
    reader.sample(holders, pids, now=5)
    assert percents(reader.sample(holders, pids, now=5)) == {A.id: None}


def test_the_use_of_a_real_process_is_measured(tmp_path: object) -> None:
    reader, holders, pids = SimulatedSampler(), {A: [held("J", A)]}, {"J": frozenset({os.getpid()})}
    reader.sample(holders, pids, now=0)
    started = os.times()
    while (now := os.times()).user - started.user < 0.3:
        sum(range(10_000))
    elapsed_ms = round((now.elapsed - started.elapsed) * 1000)
    (row,) = reader.sample(holders, pids, now=elapsed_ms)
    least = 80 * 300 // elapsed_ms  # four fifths of it: the kernel counts in ticks
    assert row.utilisation_percent is not None and row.utilisation_percent >= least


# --- inventory ----------------------------------------------------------------------------------------------------
def test_simulated_devices_are_numbered_and_marked() -> None:
    found = open_sampler(KINDS).inventory("here")
    assert found is not None
    (node,), devices = found.nodes, found.devices
    assert node.cpu_milli >= 1000 and node.memory_mib > 0
    assert [(d.id, d.index, d.model, d.memory_mib, d.uuid, d.simulated, d.pool) for d in devices] == [
        ("here-sim-0", 0, "Simulated 80G", 81_920, "here-sim-0", True, None),
        ("here-sim-1", 1, "Simulated 80G", 81_920, "here-sim-1", True, None),
        ("here-sim-2", 2, "Simulated 16G", 16_384, "here-sim-2", True, None),
    ]


def test_the_sampler_is_simulated_where_the_devices_are() -> None:
    assert isinstance(open_sampler(KINDS), SimulatedSampler)
    assert isinstance(open_sampler([]), NvmlSampler)
