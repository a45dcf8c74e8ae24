"""What each source of NVML may prove (the table of docs/idle.md), and that no error of any call makes use idle."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from ctypes import CDLL
from functools import cache
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.backends.local.sampling import nvml_session
from jupyter_gpu_quota.backends.local.sampling.device_shares import Owners, shares_of
from jupyter_gpu_quota.backends.local.sampling.nvml_session import NoGpu, Session, Unreadable
from jupyter_gpu_quota.backends.local.sampling.reading import Reading
from tests.gpu import fake_library
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu
from tests.patience import until

PROCESS_USE = "nvmlDeviceGetProcessUtilization"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses_v3"
CALLS = (
    "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    GRAPHICS, PROCESS_USE, "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlGpmSampleAlloc", "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetRemappedRows", "nvmlEventSetCreate", "nvmlEventSetWait_v2",
)  # fmt: skip
"""Every call of a reading."""

CODES = (*range(1, 31), 999)
READINGS = {
    (PROCESS_USE, pynvml.NVML_ERROR_NOT_FOUND),
    (GRAPHICS, pynvml.NVML_ERROR_NOT_SUPPORTED),
    (GRAPHICS, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
}
"""Codes that are answers: the driver has seen no use, the device has no graphics."""

WORLDS = ("one holder", "graphics", "two holders", "MIG", "MIG, two holders", "MPS")
ALONE = ("one holder", "graphics")


class Machine:
    """The fake library in this process, and two processes that use its device without a pause."""

    def __init__(self, path: Path, pids: Sequence[int], mps_server: int) -> None:
        self.path, self.pids, self.mps_server = path, pids, mps_server
        self.lines = cache(self._lines)

    def _lines(self, world: str, percent: int) -> list[str]:
        """The script of a world. ``percent``: the device's own figure, which may be 0 between two bursts."""
        script = Script(self.path)
        script.add("system driver 615.71.01")
        script.device(0, percent=percent)
        first, second = self.pids
        if "MIG" in world:
            script.put("0 mig 1")
            for place in range(2):
                script.instance(0, place, used_mib=1000)
                script.add(f"0/{place} gpm 1 40.5")
            mib, last = (500, 0) if "two" in world else (1000, 1)
            script.add(f"0/0 process {first} {mib} -", f"0/{last} process {second} {mib} -")
            return script.lines
        used = [first] if world in ALONE else [first, second]
        script.put(f"0 memory 143771 {200 * len(used) + 30}")
        kind = {"MPS": " mps", "graphics": " graphics"}.get(world, "")
        script.add(*(f"0 process {pid} 200 60{kind}" for pid in used))
        if world == "MPS":  # the clients have no figures, their server has
            script.drop(*(f"0 process {pid}" for pid in used))
            script.add(*(f"0 process {pid} 200 - mps" for pid in used), f"0 process {self.mps_server} 30 -")
            script.put("0 memory 143771 430")
        return script.lines

    def holders(self, world: str) -> dict[str, list[str]]:
        """The workloads of each device; I is the first process, J the second."""
        if world == "MIG":
            return {"MIG-0-0": ["I"], "MIG-0-1": ["J"]}
        device = "MIG-0-0" if "MIG" in world else "GPU-0"
        return {device: ["I"] if world in ALONE else ["I", "J"]}

    def write(self, lines: Sequence[str]) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("\n".join([*lines, ""]))
        new.replace(self.path)

    def percents(self, reading: Reading, world: str) -> dict[str, int | None]:
        """The use of each workload by a reading; one of a device that is missing is unknown."""
        pids = {"I": frozenset({self.pids[0]}), "J": frozenset({self.pids[1]})}
        found = {device.uuid: device for device in reading.devices}
        processes = [process for device in reading.devices for process in device.processes or ()]
        use: dict[str, int | None] = {}
        for device, names in self.holders(world).items():
            owners = Owners(pids, names, processes)
            use |= shares_of(found[device], names, owners).percent if device in found else dict.fromkeys(names)
        return use


@pytest.fixture(scope="module")
def machine(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("evidence")
    server = folder / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "", server)
    with ExitStack() as ended, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_NVML_SCRIPT", str(folder / "script"))
        patch.setattr(pynvml, "nvmlLib", CDLL(str(built / fake_library.NVML)))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        patch.setattr(nvml_session, "EVENT_WAIT_MS", 0)  # these worlds have no events
        children = [ended.enter_context(subprocess.Popen([name, "600"])) for name in ("sleep", "sleep", str(server))]
        for child in children:
            ended.callback(child.kill)
        comm = Path(f"/proc/{children[2].pid}/comm")
        until(lambda: "nvidia-cuda-mps" in comm.read_text(), what="the server")
        yield Machine(folder / "script", [child.pid for child in children[:2]], children[2].pid)


