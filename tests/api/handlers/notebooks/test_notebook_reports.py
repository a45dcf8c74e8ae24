"""The server extension on a real Jupyter server with real kernels: its reports, and its reactions to orders."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_gpu_quota.demo.users import Kernel, execute_request
from jupyter_gpu_quota.notebook.activity import SCHEMA_ID
from jupyter_gpu_quota.notebook.kernel_watch import command_of, cpu_ms_below, started_of
from jupyter_gpu_quota.wire.activity import FreeOrder, ProgramReport
from tests.notebook.jupyter_world import (
    SERVER_TOKEN,
    TOKEN,
    JupyterServer,
    Service,
    free_port,
    jupyter_server,
    service_at,
)
from tests.patience import PATIENCE_S, Stopwatch, until

HEADERS = {"Authorization": f"token {SERVER_TOKEN}"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JupyterServer, Service]]:
    service = Service(port=free_port())
    folder = tmp_path_factory.mktemp("server")
    with service_at(service), jupyter_server(folder, service.port) as server:
        yield server, service


@pytest.fixture
def server(both: tuple[JupyterServer, Service]) -> Iterator[JupyterServer]:
    yield both[0]
    for kernel in both[0].kernels():
        both[0].call("DELETE", f"/api/kernels/{kernel}")


@pytest.fixture
def service(both: tuple[JupyterServer, Service]) -> Service:
    fresh = Service(port=both[1].port)
    for name in ("idle", "free", "silent", "keep_status", "kept"):
        setattr(both[1], name, getattr(fresh, name))
    return both[1]


async def connected(server: JupyterServer, kernel: str) -> Kernel:
    address = server.url.replace("http", "ws", 1) + f"/api/kernels/{kernel}/channels"
    return Kernel(await websocket_connect(HTTPRequest(address, headers=HEADERS)), kernel)


def run(server: JupyterServer, kernel: str, code: str) -> str:
    async def one_cell() -> str:
        socket = await connected(server, kernel)
        try:
            return await socket.run(code)
        finally:
            socket.close()

    return asyncio.run(one_cell())


def begin(server: JupyterServer, kernel: str, code: str) -> None:
    """Send a cell and go."""

    async def send() -> None:
        socket = await connected(server, kernel)
        asked = asyncio.ensure_future(socket.run(code))
        await asyncio.sleep(0.3)
        asked.cancel()
        socket.close()

    asyncio.run(send())


def idle_kernel(server: JupyterServer, service: Service) -> str:
    kernel = server.start_kernel()
    run(server, kernel, "pass")
    until(lambda: (k := service.kernel(kernel)) and k.state == "idle")
    return kernel


def test_a_kernel_is_reported_with_its_state_and_process(server: JupyterServer, service: Service) -> None:
    kernel = idle_kernel(server, service)
    found = service.kernel(kernel)
    assert (found.name, found.asks_gpu) == ("python3", True)
    assert int(run(server, kernel, "import os; print(os.getpid())")) == found.pid
    assert service.tokens == {f"token {TOKEN}"}
    assert service.last.namespace == str(Path("/proc/self/ns/pid").readlink())


def test_a_silent_cell_is_busy_all_the_time(server: JupyterServer, service: Service) -> None:
    kernel = idle_kernel(server, service)
    with Stopwatch() as watch:
        begin(server, kernel, "import time; time.sleep(10)")
        service.next(lambda report: any(k.id == kernel and k.state == "busy" for k in report.kernels))
        ended = service.next(lambda report: any(k.id == kernel and k.state == "idle" for k in report.kernels))
    quiet_ms = next(k.quiet_ms for k in ended.kernels if k.id == kernel)
    assert quiet_ms < 9_000 + watch.lost_s * 1000, "it counts from the end of the cell"


async def create_subshell(server: JupyterServer, kernel: str) -> None:
    """Send what a front end sends on the control channel, and wait for the end of its request."""
    connection = await connected(server, kernel)
    message = {**execute_request(""), "content": {}, "channel": "control"}
    message["header"]["msg_type"] = "create_subshell_request"
    await connection.socket.write_message(json.dumps(message))
    await connection._output_of(message["header"]["msg_id"])
    connection.close()


def test_a_silent_cell_is_busy_after_a_request_of_the_front_end(server: JupyterServer, service: Service) -> None:
    kernel = idle_kernel(server, service)
    begin(server, kernel, "import time; time.sleep(600)")
    service.next(lambda report: any(k.id == kernel and k.state == "busy" for k in report.kernels))
    asyncio.run(create_subshell(server, kernel))
    service.next()
    service.next()
    assert service.kernel(kernel).state == "busy"


def test_a_reconnecting_browser_tab_is_not_a_message(server: JupyterServer, service: Service) -> None:
    kernel = idle_kernel(server, service)

    async def reconnect() -> None:
        for _ in range(4):
            (await connected(server, kernel)).close()
            await asyncio.sleep(0.5)

    before = until(lambda: (quiet_ms := service.kernel(kernel).quiet_ms) > 5_000 and quiet_ms)
    asyncio.run(reconnect())
    service.next()
    service.next()
    assert service.kernel(kernel).quiet_ms >= before


def test_terminals_and_other_programs_are_listed(server: JupyterServer, service: Service) -> None:
    name = server.call("POST", "/api/terminals")[1]["name"]
    found = service.next(lambda report: any(p.kind == "terminal" for p in report.programs)).programs
    assert {program.kind for program in found} == {"terminal", "proxied"}
    assert f"terminal {name}" in {program.name for program in found}
    kernel = idle_kernel(server, service)
    assert service.kernel(kernel).pid not in {program.pid for program in service.last.programs}
    assert server.call("DELETE", f"/api/terminals/{name}")[0] == 204


def test_a_program_whose_name_is_cut_within_a_letter_or_clears_screens_is_reported() -> None:
    """The kernel keeps fifteen bytes of a name: the eighth umlaut is cut. A report must not fail for that."""
    program = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, '\\x1b[2J'.encode() + ('ö' * 8).encode(), 0, 0, 0)\n"
        "print(flush=True); input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        named.stdout.readline()
        name = command_of(named.pid)
        found = ProgramReport(name=name, kind="proxied", pid=named.pid, cpu_ms=cpu_ms_below(named.pid))
        assert found.name.startswith("?[2Jööööö") and found.cpu_ms is not None and started_of(named.pid)
        named.kill()


def test_only_the_named_kernel_is_shut_down_and_the_others_keep_their_variables(
    server: JupyterServer, service: Service
) -> None:
    holder, other = idle_kernel(server, service), idle_kernel(server, service)
    run(server, other, "kept = 42")
    service.free = FreeOrder(kernels=[holder], quiet_ms=1_000)
    until(lambda: server.kernels() == {other})
    service.free = None
    assert run(server, other, "print(kept)") == "42\n"
    until(lambda: service.kernel(holder) is None)
    (shut_down,) = server.call("GET", "/gpu-quota/idle")[1]["shut_down"]
    assert shut_down["kernel"] == holder and shut_down["message"] == ""
    assert shut_down["unused_ms"] >= 1_000 and 0 <= shut_down["shut_down_ms"] < 600_000


def test_a_kernel_used_since_is_not_shut_down(server: JupyterServer, service: Service) -> None:
    busy, used = idle_kernel(server, service), idle_kernel(server, service)
    begin(server, busy, "import time; time.sleep(5)")
    service.free = FreeOrder(kernels=[busy, used, "one that never was"], quiet_ms=600_000)
    service.next()
    service.next()
    assert server.kernels() >= {busy, used}


def test_a_warning_is_an_event_of_the_server(server: JupyterServer, service: Service) -> None:
    idle_kernel(server, service)

    async def first_event() -> dict[str, Any]:
        address = server.url.replace("http", "ws", 1) + "/api/events/subscribe"
        socket = await websocket_connect(HTTPRequest(address, headers=HEADERS))
        service.idle = {
            "state": "warned", "verdict": "idle", "free_in_ms": 300_000, "keeps_left": 3,
            "message": "Unused for 20 minutes; its variables will be lost.", "kernels": ["k"],
        }  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event = json.loads(str(await socket.read_message()))
                if event.get("schema_id") == SCHEMA_ID:
                    socket.close()
                    return event

    event = asyncio.run(first_event())
    assert (event["state"], event["free_in_s"], event["keeps_left"], event["kernels"]) == ("warned", 300, 3, ["k"])
    idle = server.call("GET", "/gpu-quota/idle")[1]["idle"]
    assert idle["state"] == "warned"
    assert 280_000 < idle["free_in_ms"] <= 300_000


def test_keep_calls_the_service_with_the_servers_own_token(server: JupyterServer, service: Service) -> None:
    assert server.call("POST", "/gpu-quota/keep")[1]["state"] == "in_use"
    service.keep_status = 409
    status, answer = server.call("POST", "/gpu-quota/keep")
    assert (status, answer["reason"]) == (409, "kept_enough")
    assert service.kept == 2


@pytest.mark.parametrize("path", ["/gpu-quota/idle", "/gpu-quota/keep"])
def test_other_users_may_neither_request_nor_postpone(server: JupyterServer, service: Service, path: str) -> None:
    assert server.call("GET" if path.endswith("idle") else "POST", path, token="")[0] == 403
    assert service.kept == 0


def test_silent_gpu_work_counts_as_activity_of_the_server(server: JupyterServer, service: Service) -> None:
    idle_kernel(server, service)
    service.idle = {"used_ms": 3_600_000}
    service.next()
    service.next()
    unused = server.last_activity()
    time.sleep(1.1)
    assert server.last_activity() == unused
    service.idle = {"used_ms": 0}
    service.next()
    until(lambda: server.last_activity() > unused)


def test_a_busy_kernel_counts_while_its_gpu_use_is_unknown(server: JupyterServer, service: Service) -> None:
    kernel = idle_kernel(server, service)
    begin(server, kernel, "import time; time.sleep(600)")
    service.next(lambda report: any(k.state == "busy" for k in report.kernels))
    before = server.last_activity()
    until(lambda: server.last_activity() > before)
    service.idle = {"used_ms": 3_600_000}
    service.next()
    service.next()
    known = server.last_activity()
    service.next()
    assert server.last_activity() == known


def test_a_refusal_of_the_service_does_not_delay_the_server(server: JupyterServer, service: Service) -> None:
    kernel = server.start_kernel()
    service.silent = True
    with Stopwatch() as watch:
        assert run(server, kernel, "print(6 * 7)") == "42\n"
    assert watch.seconds < PATIENCE_S / 2
    service.silent = False
    until(lambda: service.kernel(kernel))


def test_a_server_works_without_the_service_and_reports_when_it_returns(tmp_path: Path) -> None:
    service = Service(port=free_port())
    with jupyter_server(tmp_path, service.port) as server:
        kernel = server.start_kernel()
        assert run(server, kernel, "print(6 * 7)") == "42\n"
        log = tmp_path / "server.log"
        until(lambda: "did not accept the report" in log.read_text())
        with service_at(service):
            until(lambda: service.kernel(kernel), 180)  # it is tried again after two minutes at the latest
            assert log.read_text().count("did not accept the report") == 1


def test_a_server_without_a_share_reports_nothing(tmp_path: Path) -> None:
    service = Service(port=free_port())
    with service_at(service), jupyter_server(tmp_path, service.port, JUPYTER_GPU_QUOTA_SHARE="") as server:
        server.start_kernel()
        until(lambda: server.send("GET", "/gpu-quota/idle").status == 200)
        time.sleep(2.5)
        assert server.call("GET", "/gpu-quota/idle") == (200, {"idle": None, "waiting": [], "shut_down": []})
    assert service.reports == []
