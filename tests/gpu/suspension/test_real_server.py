"""Suspending kernels: a real Jupyter server with real kernels that hold a device, the fake one or the machine's own.

A fake service orders to free the GPU, and answers the requests for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_server.services.kernels.connection import base
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_gpu_quota.demo.users import Kernel, Unexpected, execute_request
from jupyter_gpu_quota.notebook.delayed_messages import V1
from jupyter_gpu_quota.notebook.suspension_selftest import run_program
from jupyter_gpu_quota.wire.activity import FreeOrder, WakeAnswer
from tests.gpu import fake_library, real_library
from tests.gpu.fake_library import Script
from tests.notebook.jupyter_world import SERVER_TOKEN, JupyterServer, Service, free_port, jupyter_server, service_at
from tests.patience import until

pytestmark = pytest.mark.slow

HOLD = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
size, pattern = 64 << 20, os.urandom(1 << 20) * 64
codes = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
         cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
         cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)),
         cuda.cuMemcpyHtoD_v2(memory, pattern, ctypes.c_size_t(size))]
answer = 42
print(codes, os.getpid())
"""
READ = """
read = ctypes.create_string_buffer(size)
code = cuda.cuMemcpyDtoH_v2(read, memory, ctypes.c_size_t(size))
print(answer, code, read.raw == pattern)
"""
WAIT_S, STEP_S = 12, 12
"""Two waits that tests see to their ends; the others must not, on a machine that stands still for some seconds."""

OPTIONS = (f"--GPUQuotaActivity.suspension_wait_s={WAIT_S}", f"--GPUQuotaActivity.suspension_step_s={STEP_S}")
KEPT = "42 0 True\n"
SAYS = ("error", "stream")
WAITS = WakeAnswer(state="waiting", reason="lent", message='It comes back when ann\'s job "train" has saved and left.')
READY = WakeAnswer(state="ready", reason="booked", message="")
GONE = WakeAnswer(state="refused", reason="quota", message="The project has no notebook quota left.")


@dataclass
class World:
    """A server whose kernels hold a device; ``script`` of the fake one, None on a real one."""

    server: JupyterServer
    service: Service
    folder: Path
    script: Script | None
    lists: bool = True

    def run(self, kernel: str, code: str, within_s: float = 60) -> str:
        async def one_cell() -> str:
            socket = await connected(self.server, kernel)
            try:
                return await socket.run(code, within_s)
            finally:
                socket.close()

        return asyncio.run(one_cell())

    def holder(self) -> tuple[str, int]:
        """A kernel that holds the device, with its process."""
        kernel = self.server.start_kernel()
        codes, pid = self.run(kernel, HOLD).rsplit(" ", 1)
        assert codes == "[0, 0, 0, 0, 0, 0]"
        self.lists = self.listed(int(pid)) or self.script is not None
        return kernel, int(pid)

    def free(self, kernel: str, mib: int = 164) -> None:
        """Order the GPU freed, as the service does once a notebook was idle for long enough."""
        self.service.free = FreeOrder(kernels=[kernel], quiet_ms=500, suspend={kernel: mib})

    def suspended(self) -> tuple[str, int]:
        kernel, pid = self.holder()
        self.free(kernel)
        until(lambda: (k := self.service.kernel(kernel)) and k.suspended and self.state(pid) == "checkpointed")
        self.service.free = None
        until(lambda: not self.holds(pid))
        return kernel, pid

    def holds(self, pid: int) -> bool:
        """By NVML; in a container where that lists no process of ours, by the driver."""
        return self.listed(pid) if self.lists else self.state(pid) == "running"

    def listed(self, pid: int) -> bool:
        found = run_program("held_memory", pid, os.environ, 60.0)["devices"]
        return any(device["listed"] for device in found.values())

    def state(self, pid: int) -> object:
        return run_program("checkpointing", "state", pid, os.environ, 60.0)["state"]

    def message_of(self, kernel: str, state: str) -> str:
        """The message about a kernel's newest state of that name; "" without one."""
        said = re.findall(rf"kernel {kernel}, {state}: (.*)", self.log())
        return said[-1] if said else ""

    def log(self) -> str:
        return (self.folder / "server.log").read_text()


