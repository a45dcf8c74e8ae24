"""A kernel becomes idle and is suspended, its slice is lent, and the kernel is restored for its next cell.

Real are the API, its database and decisions, the Jupyter server, its kernel and the reading of the device; the driver
is the fake one, and the facts of the borrower are set by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.controllers.main import now_ms
from jupyter_gpu_quota.core.model import JobState, NotebookState
from jupyter_gpu_quota.notebook.suspension_selftest import run_program
from tests.api.handlers.notebooks.test_notebook_reports import run
from tests.api.world import QUOTA, build_devices, service_world, train_devices
from tests.gpu import fake_library
from tests.gpu.fake_library import Script
from tests.gpu.suspension.test_kernels import SOON, Machine
from tests.gpu.suspension.test_real_server import HOLD, KEPT, READ
from tests.gpu.world import FakeGpu
from tests.notebook.jupyter_world import jupyter_server
from tests.patience import until

pytestmark = pytest.mark.slow

LENDS = QUOTA.replace("uses: [notebook]", "uses: [notebook, training]") + SOON.replace(
    "reclaim", "reclaim, suspend: true"
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libraries with")
    libraries = fake_library.build(tmp_path, fake_library.NVML, fake_library.CUDA)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(tmp_path / "script"))
    script = Script(tmp_path / "script")
    script.add("system driver 615.71.01")
    script.device(0, memory_mib=16_384)
    script.put("0 uuid SIM-build-0")
    with service_world(tmp_path) as world, FakeGpu(script) as gpu:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(LENDS, real)
        with world.stepping():
            asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
            notebook = str(world.post("notebooks", "hub", asked).json["id"])
        share = json.dumps({"notebook": notebook, "gpu_milli": 125, "memory_mib": 2_048})
        with jupyter_server(
            tmp_path, world.port, **{SHARE_VARIABLE: share, "JUPYTERHUB_API_TOKEN": "token-bob"}
        ) as server:
            yield Machine(world, gpu, server, notebook)


def test_a_lent_slice_returns_and_its_suspended_kernel_is_restored(machine: Machine) -> None:
    world, server = machine.world, machine.server
    kernel = server.start_kernel()
    pid = int(run(server, kernel, HOLD).split()[-1])
    warned = machine.until("a warning", state="warned")
    assert warned["kernels"] == [kernel] and "their variables are kept" in warned["message"]
    machine.until("an empty device", state="freed")
    assert server.kernels() == {kernel} and state_of(pid) == "checkpointed"
    until(lambda: "Suspended kernels: 1" in machine.turn()["message"], what="a report of it")

    with world.stepping():
        job = str(world.submit("patty", project="speech", pool="build", gpu="1")["id"])
        until(lambda: machine.turn() and (slice_of(machine) is NotebookState.LENT), what="a loan")
        world.see_running(job)
        with ThreadPoolExecutor(1) as beside:
            cell = beside.submit(run, server, kernel, READ)
            until(lambda: machine.turn() and (job_of(machine, job) is JobState.PAUSING), what="the borrower's leave")
            assert not cell.done() and state_of(pid) == "checkpointed"
            world.see_running(job, ended_at=now_ms(), exit_status=75, tree_gone=True, pause_requested=True)
            assert cell.result(60) == KEPT
        assert (slice_of(machine), machine.turn()["state"]) == (NotebookState.BOOKED, "in_use")


def state_of(pid: int) -> object:
    return run_program("checkpointing", "state", pid, os.environ, 30.0)["state"]


def slice_of(machine: Machine) -> NotebookState:
    found = machine.world.store.notebook(machine.notebook)
    assert found is not None
    return NotebookState(found.notebook.state)


def job_of(machine: Machine, name: str) -> JobState:
    found = machine.world.store.job(name)
    assert found is not None
    return found.job.state
