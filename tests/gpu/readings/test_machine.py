"""The samples of real child processes, on the fake library and on the machine's own GPU.

Inside a container NVML may not name the processes of this machine; then their use has to be unknown, never 0.
"""

from __future__ import annotations

import os
import time

import pytest

from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.core.model import Device
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.gpu.world import FakeGpu, Gpu, RealGpu, share_of
from tests.patience import until

HELD_MIB, CONTEXT_MIB = 1024, 2048
"""What the work holds, and what a context of the driver may take beside it."""

LOOKS, LOOK_S = 6, 1.0
COST_MS = 50.0


def looked_at(gpu: Gpu, held: dict[Device, list[str]], pids: dict[str, list[int]]) -> DeviceSample:
    """The row of the first device after readings a second apart, so that the driver has samples of what runs now."""
    device = gpu.devices()[0]
    rows = [gpu.sample(held, pids)[device.id]]
    for _ in range(LOOKS if isinstance(gpu, RealGpu) else 1):
        time.sleep(LOOK_S if isinstance(gpu, RealGpu) else 0)
        rows.append(gpu.sample(held, pids)[device.id])
    return rows[-1]


def names_processes(row: DeviceSample) -> bool:
    """Whether this driver lists our processes: in some containers it does not, which must be reported."""
    why = [text for name, text in row.why.items() if name != "foreign"]
    hidden = [text for text in why if "does not list" in text or "is unknown" in text]
    assert not hidden or None in row.workloads.values()
    return not hidden


def test_the_devices_are_those_of_the_machine(gpu: Gpu) -> None:
    found = [(device.uuid, device.model, str(device.memory_mib)) for device in gpu.devices()]
    if isinstance(gpu, RealGpu):
        assert found == gpu.models()
    else:
        assert found == [("GPU-0", "NVIDIA H200", "143771")]


def test_an_unused_device_is_idle_or_unknown(gpu: Gpu) -> None:
    device = gpu.devices()[0]
    row = looked_at(gpu, {device: ["J"]}, {"J": []})
    assert row.workloads["J"] in (0, None) and (row.workloads["J"] == 0 or row.why["J"])
    assert row.memory_used_mib is not None and 0 <= row.memory_used_mib <= device.memory_mib
    assert row.temperature_c is None or 0 < row.temperature_c < 110


def test_allocated_memory_without_computation_is_0_percent(gpu: Gpu) -> None:
    pid = gpu.start(HELD_MIB)
    row = looked_at(gpu, {gpu.devices()[0]: ["J"]}, {"J": [pid]})
    if not names_processes(row):
        pytest.skip(f"this driver does not list the processes: {row.why}")
    unlisted_mib = row.workload_memory_mib["J"]
    assert row.workloads == {"J": 0} and unlisted_mib is not None
    assert HELD_MIB <= unlisted_mib <= HELD_MIB + CONTEXT_MIB


def test_use_is_never_classified_as_idle(gpu: Gpu) -> None:
    pid = gpu.start(HELD_MIB, busy=True)
    row = looked_at(gpu, {gpu.devices()[0]: ["J"]}, {"J": [pid]})
    assert row.workloads["J"] != 0
    assert row.utilisation_percent is None or row.utilisation_percent > 0


def test_the_busy_one_of_two_processes_is_identified(gpu: Gpu) -> None:
    idle, busy = gpu.start(HELD_MIB), gpu.start(HELD_MIB, busy=True)
    row = looked_at(gpu, {gpu.devices()[0]: ["I", "J"]}, {"I": [idle], "J": [busy]})
    assert row.workloads["J"] != 0
    if not names_processes(row) or None in row.workloads.values():
        pytest.skip(f"this driver reports no figures per process: {row.why}")
    assert row.workloads["I"] == 0


def test_a_process_of_a_notebook_is_attributed_to_it(gpu: Gpu) -> None:
    gpu.start(HELD_MIB, variables=share_of("N"))
    row = looked_at(gpu, {gpu.devices()[0]: ["J", "N"]}, {"J": []})
    if not names_processes(row):
        pytest.skip(f"this driver does not list the processes: {row.why}")
    assert (row.workload_memory_mib["J"], row.foreign_mib) == (0, 0)
    assert (row.workload_memory_mib["N"] or 0) >= HELD_MIB


def test_processes_without_an_owner_are_foreign(gpu: Gpu) -> None:
    gpu.start(HELD_MIB)
    row = looked_at(gpu, {gpu.devices()[0]: ["J"]}, {"J": []})
    if not names_processes(row):
        pytest.skip(f"this driver does not list the processes: {row.why}")
    assert (row.foreign_mib or 0) >= HELD_MIB and row.workloads == {"J": 0}


def test_ended_processes_are_removed(gpu: Gpu) -> None:
    pid = gpu.start(HELD_MIB)
    device = gpu.devices()[0]
    gpu.sample({device: ["J"]}, {"J": [pid]})
    gpu.end(pid)
    until(
        lambda: gpu.sample({device: ["J"]}, {"J": []})[device.id].workload_memory_mib["J"] in (0, None),
        what="no memory",
    )


def test_a_reading_of_a_real_device_is_cheap(gpu: Gpu) -> None:
    if isinstance(gpu, FakeGpu):
        pytest.skip("the fake library is measured by make bench")
    gpu.start(HELD_MIB, busy=True)
    gpu.sample({})
    reader = gpu.sampler.reader_pid()
    assert reader is not None
    before = process(reader)
    for _ in range(20):
        gpu.sample({})
    after = process(reader)
    assert before is not None and after is not None
    each_ms = (after.cpu_ticks - before.cpu_ticks) * 1000 / os.sysconf("SC_CLK_TCK") / 20
    print(f"one reading: {each_ms:.1f} ms of CPU time")
    assert each_ms < COST_MS