async def connected(server: JupyterServer, kernel: str) -> Kernel:
    address = server.url.replace("http", "ws", 1) + f"/api/kernels/{kernel}/channels"
    headers = {"Authorization": f"token {SERVER_TOKEN}"}
    return Kernel(await websocket_connect(HTTPRequest(address, headers=headers)), kernel)


async def asks(kernel: Kernel, kind: str) -> str:
    """The kind of a kernel's answer to what a browser asks when it connects."""
    message = {**execute_request(""), "content": {}}
    message["header"] = {**message["header"], "msg_type": kind}
    await kernel.socket.write_message(json.dumps(message))
    async with asyncio.timeout(60):
        while True:
            answer = json.loads(await kernel.socket.read_message() or "")
            if answer["channel"] == "shell" and answer["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return str(answer["msg_type"])


@contextmanager
def started(folder: Path, script: Script | None) -> Iterator[World]:
    service = Service(port=free_port(), suspend=True)
    folder.mkdir()
    with service_at(service), jupyter_server(folder, service.port, *OPTIONS) as server:
        until(lambda: service.reports and service.last.suspension in ("ready", "unavailable"), 90)
        yield World(server, service, folder, script)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libraries with")
    return fake_library.build(tmp_path_factory.mktemp("cuda"), fake_library.NVML, fake_library.CUDA)


@contextmanager
def a_fake_device(libraries: Path, folder: Path) -> Iterator[Script]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LD_LIBRARY_PATH", str(libraries))
        patched.setenv("FAKE_NVML_SCRIPT", str(folder / "script"))
        script = Script(folder / "script")
        script.add("system driver 615.71.01")
        script.device(0)
        yield script


@pytest.fixture(scope="module")
def fake_world(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("fake")
    with a_fake_device(libraries, folder) as script, started(folder / "server", script) as world:
        assert world.service.last.suspension == "ready", world.service.last.suspension_why
        yield world


@pytest.fixture(scope="module")
def real_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    lacking = real_library.lacking()
    if lacking is not None:
        pytest.skip(f"no real GPU: {lacking}")
    with started(tmp_path_factory.mktemp("real") / "server", None) as world:
        if world.service.last.suspension != "ready":
            pytest.skip(f"no kernel is suspended on this GPU: {world.service.last.suspension_why}")
        yield world


@pytest.fixture(params=["fake", "real"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    found: World = request.getfixturevalue(f"{request.param}_world")
    yield from used(found)


@pytest.fixture
def fake(fake_world: World) -> Iterator[World]:
    yield from used(fake_world)


def used(world: World) -> Iterator[World]:
    yield world
    world.service.free, world.service.slice, world.service.silent = None, READY, False
    if world.script is not None:
        world.script.drop("cuda error", "cuda hang", "cuda die", "cuda lie", "cuda forget")
    for kernel in world.server.kernels():
        world.server.call("DELETE", f"/api/kernels/{kernel}")


def test_a_suspended_kernel_frees_its_gpu_and_is_restored_by_its_next_cell(world: World) -> None:
    kernel, pid = world.suspended()
    assert kernel in world.server.kernels()
    assert world.run(kernel, READ) == KEPT
    assert world.holds(pid) and kernel in world.service.woken_for
    until(lambda: not world.service.kernel(kernel).suspended)


def test_no_cell_runs_and_no_kernel_is_restored_before_the_borrower_ended(world: World) -> None:
    kernel, pid = world.suspended()
    ran_at = world.folder / f"ran-{kernel}"
    world.service.slice = WAITS

    async def cell() -> str:
        socket = await connected(world.server, kernel)
        running = asyncio.ensure_future(socket.run(f"open({str(ran_at)!r}, 'w').close()\n{READ}"))
        await asyncio.sleep(1.5)
        assert not ran_at.exists()
        assert await asyncio.to_thread(world.state, pid) == "checkpointed"
        waiting = (await asyncio.to_thread(world.server.call, "GET", "/gpu-quota/idle"))[1]["waiting"]
        assert [(each["kernel"], each["message"]) for each in waiting] == [(kernel, WAITS.message)]
        world.service.slice = READY
        try:
            return await running
        finally:
            socket.close()

    assert asyncio.run(cell()) == KEPT
    assert ran_at.exists()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(GONE, "The project has no notebook quota left.", id="its slice was returned"),
        pytest.param(WAITS, f"It waited {WAIT_S} s for the GPU", id="the borrower does not end in time"),
    ],
)
def test_a_kernel_stays_suspended_while_its_slice_is_unavailable_and_its_cell_shows_the_reason(
    world: World, answer: WakeAnswer, why: str
) -> None:
    kernel, pid = world.suspended()
    world.service.slice = answer
    with pytest.raises(Unexpected, match=why):
        world.run(kernel, READ)
    assert world.state(pid) == "checkpointed"
    world.service.slice = READY
    assert world.run(kernel, READ) == KEPT


@pytest.mark.parametrize("by_rest", [True, False], ids=["of the REST API", "of the control channel"])
def test_an_interrupt_ends_the_wait_of_a_cell_and_its_kernel_stays_suspended(world: World, by_rest: bool) -> None:
    kernel, pid = world.suspended()
    ran_at = world.folder / f"ran-{kernel}"
    world.service.slice = WAITS

    async def cell() -> None:
        socket = await connected(world.server, kernel)
        running = asyncio.ensure_future(socket.run(f"open({str(ran_at)!r}, 'w').close()"))
        if by_rest:
            await asyncio.to_thread(until, lambda: waits_for_gpu(world, kernel))
            answer = await asyncio.to_thread(world.server.call, "POST", f"/api/kernels/{kernel}/interrupt")
            assert answer[0] == 204
        else:
            await asyncio.sleep(0)  # the cell is sent, and perhaps not requested yet
            await socket.socket.write_message(json.dumps(interrupt_request()))
        with pytest.raises(Unexpected, match="its kernel was interrupted while it waited for its GPU"):
            await running
        socket.close()

    asyncio.run(cell())
    until(lambda: not waits_for_gpu(world, kernel))
    world.service.slice = READY
    for _ in range(3):
        world.service.next()
    assert world.state(pid) == "checkpointed" and not ran_at.exists()
    assert world.run(kernel, READ) == KEPT
    assert "was never retrieved" not in world.log()


def interrupt_request() -> dict[str, Any]:
    message = execute_request("")
    header = {**message["header"], "msg_type": "interrupt_request"}
    return {**message, "header": header, "content": {}, "channel": "control"}


def waits_for_gpu(world: World, kernel: str) -> bool:
    return kernel in {each["kernel"] for each in world.server.call("GET", "/gpu-quota/idle")[1]["waiting"]}


async def by_jupyterlab(world: World, kernel: str, code: str) -> list[str]:
    """Run a cell by the protocol that JupyterLab speaks: what came back, by kind, with the text of an error."""
    address = world.server.url.replace("http", "ws", 1) + f"/api/kernels/{kernel}/channels"
    request = HTTPRequest(address, headers={"Authorization": f"token {SERVER_TOKEN}"})
    socket = await websocket_connect(request, subprotocols=[V1])
    assert socket.selected_subprotocol == V1
    message = execute_request(code)
    sent: Any = base.serialize_msg_to_ws_v1
    await socket.write_message(sent(message, "shell", lambda part: json.dumps(part).encode()), binary=True)
    found, heard = list[str](), base.deserialize_msg_from_ws_v1
    async with asyncio.timeout(60):
        while not found or found[-1] != "shell execute_reply":
            channel, parts = heard(await socket.read_message())
            header, parent, _, content = (json.loads(part) for part in parts[:4])
            if parent.get("msg_id") == message["header"]["msg_id"]:
                found.append(f"{channel} {header['msg_type']}")
                found += [
                    content[name] for name in ("evalue", "text") if header["msg_type"] in SAYS and name in content
                ]
    socket.close()
    return found


def test_a_jupyterlab_cell_waits_and_is_answered_in_its_protocol(world: World) -> None:
    kernel, _ = world.suspended()
    world.service.slice = GONE
    refused = asyncio.run(by_jupyterlab(world, kernel, READ))
    assert [each for each in refused if each.startswith(("iopub", "shell"))] == [
        "iopub status", "iopub error", "shell execute_reply",
    ]  # fmt: skip
    assert any("The project has no notebook quota left." in each for each in refused)
    world.service.slice = READY
    assert KEPT in asyncio.run(by_jupyterlab(world, kernel, READ))


def test_a_reconnected_tab_restores_no_kernel(world: World) -> None:
    kernel, pid = world.suspended()

    async def reconnect() -> None:
        for _ in range(3):
            socket = await connected(world.server, kernel)
            assert await asks(socket, "kernel_info_request") == "kernel_info_reply"
            socket.close()

    asyncio.run(reconnect())
    world.service.next()
    assert world.state(pid) == "checkpointed"


def test_a_cell_from_another_client_restores_its_kernel(world: World) -> None:
    kernel, pid = world.suspended()
    files = world.folder / "runtime" / f"kernel-{kernel}.json"
    client = BlockingKernelClient(connection_file=str(files))
    client.load_connection_file()
    client.start_channels()
    try:
        printed = list[str]()
        client.execute_interactive(READ, timeout=60, output_hook=lambda m: printed.append(m["content"].get("text", "")))
    finally:
        client.stop_channels()
    assert "".join(printed) == KEPT
    assert world.holds(pid)


def test_a_restarted_kernel_is_no_longer_suspended(world: World) -> None:
    kernel, pid = world.suspended()
    assert world.server.call("POST", f"/api/kernels/{kernel}/restart")[0] == 200
    assert world.run(kernel, "print(1)") == "1\n"
    until(lambda: not world.service.kernel(kernel).suspended)
    assert not Path(f"/proc/{pid}").exists()


def test_a_suspended_kernel_with_a_lent_slice_restarts_after_the_slice_returned(world: World) -> None:
    kernel, pid = world.suspended()
    world.service.slice = WAITS
    back = threading.Timer(3, lambda: setattr(world.service, "slice", READY))
    back.start()
    assert world.server.call("POST", f"/api/kernels/{kernel}/restart")[0] == 200
    assert world.run(kernel, "print(1)") == "1\n"
    until(lambda: not world.service.kernel(kernel).suspended)
    assert not Path(f"/proc/{pid}").exists()
    assert not world.message_of(kernel, "lost")


# --- faults, on the fake driver -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param("cuda error cuCheckpointProcessCheckpoint 801", "not supported", id="refuses"),
        pytest.param("cuda die cuCheckpointProcessCheckpoint", "ended with signal 6", id="crashes"),
        pytest.param("cuda hang cuCheckpointProcessCheckpoint 60000", f"did not answer within {STEP_S} s", id="hangs"),
    ],
)
def test_a_kernel_that_cannot_be_suspended_is_shut_down_with_the_reason(fake: World, line: str, why: str) -> None:
    kernel, pid = fake.holder()
    script_of(fake).add(line)
    fake.free(kernel)
    found = until(lambda: fake.message_of(kernel, "lost"))
    assert found.startswith("It could not be suspended") and why in found
    assert kernel not in fake.server.kernels() and not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param("cuda error cuCheckpointProcessRestore 2", "out of memory", id="refuses"),
        pytest.param("cuda die cuCheckpointProcessRestore", "ended with signal 6", id="crashes"),
        pytest.param("cuda hang cuCheckpointProcessUnlock 60000", f"did not answer within {STEP_S} s", id="hangs"),
    ],
)
def test_a_kernel_that_cannot_be_restored_is_shut_down_and_its_cell_shows_the_reason(
    fake: World, line: str, why: str
) -> None:
    kernel, pid = fake.suspended()
    script_of(fake).add(line)
    with pytest.raises(Unexpected, match=f"It could not be restored: .*{why}.*its variables are lost"):
        fake.run(kernel, READ)
    until(lambda: kernel not in fake.server.kernels())
    assert not Path(f"/proc/{pid}").exists()


