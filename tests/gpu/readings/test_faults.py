"""Faults of the driver: every one makes figures unknown with a reason, never idle, and blocks no caller."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.sampling.machine import Probe
from jupyter_gpu_quota.backends.local.sampling.reader_client import NoReading, Reader
from jupyter_gpu_quota.backends.local.sampling.reading import Reading
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu, share_of
from tests.patience import PATIENCE_S, Stopwatch, until

CALLS = (
    "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetFieldValues", "nvmlEventSetCreate",
    "nvmlEventSetWait_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetTemperature",
)  # fmt: skip
AT_FIRST = ("nvmlInitWithFlags", "nvmlEventSetCreate", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2")
CODES, FEW, NEVER = (*range(1, 31), 999), (1, 3, 4, 9, 12, 18, 999), (3, 4, 13)


@pytest.fixture
def machine(script: Script) -> Iterator[Callable[..., FakeGpu]]:
    """Makes machines with one device, whose readers have short time-outs."""
    made: list[FakeGpu] = []

    def make(**settings: object) -> FakeGpu:
        reader = Reader(**{"retry_after_s": 0.0, "timeout_s": 60.0, **settings})  # type: ignore[arg-type]
        made.append(FakeGpu(script, reader))
        return made[-1]

    script.device(0)
    yield make
    for each in made:
        each.__exit__()


# --- error codes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", CALLS)
def test_no_error_makes_a_busy_workload_idle(machine: Callable[..., FakeGpu], call: str) -> None:
    gpu = machine()
    (device,), pid = gpu.devices(), gpu.start(2000, busy=True)
    gpu.sample({})
    for code in CODES if call not in AT_FIRST else FEW:
        gpu.script.add(f"system error {call} {code}")
        row = gpu.sample({device: ["J"]}, {"J": [pid]})[device.id]
        assert row.workloads in ({"J": 60}, {"J": None}), code
        assert row.workload_memory_mib in ({"J": 2000}, {"J": None}), code
        assert row.utilisation_percent in (60, None) and row.memory_used_mib in (2000, None), code
        assert_unknown_with_reason(row)
        gpu.script.drop(f"system error {call}")
        if code in NEVER or call in AT_FIRST:  # an unsupported call is made once: use a new reader
            gpu.sampler.close()


def assert_unknown_with_reason(row: DeviceSample) -> None:
    """Every unknown figure has a reason."""
    unknown = [name for name in ("utilisation_percent", "memory_used_mib") if getattr(row, name) is None]
    unknown += [name for name, percent in row.workloads.items() if percent is None]
    assert set(unknown) <= set(row.why), row
    assert all(row.why.values())
    assert (row.coverage_permille == 1000) == (None not in row.workloads.values())


@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_figure_that_a_device_never_has_is_read_once(machine: Callable[..., FakeGpu], code: int) -> None:
    gpu = machine()
    gpu.script.add(f"0 error nvmlDeviceGetTemperature {code}")
    assert gpu.row().temperature_c is None
    gpu.script.drop("0 error nvmlDeviceGetTemperature")
    assert gpu.row().temperature_c is None


def test_a_figure_that_is_missing_for_now_is_read_again(machine: Callable[..., FakeGpu]) -> None:
    gpu = machine()
    gpu.script.add("0 error nvmlDeviceGetTemperature 999")
    assert gpu.row().temperature_c is None
    gpu.script.drop("0 error nvmlDeviceGetTemperature")
    assert gpu.row().temperature_c == 40


@pytest.mark.parametrize("mig", [0, 1])
def test_a_device_that_answers_at_another_index_is_read_once(machine: Callable[..., FakeGpu], mig: int) -> None:
    gpu = machine()
    gpu.script.device(1)
    gpu.script.put(f"1 mig {mig}")
    gpu.script.instance(1, 0)
    moved = gpu.devices()[1]
    gpu.sample({})
    gpu.script.drop(*(line for line in gpu.script.lines if line.startswith("0")))
    gpu.script.lines = [f"0{line[1:]}" if line.startswith("1") else line for line in gpu.script.lines]
    gpu.script.device(1)
    gpu.script.add("1 error nvmlDeviceGetUUID 999")
    gpu.sample({})
    assert gpu.devices() == (replace(moved, index=0),)


# --- invalid figures ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lines", "figure"),
    [
        pytest.param(["0 percent 4000"], "utilisation_percent", id="4000 percent"),
        pytest.param(["0 memory 143771 150000"], "memory_used_mib", id="more memory used than there is"),
        pytest.param(["0 temperature 9999"], "temperature_c", id="an impossible temperature"),
        pytest.param(["0 power 4294967295"], "power_w", id="an impossible power"),
    ],
)
def test_an_impossible_figure_is_unknown(machine: Callable[..., FakeGpu], lines: list[str], figure: str) -> None:
    gpu = machine()
    (device,), pid = gpu.devices(), gpu.start(2000)
    gpu.sample({})
    gpu.script.put(*lines)
    row = gpu.sample({device: ["J"]}, {"J": [pid]})[device.id]
    assert getattr(row, figure) is None
    assert row.workloads in ({"J": 0}, {"J": None})
    if figure in ("utilisation_percent", "memory_used_mib"):
        assert "impossible" in row.why[figure] and row.workloads == {"J": None}


@pytest.mark.parametrize(
    ("process", "percent", "memory"),
    [
        pytest.param("2000 300", None, 2000, id="a process with more than 100 percent"),
        pytest.param("999999 10", 10, None, id="a process with more memory than the device"),
    ],
)
def test_a_process_with_impossible_figures(
    machine: Callable[..., FakeGpu], process: str, percent: int | None, memory: int | None
) -> None:
    gpu = machine()
    pid = gpu.child("sleep", "600").pid
    gpu.script.put(f"0 process {pid} {process}", "0 memory 143771 2000", "0 percent 10")
    row = gpu.row("I", "J", pids={"I": [], "J": [pid]})
    assert (row.workloads["J"], row.workload_memory_mib["J"]) == (percent, memory)
    assert "J" in row.why


@pytest.mark.parametrize("memory", ["0 0", "99999999999 0"], ids=["no memory", "as much as all devices together"])
def test_a_device_with_an_impossible_memory_size_is_left_out(machine: Callable[..., FakeGpu], memory: str) -> None:
    gpu = machine()
    gpu.script.put(f"0 memory {memory}")
    assert gpu.devices() == ()


# --- crashes and hangs of the library -----------------------------------------------------------------------------
def test_no_driver_is_no_device(machine: Callable[..., FakeGpu]) -> None:
    gpu = machine()
    gpu.script.drop("system driver")
    assert gpu.devices() == ()
    gpu.script.add("system driver 615.71")
    gpu.sample({})
    gpu.sample({})
    assert [device.id for device in gpu.devices()] == ["GPU-0"]


def test_no_library_is_no_device(machine: Callable[..., FakeGpu], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    gpu = machine()
    from tests.gpu import real_library

    if real_library.lacking() is None:
        pytest.skip("this machine has a library of its own")
    assert gpu.devices() == ()


READER = "jupyter_gpu_quota.backends.local.sampling.reader"
WITHOUT = f"import sys; sys.modules['pynvml'] = None; from {READER} import main; main()"


def test_no_nvidia_ml_py_is_no_device(machine: Callable[..., FakeGpu]) -> None:
    assert machine(command=(sys.executable, "-c", WITHOUT)).devices() == ()


def test_devices_are_unknown_while_the_driver_is_unloaded(machine: Callable[..., FakeGpu]) -> None:
    gpu = machine()
    (device,), pid = gpu.devices(), gpu.start(2000, busy=True)
    gpu.sample({})
    for code in (1, 18, 999):
        gpu.script.add(f"system error nvmlDeviceGetCount_v2 {code}")
        row = gpu.sample({device: ["J"]}, {"J": [pid]})[device.id]
        assert (row.utilisation_percent, row.workloads, row.coverage_permille) == (None, {"J": None}, 0)
        assert row.why["J"].startswith("NVML: ")
        assert gpu.sampler.facts() == []
        gpu.script.drop("system error")
        assert gpu.sample({device: ["J"]}, {"J": [pid]})[device.id].workloads == {"J": 60}


def test_an_inventory_that_cannot_be_read_is_not_an_empty_one(machine: Callable[..., FakeGpu]) -> None:
    gpu = machine(retry_after_s=60.0)
    gpu.script.add("system error nvmlDeviceGetCount_v2 999")
    gpu.sample({})
    assert gpu.sampler.inventory("here") is None


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_crash_of_the_library_ends_only_the_reader(machine: Callable[..., FakeGpu], call: str) -> None:
    gpu = machine()
    (device,) = gpu.devices()
    gpu.sample({})
    gpu.sampler.close()
    gpu.script.add(f"system die {call}")
    row = gpu.sample({device: ["J"]}, {"J": []})[device.id]
    assert row.workloads == {"J": None} and "signal 6" in row.why["J"]
    gpu.script.drop("system die")
    assert gpu.sample({device: ["J"]}, {"J": []})[device.id].workloads == {"J": 0}


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetUtilizationRates"])
def test_a_library_that_hangs_blocks_no_caller(machine: Callable[..., FakeGpu], call: str) -> None:
    gpu = machine(first_timeout_s=1.5, timeout_s=0.3)
    gpu.script.add(f"system hang {call} 600000")
    slowest = 0.0

    def sampled() -> bool:
        nonlocal slowest
        with Stopwatch() as watch:
            rows = gpu.sampler.sample({}, {}, now=1)
        slowest = max(slowest, watch.seconds)
        return rows is not None

    until(sampled, 20)
    assert slowest < 0.5, "a tick waited for the driver"
    gpu.script.drop("system hang")
    assert [device.id for device in gpu.devices()] == ["GPU-0"]


def test_a_hanging_library_is_reported_as_the_reason(machine: Callable[..., FakeGpu]) -> None:
    gpu = machine(timeout_s=0.2)
    (device,) = gpu.devices()
    gpu.sample({})
    gpu.script.add("system hang nvmlDeviceGetUtilizationRates 600000")
    row = gpu.sample({device: ["J"]}, {"J": []})[device.id]
    assert (row.workloads, row.why["J"]) == ({"J": None}, "the driver's library does not answer")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param("print('{}'); input()", "is invalid", id="not a reading"),
        pytest.param("print('null'); input()", "is invalid", id="null"),
        pytest.param("print('NaN'); input()", "is invalid", id="NaN"),
        pytest.param('print(\'{"devices": [1], "xids": []}\'); input()', "is invalid", id="a device that is a number"),
        pytest.param("print('[' * 8000000); input()", "is invalid", id="a long invalid answer"),
        pytest.param("print('[' * 9000000); input()", "without end", id="an answer above the limit"),
        pytest.param("import os\nwhile True: os.write(1, b'x' * 65536)", "without end", id="an endless answer"),
        pytest.param("import os\nwhile True: os.write(1, b'\\n' * 65536)", "answer", id="endless lines"),
        pytest.param("import sys; sys.exit(3)", "ended", id="it ends at once"),
    ],
)
def test_a_reader_with_invalid_answers_is_killed(machine: Callable[..., FakeGpu], code: str, said: str) -> None:
    gpu = machine(command=(sys.executable, "-c", code))
    (device,) = machine().devices()
    row = gpu.sample({device: ["J"]}, {"J": []})[device.id]
    assert row.workloads == {"J": None} and said in row.why["J"]


def test_a_reader_that_cannot_be_started_is_reported(machine: Callable[..., FakeGpu]) -> None:
    (device,) = machine().devices()
    row = machine(command=("/nowhere/python",)).sample({device: []})[device.id]
    assert "cannot be started" in row.why["utilisation_percent"]


def test_while_a_probe_that_hangs_cannot_be_killed_no_other_reader_is_started(
    unkillable: list[subprocess.Popen[bytes]],
) -> None:
    probe = Probe(Reader(command=("sleep", "600"), first_timeout_s=0.1, retry_after_s=0.0))
    assert [probe() for _ in range(3)] == [NoReading("the driver's library does not answer")] * 3
    assert len(unkillable) == 1


@pytest.mark.parametrize(("code", "may_pass"), [(10, True), (999, True), (3, False), (4, False)])
def test_a_probe_says_whether_a_later_one_may_list_the_processes(script: Script, code: int, may_pass: bool) -> None:
    script.device(0)
    script.add(f"0 error nvmlDeviceGetComputeRunningProcesses_v3 {code}")
    found = Probe()()
    assert isinstance(found, Reading)
    (device,) = found.devices
    assert device.processes is None and ("processes" in device.unprobed) == may_pass


def test_two_threads_start_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, started = Reader(command=("sleep", "600")), list[subprocess.Popen[bytes]]()
    other, usual = threading.Thread(target=lambda: reader.latest(15.0)), subprocess.Popen

    def during(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        """The other thread asks while this one starts a reader."""
        if not other.ident:
            other.start()
            other.join(0.3)
        started.append(usual(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", during)
    assert reader.take() is None
    other.join(PATIENCE_S)
    assert len(started) == 1
    reader.close()


def test_a_failed_reader_is_not_restarted_at_every_tick(machine: Callable[..., FakeGpu]) -> None:
    moment = [0.0]
    gpu = machine(clock=lambda: moment[0], retry_after_s=10.0)
    gpu.script.add("system error nvmlInitWithFlags 999")
    gpu.sample({})
    gpu.script.drop("system error")
    assert all(gpu.sampler.sample({}, {}, now=1) == [] for _ in range(5)), "it was tried again at once"
    moment[0] = 10.0
    assert [device.id for device in gpu.devices()] == ["GPU-0"]


# --- clocks and reloads -------------------------------------------------------------------------------------------
PATCHED = """
import sys, time
from jupyter_gpu_quota.backends.local.sampling import nvml_session as library
class Time:
    monotonic = staticmethod(time.monotonic)
    @staticmethod
    def time():
        return time.time() + float(open(sys.argv[1]).read())
