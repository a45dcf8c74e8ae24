"""The steps of suspending and restoring a kernel, with real processes on the fake driver, without a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.notebook import suspension
from jupyter_gpu_quota.notebook.host_memory import available_mib
from jupyter_gpu_quota.notebook.slice_requests import SliceRequester
from jupyter_gpu_quota.notebook.suspension import RETRY_MS, STILL_HELD_MS, RestoreFailed, Suspension
from jupyter_gpu_quota.notebook.suspension_selftest import Canary, SelfTest, run_program
from tests.gpu import fake_library
from tests.gpu.fake_library import Script

PASSED = SelfTest(passed=True, driver="615.71.01")
OWN, OTHER = "GPU-0", "GPU-1"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libraries with")
    return fake_library.build(tmp_path_factory.mktemp("cuda"), fake_library.NVML, fake_library.CUDA)


@pytest.fixture
def script(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(tmp_path / "script"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", OWN)
    script = Script(tmp_path / "script")
    script.add("system driver 615.71.01")
    script.device(0)
    yield script


@dataclass
class Server:
    """A fake Jupyter server: a kernel "k" (and others), whose process is a canary."""

    pid: int
    events: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    answer: dict[str, Any] = field(
        default_factory=lambda: {"state": "ready", "message": "", "variables": {"CUDA_VISIBLE_DEVICES": OWN}}
    )
    now: int = 0
    room: int | None = 10_000
    kernel: Any = None
    kernels: list[str] = field(default_factory=lambda: ["k"])

    def __post_init__(self) -> None:
        self.kernel = SimpleNamespace(
            provisioner=SimpleNamespace(pid=self.pid), last_activity=1, execution_state="idle"
        )
        self.kernel_manager = self
        self.log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None, exception=lambda *_: None)

    def __contains__(self, name: str) -> bool:
        return name in self.list_kernel_ids()

    def list_kernel_ids(self) -> list[str]:
        return self.kernels if self.kernel is not None else []

    def get_kernel(self, name: str) -> Any:
        return self.kernel

    async def shutdown_kernel(self, name: str, *, now: bool) -> None:
        self.kernel = None

    async def post(self, path: str, body: object, within_s: float) -> Any:
        self.asked.append(path)
        return self.answer

    def suspension(self, tested: SelfTest | None = PASSED) -> Suspension:
        variables = {"GPU_QUOTA_SHARE": "", "JUPYTERHUB_API_TOKEN": "t"}
        asks = SliceRequester(variables, self.post, lambda: self.now)
        asks.service.notebook = "nb-1"
        made = Suspension(
            self, asks, lambda kernel, state, why: self.events.append((state, why)), 0, 60,
            clock=lambda: self.now, room=lambda: self.room, test=lambda: PASSED,
        )  # fmt: skip
        made.tested = tested
        return made


@pytest.fixture
def canary(script: Script) -> Iterator[Canary]:
    with Canary(os.environ, 30) as made:
        yield made


@pytest.fixture
def server(canary: Canary) -> Server:
    return Server(canary.pid)


async def suspended(server: Server, **options: Any) -> Suspension:
    made = server.suspension(**options)
    assert made.suspend("k", 164) == ""
    task = made.kernels["k"].task
    assert task is not None
    await task
    return made


def state_of(pid: int) -> object:
    return run_program("checkpointing", "state", pid, os.environ, 30.0)["state"]


def test_a_restarted_server_finds_its_suspended_kernels_by_the_driver_state(server: Server, canary: Canary) -> None:
    async def story() -> None:
        await suspended(server)
        restarted = server.suspension(tested=None)
        restarted.prepare()
        assert restarted.testing is not None
        await restarted.testing
        assert (restarted.is_suspended("k"), restarted.state) == (True, "ready")
        await restarted.wake("k")
        assert not restarted.is_suspended("k")

    asyncio.run(story())
    canary.check()
    assert server.asked == ["notebooks/nb-1/actions/wake"]


def test_a_kernel_left_locked_is_unlocked(script: Script, server: Server, canary: Canary) -> None:
    """The process that suspended it was killed between two calls."""

    async def story() -> None:
        script.add("cuda die cuCheckpointProcessCheckpoint")
        command = [sys.executable, "-I", "jupyter_gpu_quota/notebook/checkpointing.py", "suspend", str(canary.pid)]
        subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert state_of(canary.pid) == "locked"
        script.drop("cuda die")
        restarted = server.suspension(tested=None)
        restarted.prepare()
        assert restarted.testing is not None
        await restarted.testing
        assert restarted.is_suspended("k")
        await restarted.wake("k")

    asyncio.run(story())
    canary.check()


def test_a_kernel_stays_suspended_when_its_slice_is_on_another_device(server: Server, canary: Canary) -> None:
    server.answer["variables"] = {"CUDA_VISIBLE_DEVICES": OTHER}

    async def story() -> None:
        made = await suspended(server)
        with pytest.raises(
            RestoreFailed, match=r"on another device now .*restart it to continue without its variables"
        ):
            await made.wake("k")
        assert made.is_suspended("k")
        server.answer["variables"] = {"CUDA_VISIBLE_DEVICES": OWN}
        await made.wake("k")

    asyncio.run(story())
    canary.check()


def test_a_suspended_kernel_that_still_holds_gpu_memory_is_shut_down(script: Script, server: Server) -> None:
    script.add("cuda lie")

    async def story() -> None:
        made = await suspended(server)
        server.now += STILL_HELD_MS - 1
        assert made.suspend("k", 164) == ""
        server.now += 1
        assert "by the readings it still uses the GPU" in made.suspend("k", 164)

    asyncio.run(story())


def test_a_driver_that_was_not_tested_suspends_nothing(script: Script, server: Server) -> None:
    script.put("system driver 616.01")
    asyncio.run(suspended(server))
    assert (
        server.events[-1][0] == "lost"
        and "is not the one that passed the self-test, but 616.01" in server.events[-1][1]
    )
    assert server.kernel is None


@pytest.mark.parametrize(
    ("tested", "room", "why"),
    [
        pytest.param(None, 10_000, "the self-test is not finished", id="before the self-test ended"),
        pytest.param(
            SelfTest(passed=False, why="no luck"),
            10_000,
            "the self-test failed: no luck",
            id="after a failed self-test",
        ),
        pytest.param(PASSED, 163, "it needs 164 MiB of host memory, and 163 MiB are available", id="too little memory"),
        pytest.param(PASSED, None, "the available host memory is unknown", id="with unknown host memory"),
    ],
)
def test_a_kernel_is_not_suspended(server: Server, tested: SelfTest | None, room: int | None, why: str) -> None:
    server.room = room
    made = server.suspension(tested)
    assert why in made.suspend("k", 164) and not made.is_suspended("k")


def test_an_aborted_self_test_has_a_reason(server: Server) -> None:
    def broken() -> SelfTest:
        raise OSError("no more files")

    async def story() -> None:
        made = server.suspension(None)
        made.test = broken
        made.prepare()
        assert made.testing is not None
        await made.testing
        assert made.state == "unavailable" and "no more files" in made.suspend("k", 164)

    asyncio.run(story())


def test_host_memory_reserved_by_another_suspension_is_not_available(server: Server) -> None:
    async def story() -> None:
        server.room = 250
        made = server.suspension()
        assert made.suspend("k", 164) == ""
        server.kernels.append("second")
        assert made.suspend("second", 164) == "it needs 164 MiB of host memory, and 86 MiB are available"
        await asyncio.shield(made.kernels["k"].task)

    asyncio.run(story())


def test_a_kernel_with_two_devices_is_not_suspended(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{OWN},{OTHER}")
    with Canary(os.environ, 30) as both:
        assert "more than one device" in Server(both.pid).suspension().suspend("k", 164)


def test_an_exception_leaves_no_kernel_half_suspended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no more processes")

    monkeypatch.setattr(suspension, "_run", broken)
    made = asyncio.run(suspended(server))
    assert not made.is_suspended("k") and server.kernel is None
    assert server.events[-1][0] == "lost" and "no more processes" in server.events[-1][1]


def test_a_busy_kernel_is_restored_by_a_later_attempt(server: Server, canary: Canary) -> None:
    async def story() -> None:
        made = await suspended(server)
        server.answer |= {"state": "refused", "message": "No quota is left."}
        server.kernel.execution_state = "busy"
        for tries in (1, 2):
            made.check_kernels()
            await asyncio.gather(*made.wakes)
            made.check_kernels()
            assert not made.wakes and len(server.asked) == tries
            server.now += RETRY_MS
        assert "No quota is left." in server.events[-1][1]
        server.answer |= {"state": "ready"}
        made.check_kernels()
        await asyncio.gather(*made.wakes)
        assert not made.is_suspended("k")

    asyncio.run(story())
    canary.check()


def test_a_kernel_that_is_restarted_while_it_waits_is_not_restored(server: Server, canary: Canary) -> None:
    server.answer |= {"state": "waiting"}

    async def story() -> None:
        made = await suspended(server)
        made.wait_at_most_s = 30
        waking = asyncio.ensure_future(made.wake("k"))
        while not server.asked:
            await asyncio.sleep(0.01)
        server.kernel.provisioner.pid = os.getpid()
        made.check_kernels()
        assert not made.is_suspended("k")
        server.answer |= {"state": "ready"}
        with pytest.raises(RestoreFailed, match="was restarted while it waited"):
            await waking

    asyncio.run(story())
    assert state_of(canary.pid) == "checkpointed" and server.kernel is not None
    assert [state for state, _ in server.events] == ["suspended"]


def test_a_kernel_that_waits_to_restart_is_not_shut_down_for_its_last_process(server: Server, canary: Canary) -> None:
    server.answer |= {"state": "waiting"}

    async def story() -> None:
        made = await suspended(server)
        made.wait_at_most_s = 30
        waking = asyncio.ensure_future(made.wake("k"))
        while not server.asked:
            await asyncio.sleep(0.01)
        canary.process.kill()
        canary.process.wait()
        assert not made.is_suspended("k")
        server.answer |= {"state": "ready"}
        with pytest.raises(RestoreFailed, match="was restarted while it waited"):
            await waking
        await made.wake("k")

    asyncio.run(story())
    assert server.kernel is not None


@pytest.mark.parametrize(
    "restarted",
    [
        pytest.param(os.getpid(), id="restarted"),
        pytest.param(None, id="shut down, or waiting for the GPU to start again"),
    ],
)
def test_a_kernel_that_ends_while_suspended_affects_no_other_and_its_cell_shows_the_reason(
    script: Script, server: Server, restarted: int | None
) -> None:
    script.add("cuda hang cuCheckpointProcessLock 300")

    async def story() -> None:
        made = server.suspension()
        assert made.suspend("k", 164) == ""
        waking = asyncio.ensure_future(made.wake("k"))
        await asyncio.sleep(0)
        server.kernel.provisioner.pid = restarted
        with pytest.raises(RestoreFailed, match="was restarted while it waited"):
            await asyncio.wait_for(waking, 60)
        assert not made.is_suspended("k")

    asyncio.run(story())
    assert server.kernel is not None and not server.asked


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("cuda error cuCheckpointProcessLock 801", id="the driver refuses"),
        pytest.param("system error nvmlInitWithFlags 999", id="the driver cannot be read"),
    ],
)
def test_an_unmoved_kernel_continues_when_its_user_returns_in_time(
    script: Script, server: Server, canary: Canary, line: str
) -> None:
    script.add(line)

    async def story() -> None:
        made = server.suspension()
        assert made.suspend("k", 164) == ""
        await made.wake("k")
        assert not made.is_suspended("k")

    asyncio.run(story())
    canary.check()
    assert server.kernel is not None
    assert [state for state, _ in server.events] == ["left_alone"]


# --- host memory --------------------------------------------------------------------------------------------------
MEMINFO = "MemTotal: 99999999 kB\nMemAvailable: 8388608 kB\n"


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        pytest.param({}, None, id="without any source"),
        pytest.param({"proc/meminfo": MEMINFO}, 8192 - 512, id="the machine only"),
        pytest.param(
            {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n", "sys/a/b/memory.max": "max",
             "sys/a/b/memory.current": "0", "sys/a/memory.max": str(4 << 30), "sys/a/memory.current": str(2 << 30),
             "sys/a/memory.stat": f"anon 1\ninactive_file {1 << 30}\n"},
            3072 - 512, id="the limit of a group above, its unused pages counted as free",
        ),
        pytest.param(
            {"proc/meminfo": MEMINFO, "proc/self/cgroup": "5:cpu,memory:/x\n",
             "sys/memory/x/memory.limit_in_bytes": str(1 << 30), "sys/memory/x/memory.usage_in_bytes": str(1 << 30),
             "sys/memory/x/memory.stat": ""},
            0, id="a full group of the first version",
        ),
    ],
)  # fmt: skip
def test_the_available_host_memory(tmp_path: Path, files: dict[str, str], mib: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_mib(tmp_path / "proc", tmp_path / "sys") == mib