def test_a_kernel_that_still_uses_its_gpu_is_not_suspended(fake: World) -> None:
    kernel, _ = fake.holder()
    script_of(fake).add("cuda error cuCheckpointProcessLock 600")
    fake.free(kernel)
    until(lambda: fake.message_of(kernel, "left_alone"))
    assert fake.run(kernel, READ) == KEPT


def test_a_kernel_waits_for_a_device_that_has_no_room_yet(fake: World) -> None:
    kernel, pid = fake.suspended()
    script_of(fake).put("0 memory 143771 143700")

    async def cell() -> str:
        socket = await connected(fake.server, kernel)
        running = asyncio.ensure_future(socket.run(READ))
        await asyncio.sleep(1.5)
        assert await asyncio.to_thread(fake.state, pid) == "checkpointed"
        script_of(fake).put("0 memory 143771 0")
        try:
            return await running
        finally:
            socket.close()

    assert asyncio.run(cell()) == KEPT


def test_without_a_suspension_order_a_kernel_is_shut_down(fake: World) -> None:
    kernel, _ = fake.holder()
    fake.service.free = FreeOrder(kernels=[kernel], quiet_ms=500)
    until(lambda: kernel not in fake.server.kernels())


def test_a_kernel_without_enough_host_memory_is_shut_down_with_the_reason(fake: World) -> None:
    kernel, _ = fake.holder()
    fake.free(kernel, mib=1 << 30)
    found = until(lambda: fake.message_of(kernel, "lost"))
    assert found.startswith("It is shut down") and "MiB of host memory, and" in found
    until(lambda: kernel not in fake.server.kernels())


