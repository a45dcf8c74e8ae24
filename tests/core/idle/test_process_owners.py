"""The kernel or program of a process on the GPU, by its parents, start times and pid namespace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpu_quota.core.idle.activity import (
    GpuSample,
    IdlePolicy,
    KernelRecord,
    KernelState,
    ProgramKind,
    ProgramRecord,
)
from jupyter_gpu_quota.core.idle.history import ActivityHistories, Report
from jupyter_gpu_quota.core.idle.process_owners import STARTING_TICKS, ProcessOwners, Roots, process_owners, suspendable
from jupyter_gpu_quota.core.samples import Place, ProcessUse

HERE, THERE = "pid:[1]", "pid:[2]"
TICKS = 1_000_000
KERNEL, OTHER, SHELL = (100, 5_000), (101, 5_100), (102, 5_200)
ROOTS = Roots(namespace=HERE, ticks=TICKS, by_process={KERNEL: "k1", OTHER: "k2", SHELL: "terminal 1"})


def use(*parents: tuple[int, int], percent: int | None = 0, at: int | None = None, space: str = HERE) -> ProcessUse:
    """A process with its parents, nearest first, by number and start."""
    places: tuple[Place, ...] = tuple((space, pid, started) for pid, started in parents)
    return ProcessUse(
        handle=str(places[0][1] + 9000 if places else 1), memory_mib=100, percent=percent, used_at=at, places=places
    )


@pytest.mark.parametrize(
    ("process", "holders"),
    [
        pytest.param(use(KERNEL), {"k1"}, id="the kernel's own process"),
        pytest.param(use((300, 9_000), (200, 8_000), KERNEL, (1, 1)), {"k1"}, id="a worker of a worker of it"),
        pytest.param(use((300, 9_000), SHELL), {"terminal 1"}, id="a script in a terminal"),
        pytest.param(use((300, 9_000), OTHER, KERNEL), {"k2"}, id="a kernel started by another kernel"),
        pytest.param(use(KERNEL, space=""), {"k1"}, id="the pid namespace cannot be read"),
    ],
)
def test_a_process_belongs_to_its_nearest_listed_parent(process: ProcessUse, holders: set[str]) -> None:
    assert process_owners(ROOTS, [process]) == ProcessOwners(holders=frozenset(holders), strays=(), users={})


@pytest.mark.parametrize(
    "process",
    [
        pytest.param(use((100, 6_000)), id="a reused process id"),
        pytest.param(use(KERNEL, space=THERE), id="a process of another container with the same number and start"),
        pytest.param(use((700, 5_000)), id="its kernel has ended"),
    ],
)
def test_a_process_of_no_kernel_is_a_stray(process: ProcessUse) -> None:
    assert process_owners(ROOTS, [process]) == ProcessOwners(holders=frozenset(), strays=(process,), users={})


@pytest.mark.parametrize(
    ("roots", "process"),
    [
        pytest.param(ROOTS, use((700, TICKS - STARTING_TICKS)), id="it began when its kernel may not have been listed"),
        pytest.param(ROOTS, use((700, TICKS + 5)), id="it began after the report"),
        pytest.param(ROOTS, use(), id="the process is not visible"),
        pytest.param(
            replace(ROOTS, has_unknown_root=True), use((700, 5_000)), id="a kernel whose process is not known"
        ),
        pytest.param(replace(ROOTS, ticks=None), use((700, 5_000)), id="a server of an earlier release"),
    ],
)
def test_a_process_of_a_kernel_that_may_be_unreported_makes_all_owners_unknown(
    roots: Roots, process: ProcessUse
) -> None:
    assert process_owners(roots, [use(KERNEL), process]) is None


def test_the_last_use_is_that_of_the_latest_process() -> None:
    found = process_owners(
        ROOTS, [use((300, 9_000), KERNEL, percent=5, at=10), use(KERNEL, percent=1, at=30), use(OTHER)]
    )
    assert found is not None and (found.holders, dict(found.users)) == ({"k1", "k2"}, {"k1": 30})


def test_undated_use_counts_as_the_latest() -> None:
    found = process_owners(ROOTS, [use(KERNEL, percent=5), use((300, 9_000), KERNEL, percent=5, at=30)])
    assert found is not None and dict(found.users) == {"k1": None}


# --- input of the classification ---------------------------------------------------------------------------------
POLICY = IdlePolicy()
IDLE = KernelRecord(id="k1", state=KernelState.IDLE, started_at=0, last_message_at=0, holds_gpu=None)
CPU = replace(IDLE, id="k2", holds_gpu=False)
TERMINAL = ProgramRecord(name="terminal 1", kind=ProgramKind.TERMINAL, holds_gpu=None)


def as_evidence(
    found: ProcessOwners | None, *samples: GpuSample
) -> tuple[dict[str, bool | None], tuple[ProgramRecord, ...]]:
    histories = ActivityHistories()
    report = Report(instance="i", sequence=1, at=1, started_at=0, kernels=(IDLE, CPU), programs=(TERMINAL,))
    histories.add_report("N", report, POLICY)
    for sample in samples:
        histories.add_sample("N", sample, POLICY)
    holding = None if found is None else found.holders
    activity = histories.activity("N", kept_at=None, holding=holding, process_owners=found)
    return {kernel.id: kernel.holds_gpu for kernel in activity.kernels or ()}, activity.programs


def test_a_cpu_kernel_that_begins_to_use_the_gpu_is_detected() -> None:
    assert as_evidence(process_owners(ROOTS, [use(OTHER)]))[0] == {"k1": False, "k2": True}


def test_without_readings_there_are_no_owners() -> None:
    assert as_evidence(None) == ({"k1": None, "k2": False}, (TERMINAL,))


def test_a_terminal_is_listed_with_its_last_use() -> None:
    sample = GpuSample(at=50, percent=10, used_at=40, users=("terminal 1",))
    later = GpuSample(at=60, percent=0)
    assert as_evidence(process_owners(ROOTS, [use(SHELL)]), sample, later)[1] == (
        replace(TERMINAL, holds_gpu=True, used_gpu_at=40),
    )


def test_a_stray_process_is_listed_as_a_holder() -> None:
    _, programs = as_evidence(process_owners(ROOTS, [use((700, 5_000))]))
    assert programs[1:] == (ProgramRecord(name="process 700", kind=ProgramKind.STRAY, holds_gpu=True),)


def test_no_use_is_in_the_future_after_the_clock_went_back() -> None:
    before = GpuSample(at=9_000, percent=10, users=("terminal 1",))
    after = GpuSample(at=100, percent=0)
    assert as_evidence(process_owners(ROOTS, [use(SHELL)]), before, after)[1][0].used_gpu_at == 100


def test_a_reading_whose_process_is_reported_later_counts_once() -> None:
    histories = ActivityHistories()
    assert histories.add_sample("N", GpuSample(at=10, percent=5), POLICY)
    assert not histories.add_sample("N", GpuSample(at=10, percent=5, users=("k1",)), POLICY)
    samples = histories.activity("N", kept_at=None, holding=None).samples
    assert [(sample.at, sample.users) for sample in samples] == [(10, ("k1",))]


ALONE, WORKER = use(KERNEL), use((300, 9_000), KERNEL)


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        pytest.param([ALONE], {"k1": 100}, id="its own process alone is on the device"),
        pytest.param([ALONE, use(OTHER)], {"k1": 100, "k2": 100}, id="each of two kernels"),
        pytest.param([ALONE, WORKER], {}, id="a worker of it is there, too"),
        pytest.param([WORKER], {}, id="only a worker of it is"),
        pytest.param([replace(ALONE, memory_mib=None)], {}, id="its memory is not known"),
        pytest.param([use(SHELL)], {}, id="a terminal is no kernel that was asked about"),
        pytest.param([], {}, id="no capacity"),
    ],
)
def test_suspendable_kernels(processes: list[ProcessUse], found: dict[str, int]) -> None:
    assert suspendable(ROOTS, processes, ["k1", "k2"]) == found