library.time = Time
library.driver_loaded = lambda: open(sys.argv[2]).read()
from jupyter_gpu_quota.backends.local.sampling.reader import main
main()
"""


@pytest.fixture
def patched(machine: Callable[..., FakeGpu], tmp_path: Path) -> tuple[FakeGpu, Path, Path]:
    """A machine whose clock offset and driver load time are read from two files."""
    offset, loaded = tmp_path / "offset", tmp_path / "loaded"
    offset.write_text("0")
    loaded.write_text("first")
    return machine(command=(sys.executable, "-c", PATCHED, str(offset), str(loaded))), offset, loaded


@pytest.mark.parametrize("jump_s", [3600, -3600], ids=["forward", "back"])
def test_a_clock_change_makes_one_sample_unknown(patched: tuple[FakeGpu, Path, Path], jump_s: int) -> None:
    gpu, offset, _ = patched
    pids = {"I": [gpu.start(1000)], "J": [gpu.start(1000, busy=True)]}
    (device,) = gpu.devices()
    assert gpu.sample({device: ["I", "J"]}, pids)[device.id].workloads == {"I": 0, "J": 60}
    offset.write_text(str(jump_s))
    row = gpu.sample({device: ["I", "J"]}, pids)[device.id]
    assert (row.workloads, "clock" in row.why["I"]) == ({"I": None, "J": None}, True)
    assert gpu.sample({device: ["I", "J"]}, pids)[device.id].workloads == {"I": 0, "J": 60}


def test_samples_dated_in_the_future_do_not_hide_later_ones(patched: tuple[FakeGpu, Path, Path]) -> None:
    gpu, _, _ = patched
    pid = gpu.start(1000)
    ahead = (int(time.time()) + 3600) * 1_000_000
    gpu.script.add(f"0 sample {pid} {ahead} 10 0 0 0")
    (device,) = gpu.devices()
    gpu.sample({device: ["J"]}, {"J": [pid]})
    gpu.script.put(f"0 sample {pid} {int(time.time() * 1_000_000)} 30 0 0 0")
    assert gpu.sample({device: ["J"]}, {"J": [pid]})[device.id].workloads == {"J": 30}


def test_a_reloaded_driver_is_probed_again(patched: tuple[FakeGpu, Path, Path]) -> None:
    gpu, _, loaded = patched
    gpu.script.add("0 error nvmlDeviceGetTemperature 3", "0 xid 79")
    assert gpu.row().temperature_c is None
    assert [fact.fault for fact in gpu.sampler.facts()] == ["XID 79: the GPU has fallen off the bus"]
    gpu.script.drop("0 error nvmlDeviceGetTemperature", "0 xid")
    assert gpu.row().temperature_c is None
    loaded.write_text("second")
    assert (gpu.row().temperature_c, list(gpu.sampler.facts())) == (40, [])


def test_an_idle_notebook_is_classified_after_a_driver_reload(patched: tuple[FakeGpu, Path, Path]) -> None:
    gpu, _, loaded = patched
    gpu.start(900, variables=share_of("N"))
    assert gpu.row("N").workloads == {"N": 0}
    loaded.write_text("second")
    row = gpu.row("N")
    assert (row.workloads, row.workload_memory_mib) == ({"N": 0}, {"N": 900})
