"""Each invariant of a snapshot is checked: a sound one has no violation, a broken one names what is broken."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import Allocation, JobState, Snapshot
from jupyter_gpu_quota.core.validate import (
    DeviceOverGpu,
    DeviceOverMemory,
    NoOwner,
    UnknownDevice,
    Violation,
    WrongRanks,
    violations,
)
from tests.core.world import world


def running() -> Snapshot:
    return world("pool t 2\na 2 of t\na runs 1 of 0.5 ranks 2 on n1g0,n1g1").snapshot()


def given(device: str, milli: int, workload: str = "a1", memory_mib: int = 0) -> Allocation:
    return Allocation(id="more", workload=workload, rank=0, device=device, gpu_milli=milli, memory_mib=memory_mib)


def test_a_valid_snapshot_has_no_violation() -> None:
    assert violations(running()) == ()


@pytest.mark.parametrize(
    ("more", "found"),
    [
        pytest.param(given("n1g0", 501), DeviceOverGpu(device="n1g0", allocated_milli=1001), id="one milli too much"),
        pytest.param(
            given("n1g0", 1, memory_mib=8_258),
            DeviceOverMemory(device="n1g0", allocated_mib=16_002, memory_mib=16_001),
            id="one MiB too much",
        ),
        pytest.param(given("gone", 1), UnknownDevice(allocation="more", device="gone"), id="an unknown device"),
        pytest.param(
            given("n1g0", 1, "b1"), NoOwner(allocation="more", workload="b1", state=None), id="an unknown workload"
        ),
    ],
)
def test_an_excess_allocation_is_found(more: Allocation, found: Violation) -> None:
    snapshot = running()
    assert violations(dc.replace(snapshot, allocations=(*snapshot.allocations, more))) == (found,)


def test_a_gang_without_a_rank_is_found() -> None:
    snapshot = running()
    broken = dc.replace(snapshot, allocations=snapshot.allocations[:1])
    assert violations(broken) == (WrongRanks(workload="a1", state="running", ranks=2, held=1),)


def test_a_job_that_waits_and_owns_a_device_is_found() -> None:
    snapshot = running()
    waiting = dc.replace(snapshot, jobs=tuple(dc.replace(job, state=JobState.QUEUED) for job in snapshot.jobs))
    assert [type(one) for one in violations(waiting)] == [NoOwner, NoOwner]
