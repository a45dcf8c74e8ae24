"""The cost of device readings: 8 devices with 200 processes, on the fake library, with the real nvidia-ml-py.

CPU time of the reader process and of the scheduler, which assigns processes to workloads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.core.model import Device
from tests.benchmarks.figures import Figure
from tests.gpu.fake_library import Script, build, compiler
from tests.gpu.world import FakeGpu

DEVICES, PROCESSES, SAMPLES = 8, 200, 30
SAMPLE_S = 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def figures(quick: bool) -> list[Figure]:
    """Milliseconds of a sample, and its part of a core at one every ten seconds; none without a C compiler."""
    if compiler() is None:
        return []
    samples = 5 if quick else SAMPLES
    with TemporaryDirectory() as folder, _driver(Path(folder)) as script, FakeGpu(script) as gpu:
        held, pids = _work(gpu)
        gpu.sample(held, pids)
        began = _reader_s(gpu)
        own_s, wall_s = [], []
        for _ in range(samples):
            before, at = time.process_time(), time.perf_counter()
            rows = gpu.sample(held, pids)
            own_s.append(time.process_time() - before)
            wall_s.append(time.perf_counter() - at)
            assert all(None not in row.workloads.values() for row in rows.values())
        reader_s = (_reader_s(gpu) - began) / samples
    each_ms = (median(own_s) + reader_s) * 1000
    size = f"{DEVICES} devices, {PROCESSES} processes, fake library; {samples} samples"
    return [
        Figure(
            name="sampler: a sample of 8 devices, 200 processes", value=each_ms, unit="ms", bound=50,
            timed=f"CPU time, reader (mean, {reader_s * 1000:.1f} ms) and scheduler (median); {size}",
        ),
        Figure(
            name="sampler: until a sample is there", value=median(wall_s) * 1000, unit="ms",
            timed=f"wall clock, median, polled every 10 ms; {size}",
        ),
        Figure(
            name="sampler: part of one core", value=each_ms / (SAMPLE_S * 10), unit="%", bound=1,
            timed=f"the CPU time every {SAMPLE_S} s",
        ),
    ]  # fmt: skip


@contextmanager
def _driver(folder: Path) -> Iterator[Script]:
    """The fake library with eight devices, for the children of this process."""
    (folder / "library").mkdir()
    variables = {"LD_LIBRARY_PATH": str(build(folder / "library")), "FAKE_NVML_SCRIPT": str(folder / "script")}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    script = Script(folder / "script")
    script.add("system driver 615.71.01")
    for index in range(DEVICES):
        script.device(index)
    try:
        yield script
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _work(gpu: FakeGpu) -> tuple[Mapping[Device, Sequence[str]], Mapping[str, Sequence[int]]]:
    """Four jobs on each device, with all the processes between them, half of them busy."""
    devices, pids = gpu.devices(), dict[str, list[int]]()
    held = {device: [f"{device.id}-{number}" for number in range(4)] for device in devices}
    for number in range(PROCESSES):
        device = devices[number % DEVICES]
        pid = gpu.child("sleep", "600").pid
        pids.setdefault(held[device][number % 4], []).append(pid)
        gpu.uses(pid, 500, 20 if number % 2 else None, str(device.index))
    for workloads in held.values():
        for name in workloads:
            pids.setdefault(name, [])
    return held, pids


def _reader_s(gpu: FakeGpu) -> float:
    """CPU seconds of the reader process so far."""
    reader = gpu.sampler.reader_pid()
    found = None if reader is None else process(reader)
    assert found is not None, "the reader does not run"
    return found.cpu_ticks / TICKS_PER_S
