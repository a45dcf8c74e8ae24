"""From an idle kernel to a freed GPU: a real Jupyter server with real kernels, the real API and its database.

The device is simulated: it is used as much as the notebook's processes use the CPU. The waits are seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.store.records.calls import Page
from tests.api.handlers.notebooks.test_notebook_reports import run
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.notebook.jupyter_world import JupyterServer, jupyter_server
from tests.patience import Stopwatch, until

pytestmark = pytest.mark.slow

SOON = """
policy:
  idle: {mode: reclaim, gpu_idle_after: 9s, kernel_idle_after: 9s, when_nobody_waits: 9s, warn_for: 15s}
"""
CPU_KERNEL = {"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "CPU",
              "language": "python", "metadata": {"gpu": False}}  # fmt: skip
THREAD = """
import threading
def work():
    while True:
        sum(range(10_000))
threading.Thread(target=work, daemon=True).start()
"""
BUSY_S = 120
TURNS = ["warned", "kept", "warned", "withdrawn", "warned", "freeing", "freed"]
EVERY_TURN = {"warned", "kept", "withdrawn", "freeing", "freed"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.apply(QUOTA + SOON)
        yield made


@pytest.fixture
def notebook(world: ServiceWorld) -> str:
    with world.stepping():
        asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
        return str(world.post("notebooks", "hub", asked).json["id"])


@pytest.fixture
def server(world: ServiceWorld, notebook: str, tmp_path: Path) -> Iterator[JupyterServer]:
    spec = tmp_path / "share" / "kernels" / "cpu" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(CPU_KERNEL))
    variables = {
        SHARE_VARIABLE: json.dumps({"notebook": notebook, "gpu_milli": 125, "memory_mib": 2_048}),
        "JUPYTERHUB_API_TOKEN": "token-bob",
        "JUPYTER_PATH": str(tmp_path / "share"),
    }
    with world.controllers.turning(), jupyter_server(tmp_path, world.port, **variables) as made:
        yield made


@pytest.fixture
def watch() -> Iterator[Stopwatch]:
    with Stopwatch() as made:
        yield made


def lasting(turns: list[str]) -> list[str]:
    """All but warnings and their withdrawal."""
    return [turn for turn in turns if turn not in ("warned", "withdrawn")]


def shown(world: ServiceWorld, notebook: str) -> dict[str, object]:
    found = world.get(f"notebooks/{notebook}").json["idle"]
    return found or {"state": None, "verdict": None}


def test_an_idle_kernel_is_warned_and_freed_and_a_cpu_kernel_keeps_its_variables(
    world: ServiceWorld, notebook: str, server: JupyterServer, watch: Stopwatch
) -> None:
    gpu = server.start_kernel()
    cpu = str(server.call("POST", "/api/kernels", {"name": "cpu"})[1]["id"])
    run(server, gpu, "model = list(range(1000))")
    run(server, cpu, "kept = 42")
    warned = until(lambda: (found := shown(world, notebook))["state"] == "warned" and found, BUSY_S)
    assert warned["kernels"] == [gpu]
    assert server.kernels() == {gpu, cpu}
    until(lambda: server.call("GET", "/gpu-quota/idle")[1]["idle"]["state"] == "warned")

    assert server.call("POST", "/gpu-quota/keep")[1]["state"] == "in_use"
    until(lambda: shown(world, notebook)["state"] == "warned", BUSY_S)
    run(server, gpu, "model.append(1)")
    until(lambda: shown(world, notebook)["state"] == "in_use")

    until(lambda: server.kernels() == {cpu}, BUSY_S)
    until(lambda: shown(world, notebook)["state"] == "freed")
    assert run(server, cpu, "print(kept)") == "42\n"
    rows, _ = world.store.audit(page=Page(limit=1_000))
    turns = [row.kind.removeprefix("notebook.") for row in reversed(rows) if row.subject == notebook]
    found = [turn for turn in turns if turn in EVERY_TURN]
    reported = f"the machine stood still for {watch.lost_s:.0f} s: what is not known withdraws a warning, too"
    assert found == TURNS or (watch.lost_s > 3 and lasting(found) == lasting(TURNS)), reported

    again = server.start_kernel()
    run(server, again, "sum(range(200_000_000))")
    until(lambda: shown(world, notebook)["state"] == "in_use", BUSY_S)


def test_a_background_thread_and_a_silent_cell_are_not_suspended(
    world: ServiceWorld, notebook: str, server: JupyterServer
) -> None:
    kernel = server.start_kernel()
    run(server, kernel, THREAD)
    until(lambda: shown(world, notebook)["verdict"] == "busy", BUSY_S)
    since = world.clock()
    until(lambda: world.clock() - since > 20_000, BUSY_S)
    found = until(lambda: (now := shown(world, notebook))["verdict"] == "busy" and now)
    assert found["state"] == "in_use"
    assert server.kernels() == {kernel}