def test_without_a_passed_self_test_kernels_are_shut_down(libraries: Path, tmp_path: Path) -> None:
    with a_fake_device(libraries, tmp_path) as script:
        script.add("cuda forget")
        with started(tmp_path / "server", script) as world:
            assert world.service.last.suspension == "unavailable"
            assert "came back changed" in world.service.last.suspension_why
            kernel, _ = world.holder()
            world.free(kernel)
            until(lambda: kernel not in world.server.kernels())
            until(lambda: "the self-test failed: the canary's memory came back changed" in world.log())


def script_of(world: World) -> Script:
    assert world.script is not None
    return world.script


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(0, 0, id="the only tab"),
        pytest.param(1, 0, id="one of two tabs"),
        pytest.param(0, 1, id="a page that is loaded again"),
    ],
)
def test_a_waiting_cell_runs_after_its_tab_was_closed(fake: World, before: int, after: int) -> None:
    kernel, _ = fake.suspended()
    ran_at = fake.folder / f"ran-{kernel}"
    fake.service.slice = WAITS

    async def cell() -> None:
        others = [await connected(fake.server, kernel) for _ in range(before)]
        tab = await connected(fake.server, kernel)
        await tab.socket.write_message(json.dumps(execute_request(f"open({str(ran_at)!r}, 'w').close()")))
        await asyncio.to_thread(until, lambda: kernel in fake.service.woken_for)
        tab.close()
        await asyncio.to_thread(until, lambda: tabs_of(fake, kernel) == before)
        others += [await connected(fake.server, kernel) for _ in range(after)]
        fake.service.slice = READY
        await asyncio.to_thread(until, ran_at.exists)
        for other in others:
            other.close()

    asyncio.run(cell())


def tabs_of(world: World, kernel: str) -> object:
    return world.server.call("GET", f"/api/kernels/{kernel}")[1]["connections"]
