"""The kernels that hold the GPU, on a real server with kernels and a terminal, with the fake library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.controllers.main import now_ms
from jupyter_gpu_quota.core.model import Allocation
from tests.api.handlers.notebooks.test_notebook_reports import run
from tests.api.world import QUOTA, ServiceWorld, build_devices, service_world, train_devices
from tests.gpu.world import FakeGpu
from tests.notebook.jupyter_world import JupyterServer, jupyter_server
from tests.notebook.test_idle_end_to_end import CPU_KERNEL
from tests.patience import until

SOON = """
policy:
  idle: {mode: reclaim, gpu_idle_after: 9s, kernel_idle_after: 9s, when_nobody_waits: 9s, warn_for: 15s}
"""
LONG_S = 120.0


class Machine:
    """A notebook on a real device, its server, and the readings of that device."""

    def __init__(self, world: ServiceWorld, gpu: FakeGpu, server: JupyterServer, notebook: str) -> None:
        self.world, self.gpu, self.server, self.notebook = world, gpu, server, notebook
        self.device = next(device for device in world.store.changes(0).devices if device.id == "build-0")
        self.sequence, self.due = 0, 0

    def turn(self) -> dict[str, Any]:
        """One reading and one run of the controller; returns the notebook. The readings are 1.5 s apart."""
        until(lambda: now_ms() >= self.due, what="the time for a reading")
        self.sequence, self.due = self.sequence + 1, now_ms() + 1_500
        part = Allocation(id="part", workload=self.notebook, rank=0, device="build-0", gpu_milli=125, memory_mib=1)
        rows = until(lambda: self.gpu.sampler.sample({self.device: [part]}, {}, now=now_ms()), what="a sample")
        self.world.store.add_samples("node-1", self.sequence, rows, now=now_ms())
        self.world.controllers.turn(self.world.controllers.idleness)
        return self.world.get(f"notebooks/{self.notebook}").json["idle"] or {"state": None, "verdict": None}

    def until(self, what: str, **wanted: object) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            idle = self.turn()
            shown.append(idle)
            return idle if all(idle.get(name) == value for name, value in wanted.items()) else None

        shown = list[dict[str, Any]]()
        try:
            return until(found, LONG_S, what)
        except AssertionError:
            raise AssertionError(f"there was never {what}, at last {shown[-1]}") from None

    def pid(self, name: str) -> int:
        """The number of a kernel or terminal, as its server reported it."""

        def reported() -> int | None:
            self.turn()
            newest = self.world.controllers.idleness.histories.newest(self.notebook)
            named = {} if newest is None else {found: pid for (pid, _), found in newest.roots.by_process.items()}
            return named.get(name)

        return until(reported, what=f"a report of {name}")

    def rests(self, pid: int) -> None:
        """It keeps its memory and is idle."""
        scope, key, number, mib = next(line for line in self.gpu.script.lines if f" {pid} " in line).split()[:4]
        self.gpu.script.drop(f"{scope} {key} {number}")
        self.gpu.script.put("0 percent 0")
        self.gpu.script.add(f"{scope} {key} {number} {mib} -")


@pytest.fixture
def machine(fake: FakeGpu, tmp_path: Path) -> Iterator[Machine]:
    fake.script.device(0, memory_mib=16_384)
    fake.script.put("0 uuid SIM-build-0")
    spec = tmp_path / "share" / "kernels" / "cpu" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(CPU_KERNEL))
    with service_world(tmp_path) as world:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(QUOTA + SOON, real)
        with world.stepping():
            asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
            notebook = str(world.post("notebooks", "hub", asked).json["id"])
        share = json.dumps({"notebook": notebook, "gpu_milli": 125, "memory_mib": 2_048})
        variables = {
            SHARE_VARIABLE: share,
            "JUPYTERHUB_API_TOKEN": "token-bob",
            "JUPYTER_PATH": str(tmp_path / "share"),
        }
        with jupyter_server(tmp_path, world.port, **variables) as server:
            yield Machine(world, fake, server, notebook)


@pytest.mark.slow
def test_only_idle_kernels_that_hold_the_gpu_are_freed(machine: Machine) -> None:
    server, gpu = machine.server, machine.gpu
    holder, bystander = server.start_kernel(), server.start_kernel()
    cpu = str(server.call("POST", "/api/kernels", {"name": "cpu"})[1]["id"])
    shell = f"terminal {server.call('POST', '/api/terminals', {})[1]['name']}"
    for kernel in (holder, bystander, cpu):
        run(server, kernel, "pass")
    gpu.uses(machine.pid(holder), 900, None)
    gpu.uses(machine.pid(shell), 500, 40)

    used = machine.until("the terminal's use", reason="gpu_in_use")
    assert shell in used["message"]
    since = now_ms()
    while now_ms() - since < 20_000:  # more than twice as long as an idle one has
        assert machine.turn()["state"] in ("in_use", None), "work in a terminal was taken for idleness"

    machine.rests(machine.pid(shell))
    warned = machine.until("a warning", state="warned")
    assert warned["kernels"] == [holder]

    gpu.uses(machine.pid(cpu), 100, 30)
    seen = machine.until("a CPU kernel on the GPU", state="in_use", reason="gpu_in_use")
    assert cpu in seen["message"]
    gpu.script.drop(f"0 process {machine.pid(cpu)}")
    gpu.script.put("0 percent 0", "0 memory 16384 1400")

    until(lambda: (machine.turn(), holder not in server.kernels())[1], within_s=LONG_S, what="the holder's end")
    assert server.kernels() == {bystander, cpu}
    assert run(server, bystander, "print(6 * 7)") == "42\n"