def readings(machine: Machine, world: str, percent: int, faults: Sequence[Sequence[str]]) -> Iterator[Reading]:
    """A reading for each set of faults, all of one session where it can be opened."""
    lines, session = machine.lines(world, percent), None
    for these in faults:
        machine.write([*lines, *these])
        try:
            session = session or Session()
            yield session.read()
        except NoGpu as error:
            yield Reading(devices=(), absent=str(error))
        except Unreadable as error:
            yield Reading(devices=(), failure=str(error))
    if session is not None:
        session.close()


@pytest.mark.parametrize("world", WORLDS)
def test_without_errors_the_use_is_seen_and_never_zero(machine: Machine, world: str) -> None:
    _, second = readings(machine, world, 0, [(), ()])
    seen = machine.percents(second, world)
    known = {
        "one holder": {"I": 60},
        "graphics": {"I": 60},
        "two holders": {"I": 60, "J": 60},
        "MIG": {"I": 41, "J": 41},
    }
    assert seen == known.get(world, {"I": None, "J": None})


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("call", CALLS)
def test_no_error_of_a_call_makes_use_idle(machine: Machine, world: str, call: str) -> None:
    for code in (code for code in CODES if (call, code) not in READINGS):
        *_, found = readings(machine, world, 0, [(), [f"system error {call} {code}"]])
        assert 0 not in machine.percents(found, world).values(), code


FAULT = st.builds(
    "{} error {} {}".format, st.sampled_from(["system", "0", "0/0", "0/1"]), st.sampled_from(CALLS),
    st.sampled_from(CODES),
).filter(lambda line: (line.split()[2], int(line.split()[3])) not in READINGS)  # fmt: skip
FAULTS = st.lists(st.lists(FAULT, max_size=4), min_size=2, max_size=4)


@given(st.sampled_from(WORLDS), st.sampled_from([0, 37]), FAULTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("one holder", 0, [[], [f"0 error {PROCESS_USE} 999"]])
@example("graphics", 0, [[], [f"0 error {PROCESS_USE} 999", f"0 error {GRAPHICS} 999"]])
def test_no_errors_together_make_use_idle(machine: Machine, world: str, percent: int, faults: list[list[str]]) -> None:
    for each in readings(machine, world, percent, faults):
        assert 0 not in machine.percents(each, world).values()


# --- the table: what each source proves ------------------------------------------------------------------------------
@pytest.fixture
def one_device(fake: FakeGpu) -> FakeGpu:
    fake.script.device(0)
    return fake


@pytest.mark.parametrize(
    ("percent", "use"), [pytest.param(0, None, id="0 proves nothing"), pytest.param(37, 37, id="more proves use")]
)
def test_the_figure_of_a_device_proves_use_of_its_only_holder_and_never_idleness(
    one_device: FakeGpu, percent: int, use: int | None
) -> None:
    pid = one_device.start(1000)
    one_device.script.put(f"0 percent {percent}", f"0 error {PROCESS_USE} 999")
    row = one_device.row("J", pids={"J": [pid]})
    assert row.workloads == {"J": use}
    assert use or "does not show that it was unused" in row.why["J"]


@pytest.mark.parametrize("code", [3, 13], ids=["not supported", "no such function"])
def test_a_complete_list_without_a_process_of_the_holder_proves_idleness_if_nothing_else_is_supported(
    one_device: FakeGpu, code: int
) -> None:
    one_device.script.add(f"0 error {PROCESS_USE} {code}")
    assert one_device.row("J", pids={"J": [os.getpid()]}).workloads == {"J": 0}


def test_a_list_without_a_process_of_the_holder_proves_nothing_while_the_use_of_processes_cannot_be_read(
    one_device: FakeGpu,
) -> None:
    one_device.script.add(f"0 error {PROCESS_USE} 999")
    row = one_device.row("J", pids={"J": [os.getpid()]})
    assert (row.workloads, row.coverage_permille) == ({"J": None}, 0)
    assert "Unknown Error" in row.why["J"]


def test_a_process_that_ended_since_the_last_reading_makes_idleness_unknown(one_device: FakeGpu) -> None:
    pid = one_device.start(1000)
    one_device.script.add("0 sample 4194000 10 50 0 0 0")
    row = one_device.row("J", pids={"J": [pid]})
    assert row.workloads == {"J": None}
    assert row.why["J"] == "process 4194000 used the device and is not listed any more"
    assert one_device.row("J", pids={"J": [pid]}).workloads == {"J": 0}


def test_use_by_a_graphics_process_is_that_of_its_workload(one_device: FakeGpu) -> None:
    pid = one_device.child("sleep", "600").pid
    one_device.script.add(f"0 process {pid} 400 30 graphics")
    one_device.script.put("0 memory 143771 400")
    row = one_device.row("J", pids={"J": [pid]})
    assert (row.workloads, row.workload_memory_mib) == ({"J": 30}, {"J": 400})


OF_THE_DEVICE = ("nvmlDeviceGetMigMode", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMaxMigDeviceCount")
OF_AN_INSTANCE = (
    "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigDeviceHandleByIndex",
)  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "call", "silent"),
    [
        *(pytest.param("0", call, [0, 1], id=f"{call} of the device") for call in OF_THE_DEVICE),
        pytest.param("0", "nvmlDeviceGetUUID", [0, 1], id="nvmlDeviceGetUUID of the device"),
        *(pytest.param("0/0", call, [0], id=f"{call} of an instance") for call in OF_AN_INSTANCE[:-1]),
        pytest.param("0", OF_AN_INSTANCE[-1], [0, 1], id="the handle of each instance"),
    ],
)
def test_an_error_leaves_the_instances_of_a_device_listed_and_unknown(
    machine: Machine, scope: str, call: str, silent: list[int]
) -> None:
    before, during, after = readings(machine, "MIG", 0, [(), [f"{scope} error {call} 999"], ()])
    for reading in (before, during, after):
        found = [(device.uuid, device.parent, device.memory_mib) for device in reading.devices]
        assert found == [(f"MIG-0-{place}", "GPU-0", 17_920) for place in range(2)]
    for place, device in enumerate(during.devices):
        figures = (device.percent, device.memory_used_mib, device.processes)
        assert (figures == (None, None, None)) == (place in silent)
        assert place not in silent or "Unknown Error" in device.why["processes"]
    assert during.notes == ()
    assert all(device.processes for device in after.devices)


