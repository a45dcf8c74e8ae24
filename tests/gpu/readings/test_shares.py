"""The attribution of device use: each workload has its own figure, or none; all other use is foreign."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.sampling.device_shares import Owners, shares_of
from jupyter_gpu_quota.backends.local.sampling.reading import DeviceReading, GpuProcess
from jupyter_gpu_quota.core.facts import DeviceFact
from tests.gpu.world import FakeGpu, share_of
from tests.patience import until

UNSUPPORTED = "0 error nvmlDeviceGetProcessUtilization 3"


@pytest.fixture(autouse=True)
def one_device(fake: FakeGpu) -> None:
    fake.script.device(0)


# --- figures of workloads -----------------------------------------------------------------------------------------
def test_each_workload_has_its_own_figure(fake: FakeGpu) -> None:
    busy, idle = fake.start(2000, busy=True), fake.start(3000)
    row = fake.row("I", "J", pids={"J": [busy], "I": [idle]})
    assert (row.workloads, row.workload_memory_mib) == ({"I": 0, "J": 60}, {"I": 3000, "J": 2000})
    assert (row.utilisation_percent, row.coverage_permille, row.foreign_mib, dict(row.why)) == (60, 1000, 0, {})


def test_several_processes_are_summed_up_to_the_whole_device(fake: FakeGpu) -> None:
    pids = [fake.start(1000, busy=True) for _ in range(2)]
    row = fake.row("J", pids={"J": pids})
    assert (row.workloads, row.workload_memory_mib) == ({"J": 100}, {"J": 2000})


@pytest.mark.parametrize("code", [pytest.param(6, id="not found"), pytest.param(0, id="success without a sample")])
def test_without_a_driver_sample_there_was_no_activity(fake: FakeGpu, code: int) -> None:
    fake.script.add(f"0 error nvmlDeviceGetProcessUtilization {code}")
    pid = fake.start(2000)
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.coverage_permille, dict(row.why)) == ({"J": 0}, 1000, {})


def test_little_activity_is_never_0(fake: FakeGpu) -> None:
    pid = fake.start(2000)
    fake.script.add(*(f"0 sample {pid} {at} {sm} 0 0 0" for at, sm in ((10, 1), (20, 0), (30, 0))))
    assert fake.row("J", pids={"J": [pid]}).workloads == {"J": 1}


@pytest.mark.parametrize("engine", [1, 2, 3], ids=["memory", "encoder", "decoder"])
def test_use_of_any_engine_is_activity(fake: FakeGpu, engine: int) -> None:
    pid = fake.start(2000)
    figures = [30 if place == engine else 0 for place in range(4)]
    fake.script.add(f"0 sample {pid} 10 {' '.join(map(str, figures))}")
    assert fake.row("J", pids={"J": [pid]}).workloads == {"J": 30}


def test_a_sample_counts_once(fake: FakeGpu) -> None:
    pid = fake.start(2000)
    fake.script.add(f"0 sample {pid} 10 50 0 0 0")
    seen = [fake.row("J", pids={"J": [pid]}).workloads for _ in range(2)]
    assert seen == [{"J": 50}, {"J": 0}]


# --- incomplete evidence ------------------------------------------------------------------------------------------
def test_the_figure_of_a_shared_device_is_attributed_to_no_workload(fake: FakeGpu) -> None:
    fake.script.add(UNSUPPORTED)
    pids = {"I": [fake.start(1000)], "J": [fake.start(1000, busy=True)]}
    row = fake.row("I", "J", pids=pids)
    assert (row.utilisation_percent, row.workloads, row.coverage_permille) == (60, {"I": None, "J": None}, 0)
    assert row.workload_memory_mib == {"I": 1000, "J": 1000}
    assert all("Not Supported" in row.why[name] for name in "IJ")


def test_the_only_workload_of_a_device_gets_the_device_figure(fake: FakeGpu) -> None:
    fake.script.add(UNSUPPORTED)
    pid = fake.start(1000, busy=True)
    assert fake.row("J", pids={"J": [pid]}).workloads == {"J": 60}


def test_a_workload_on_a_shared_device_does_not_get_the_device_figure(fake: FakeGpu) -> None:
    fake.script.add(UNSUPPORTED)
    pid, _ = fake.start(1000), fake.start(1000, busy=True)
    assert fake.row("J", pids={"J": [pid]}).workloads == {"J": None}


def test_a_busy_device_without_a_busy_process_leaves_all_use_unknown(fake: FakeGpu) -> None:
    pid = fake.start(1000)
    fake.script.put("0 percent 35")
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.coverage_permille) == ({"J": None}, 0)
    assert row.why["J"] == "the device was busy (35 %), but NVML lists no process that was"


def test_memory_without_a_listed_process_makes_the_use_unknown(fake: FakeGpu) -> None:
    fake.script.put("0 memory 143771 4000")
    row = fake.row("J", pids={"J": [os.getpid()]})
    assert (row.workloads, row.workload_memory_mib) == ({"J": None}, {"J": None})
    assert "4000 MiB" in row.why["J"]


def test_graphics_processes_are_not_unlisted_memory(fake: FakeGpu) -> None:
    pid = fake.start(1000)
    fake.script.add("0 process 1 600 - graphics")
    fake.script.put("0 memory 143771 1600")
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.foreign_mib) == ({"J": 0}, 0)


def test_a_process_of_another_namespace_makes_all_workloads_unknown(fake: FakeGpu) -> None:
    pid = fake.start(1000)
    fake.uses(4_194_000, 500, None)
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.foreign_mib) == ({"J": None}, None)
    assert "process 4194000" in row.why["J"] and row.why["foreign"] == row.why["J"]


def test_known_use_is_reported_beside_unknown_processes(fake: FakeGpu) -> None:
    pid = fake.start(1000, busy=True)
    fake.uses(4_194_000, 500, None)
    assert fake.row("J", pids={"J": [pid]}).workloads == {"J": 60}


def test_under_mps_the_figures_are_unknown(fake: FakeGpu) -> None:
    pid = fake.child("sleep", "600").pid
    fake.script.add(f"0 process {pid} 900 - mps")
    fake.script.put("0 memory 143771 900")
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.workload_memory_mib) == ({"J": None}, {"J": 900})
    assert "MPS" in row.why["J"]


def test_an_mps_server_alone_makes_figures_unknown(fake: FakeGpu, tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    server.write_bytes(Path(shutil.which("sleep") or "").read_bytes())
    server.chmod(0o755)
    pids = [fake.child(str(server), "600").pid, fake.start(1000)]
    fake.uses(pids[0], 30, None)
    until(lambda: "nvidia-cuda-mps" in Path(f"/proc/{pids[0]}/comm").read_text(), what="the server")
    assert fake.row("J", pids={"J": pids}).workloads == {"J": None}


def test_a_process_without_a_memory_figure_can_be_busy(fake: FakeGpu) -> None:
    pid = fake.child("sleep", "600").pid
    fake.uses(pid, None, 40)
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.workload_memory_mib) == ({"J": 40}, {"J": None})
    assert "memory" in row.why["J"]


# --- attribution --------------------------------------------------------------------------------------------------
SERVER = "env -u JUPYTER_GPU_QUOTA_SHARE {extra} sleep 600 & echo $!; wait"


def kernel_of(fake: FakeGpu, notebook: str, extra: str = "") -> int:
    """A kernel that a notebook's server has started: the variable is the server's."""
    server = fake.child("sh", "-c", SERVER.format(extra=extra), variables=share_of(notebook))
    assert server.stdout is not None
    return int(server.stdout.readline())


def test_a_kernel_is_attributed_to_its_notebook(fake: FakeGpu) -> None:
    fake.uses(kernel_of(fake, "N"), 700, 20)
    row = fake.row("J", "N", pids={"J": []})
    assert (row.workloads, row.workload_memory_mib, row.foreign_mib) == ({"J": 0, "N": 20}, {"J": 0, "N": 700}, 0)


def test_a_kernel_cannot_claim_another_notebook(fake: FakeGpu) -> None:
    fake.uses(kernel_of(fake, "N", "GPU_QUOTA_JOB_ID=J"), 700, 20)
    assert fake.row("J", "N", pids={"J": []}).workloads == {"J": 0, "N": 20}


def test_a_child_process_is_attributed_to_the_job(fake: FakeGpu) -> None:
    shell = fake.child("sh", "-c", "sleep 600 & echo $!; wait")
    assert shell.stdout is not None
    fake.uses(int(shell.stdout.readline()), 700, 20)
    assert fake.row("J", pids={"J": [shell.pid]}).workloads == {"J": 20}


def test_memory_of_other_processes_is_foreign_and_reported_in_steps(fake: FakeGpu) -> None:
    fake.start(20_000)
    row = fake.row("J", pids={"J": []})
    assert (row.workloads, row.foreign_mib) == ({"J": 0}, 20_000)
    assert fake.sampler.facts() == [DeviceFact(device="GPU-0", foreign_milli=140)]


def test_a_slice_that_was_returned_has_no_claim_any_more(fake: FakeGpu) -> None:
    fake.uses(kernel_of(fake, "returned"), 700, None)
    assert fake.row("J", pids={"J": []}).foreign_mib == 700


def test_the_end_of_foreign_use_is_reported_too(fake: FakeGpu) -> None:
    fake.start(20_000)
    pid = fake.children[0].pid
    (device,) = fake.devices()
    fake.sample({device: []})
    fake.end(pid)
    fake.sample({replace(device, foreign_milli=140): []})
    assert fake.sampler.facts() == [DeviceFact(device="GPU-0", foreign_milli=0)]
    fake.sample({device: []})
    assert fake.sampler.facts() == []


def test_a_process_that_cannot_be_read_is_foreign_on_an_unused_device(fake: FakeGpu) -> None:
    fake.uses(4_194_000, 20_000, None)
    row = fake.row()
    assert (row.foreign_mib, dict(row.why)) == (20_000, {})
    assert fake.sampler.facts() == [DeviceFact(device="GPU-0", foreign_milli=140)]


def test_foreign_use_is_unknown_while_nvml_does_not_list_the_processes(fake: FakeGpu) -> None:
    fake.script.put("0 memory 143771 100000")
    row = fake.row()
    assert row.foreign_mib is None and "100000 MiB" in row.why["foreign"]
    assert fake.sampler.facts() == []


@pytest.mark.parametrize(
    ("before", "used_mib", "reported"),
    [
        pytest.param(0, 21_000, [], id="it stays 0"),
        pytest.param(140, 21_000, [], id="it may still be there"),
        pytest.param(140, 5_000, [30], id="less memory is used than it had"),
        pytest.param(140, 1_000, [0], id="only the workload uses memory"),
    ],
)
def test_the_capacity_changes_by_foreign_use_that_is_known(
    fake: FakeGpu, before: int, used_mib: int, reported: list[int]
) -> None:
    pid = fake.start(1000)
    fake.script.add("0 process 4194000 - -")
    fake.script.put(f"0 memory 143771 {used_mib}")
    (device,) = fake.devices()
    row = fake.sample({replace(device, foreign_milli=before): ["J"]}, {"J": [pid]})[device.id]
    assert row.foreign_mib is None
    assert [fact.foreign_milli for fact in fake.sampler.facts()] == reported


def test_a_process_of_another_job_is_not_foreign(fake: FakeGpu) -> None:
    fake.script.device(1)
    trespasser = fake.start(500)
    first, second = fake.devices()
    row = fake.sample({first: ["J"], second: ["K"]}, {"J": [], "K": [trespasser]})[first.id]
    assert (row.workloads, row.foreign_mib) == ({"J": 0}, 0)


ME = (os.getpid(), 5)


def process(pid: int = 10, *, lineage: tuple[tuple[int, int], ...] = ((10, 7), ME), **found: object) -> GpuProcess:
    return GpuProcess(pid=pid, memory_mib=100, percent=0, lineage=lineage, **found)  # type: ignore[arg-type]


def test_a_reused_pid_is_no_evidence() -> None:
    reused = Owners({"J": frozenset({10})}, ["J"], [process()], is_alive=lambda pid, started: (pid, started) == (10, 9))
    same = Owners({"J": frozenset({10})}, ["J"], [process()], is_alive=lambda pid, started: (pid, started) == (10, 7))
    assert reused.of([process()]).by_workload == {}
    assert same.of([process()]).by_workload == {"J": [process()]}


@pytest.mark.parametrize(
    ("user", "owner"),
    [
        pytest.param(12_345, None, id="a process of another user"),
        pytest.param(None, "J", id="a process of the same user that left the tree"),
    ],
)
def test_a_process_that_names_a_job(user: int | None, owner: str | None) -> None:
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can run as another user")
    with subprocess.Popen(["sleep", "600"], user=user) as other:
        try:
            claims = GpuProcess(pid=other.pid, memory_mib=1, percent=0, lineage=((other.pid, 1),), claim="J")
            owned = Owners({"J": frozenset({os.getpid()})}, ["J"], [claims], is_alive=lambda *_: True).of([claims])
        finally:
            other.kill()
    assert (list(owned.by_workload), owned.foreign) == (([owner], []) if owner else ([], [claims]))


def test_a_cgroup_of_one_workload_is_evidence() -> None:
    known, escaped = process(cgroup="/jobs/J"), process(11, lineage=((11, 7), (1, 1)), cgroup="/jobs/J")
    owned = Owners({"J": frozenset({10})}, ["J"], [known, escaped], is_alive=lambda *_: True).of([known, escaped])
    assert (owned.by_workload, owned.foreign) == ({"J": [known, escaped]}, [])


def test_a_cgroup_of_several_workloads_is_no_evidence() -> None:
    mine, yours = process(cgroup="/all"), process(12, lineage=((12, 7),), cgroup="/all")
    escaped = process(11, lineage=((11, 7), (1, 1)), cgroup="/all")
    pids = {"J": frozenset({10}), "K": frozenset({12})}
    owned = Owners(pids, ["J", "K"], [mine, yours, escaped], is_alive=lambda *_: True).of([mine, yours, escaped])
    assert owned.foreign == [escaped]


def test_a_process_with_unreadable_variables_may_belong_to_a_notebook() -> None:
    hidden = process(11, lineage=((11, 7),), hidden=True, inner_pid=3)
    device = DeviceReading(
        uuid="G",
        index=0,
        model="H",
        memory_mib=1000,
        memory_used_mib=100,
        unlisted_mib=0,
        percent=0,
        processes=(hidden,),
    )
    shares = shares_of(device, ["N"], Owners({}, ["N"], [hidden], is_alive=lambda *_: True))
    assert (shares.percent, shares.foreign_mib) == ({"N": None}, None)
    assert "process 11 (3 in its container)" in shares.why["N"]


# --- MIG ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def sliced(fake: FakeGpu) -> FakeGpu:
    fake.script.put("0 mig 1")
    fake.script.instance(0, 0)
    fake.script.instance(0, 1)
    return fake


def test_the_devices_of_a_mig_device_are_its_instances(sliced: FakeGpu) -> None:
    found = [(d.id, d.model, d.memory_mib) for d in sliced.devices()]
    assert found == [(f"MIG-0-{place}", "NVIDIA H200 MIG 1g.18gb", 17_920) for place in range(2)]


def test_the_use_of_an_instance_is_that_of_its_processes(sliced: FakeGpu) -> None:
    pid = sliced.child("sleep", "600").pid
    sliced.uses(pid, 900, None, "0/1")
    first, second = sliced.devices()
    rows = sliced.sample({first: ["I"], second: ["J"]}, {"I": [], "J": [pid]})
    assert (rows[first.id].workloads, rows[first.id].coverage_permille) == ({"I": 0}, 1000)
    assert (rows[second.id].workloads, rows[second.id].workload_memory_mib) == ({"J": None}, {"J": 900})
    assert "MIG" in rows[second.id].why["J"]
    assert rows[first.id].utilisation_percent is None


def test_an_unused_instance_that_does_not_answer_is_not_counted_as_read(sliced: FakeGpu) -> None:
    assert sliced.row().coverage_permille == 1000
    sliced.script.add("0/0 error nvmlDeviceGetName 999")
    (first, _) = sliced.devices()
    row = sliced.sample({first: []})[first.id]
    assert (row.coverage_permille, row.memory_used_mib) == (0, None)


def test_a_mig_device_without_instances_has_no_devices(sliced: FakeGpu) -> None:
    sliced.script.drop("0/0 uuid", "0/1 uuid")
    assert sliced.devices() == ()


def test_an_instance_is_unhealthy_with_its_device(sliced: FakeGpu) -> None:
    first, second = sliced.devices()
    sliced.sample({})
    sliced.script.add("0 xid 79")
    sliced.sample({first: [], second: []})
    assert [fact.trouble for fact in sliced.sampler.facts()] == ["XID 79: the GPU has fallen off the bus"] * 2


def test_compute_instances_that_share_the_memory_of_a_gpu_instance_are_left_out(sliced: FakeGpu) -> None:
    sliced.script.put("0/0 gpu-instance 5", "0/1 gpu-instance 5")
    sliced.script.instance(0, 2)
    assert [device.id for device in sliced.devices()] == ["MIG-0-2"]
    sliced.sample({})
    sliced.script.add("0 error nvmlDeviceGetMaxMigDeviceCount 999")
    sliced.sample({})
    assert [device.id for device in sliced.devices()] == ["MIG-0-2"], "nor are they found while nothing answers"


def test_a_compute_instance_that_does_not_answer_is_not_taken_for_one_that_has_ended(sliced: FakeGpu) -> None:
    sliced.script.put("0/0 gpu-instance 5", "0/1 gpu-instance 5")
    assert sliced.devices() == ()
    sliced.sample({})
    sliced.script.add("0/1 error nvmlDeviceGetGpuInstanceId 999")
    sliced.sample({})
    assert sliced.devices() == ()


@pytest.mark.parametrize("code", [3, 999])
def test_an_instance_whose_gpu_instance_is_not_known_is_a_device(sliced: FakeGpu, code: int) -> None:
    before = sliced.devices()
    sliced.sample({})
    sliced.script.add(f"0/0 error nvmlDeviceGetGpuInstanceId {code}")
    sliced.sample({})
    assert sliced.devices() == before
