"""Fixtures of the GPU tests: the fake library, and the machine's own where it has one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import fake_library, real_library
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu, Gpu, RealGpu
from tests.patience import PATIENCE_S


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libnvidia-ml.so.1 with")
    return fake_library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def script(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script of a driver that is loaded and has no device yet; children load the fake library."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(built))
    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(tmp_path / "script"))
    script = Script(tmp_path / "script")
    script.add("system driver 615.71.01")
    return script


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that are started in the test; ``kill`` does not end them, as if they hung in the kernel."""
    started: list[subprocess.Popen[bytes]] = []

    class Unkillable(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

        def kill(self) -> None:
            """A process that hangs in the kernel."""

    monkeypatch.setattr(subprocess, "Popen", Unkillable)
    yield started
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)


@pytest.fixture
def fake(script: Script) -> Iterator[FakeGpu]:
    with FakeGpu(script) as gpu:
        yield gpu


@pytest.fixture(params=["fake", "real"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """A machine with an unused device: the fake one, and the real one where there is one."""
    if request.param == "fake":
        world = request.getfixturevalue("fake")
        world.script.device(0)
        yield world
        return
    lacking = real_library.lacking()
    if lacking is not None:
        pytest.skip(f"no real GPU: {lacking}")
    with RealGpu() as real:
        yield real


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report which tests ran on hardware, and which did not."""
    counts = {
        outcome: sum("[real" in report.nodeid for report in terminalreporter.getreports(outcome))
        for outcome in ("passed", "failed", "error", "skipped")
    }
    if not any(counts.values()):
        return
    lacking = real_library.lacking()
    if lacking is not None:
        found = f"Nothing was run on a real GPU: {lacking}. The same tests ran on the fake library."
    else:
        models = ", ".join(" ".join(row) for row in real_library.query("name", "driver_version"))
        seen = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        found = f"On a real GPU ({models}): {seen}."
    terminalreporter.write_line(found, bold=True)