@pytest.mark.parametrize("call", [*OF_THE_DEVICE, *OF_AN_INSTANCE])
def test_an_error_before_the_instances_were_found_leaves_them_out_with_a_note(machine: Machine, call: str) -> None:
    (found,) = readings(machine, "MIG", 0, [[f"system error {call} 999"]])
    assert found.devices == ()
    assert ["left out" in note for note in found.notes] == [True]


@pytest.mark.parametrize("code", [2, 6], ids=["invalid argument", "not found"])
def test_an_instance_whose_place_is_empty_is_gone(machine: Machine, code: int) -> None:
    _, found = readings(machine, "MIG", 0, [(), [f"0 error nvmlDeviceGetMigDeviceHandleByIndex {code}"]])
    assert (found.devices, found.notes) == ((), ())


GPM = "0/0 gpm"


@pytest.mark.parametrize(
    ("metrics", "use"),
    [
        pytest.param({1: "0"}, 0, id="no use of any engine proves idleness"),
        pytest.param({1: "0.02"}, 1, id="little use is never 0"),
        pytest.param({1: "0", 30: "12"}, 12, id="a decoder"),
        pytest.param({1: "0", 51: "12"}, 12, id="the second engine for optical flow"),
        pytest.param({1: "0", 166: "12"}, 12, id="an encoder"),
        pytest.param({1: "0", 169: "12"}, 12, id="the last encoder"),
        pytest.param({1: "0", 30: "0 3"}, 0, id="a decoder that the instance does not have"),
        pytest.param({1: "0", 30: "0 999"}, None, id="a decoder that cannot be read"),
        pytest.param({1: "0 999"}, None, id="compute that cannot be read"),
        pytest.param({1: "nan"}, None, id="not a number"),
        pytest.param({1: "4000"}, None, id="an impossible figure"),
        pytest.param({}, None, id="a driver without metrics"),
    ],
)
def test_a_mig_instance_is_judged_by_its_own_metrics(
    one_device: FakeGpu, metrics: Mapping[int, str], use: int | None
) -> None:
    one_device.script.put("0 mig 1")
    one_device.script.instance(0, 0)
    pid = one_device.child("sleep", "600").pid
    one_device.uses(pid, 900, None, "0/0")
    one_device.script.add(*(f"{GPM} {metric} {value}" for metric, value in metrics.items()))
    first, row = (one_device.row("J", pids={"J": [pid]}) for _ in range(2))
    assert (first.workloads, row.workloads) == ({"J": None}, {"J": use})
    assert "MIG" in first.why["J"]
    assert row.utilisation_percent == use


def test_an_empty_instance_is_idle_without_metrics(one_device: FakeGpu) -> None:
    one_device.script.put("0 mig 1")
    one_device.script.instance(0, 0)
    assert one_device.row("J", pids={"J": [os.getpid()]}).workloads == {"J": 0}
