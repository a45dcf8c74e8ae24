"""The self-test before any kernel is suspended: a canary on the fake driver, and on the machine's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.client import connection
from jupyter_gpu_quota.notebook import suspension_selftest as canary
from jupyter_gpu_quota.notebook.suspension_selftest import self_test
from tests.gpu import fake_library, real_library
from tests.gpu.fake_library import Script


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_library.compiler() is None:
        pytest.skip("there is no C compiler here to build the fake libraries with")
    return fake_library.build(tmp_path_factory.mktemp("cuda"), fake_library.NVML, fake_library.CUDA)


@pytest.fixture
def script(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(tmp_path / "script"))
    script = Script(tmp_path / "script")
    script.add("system driver 615.71.01")
    script.device(0)
    yield script


def test_a_working_driver_passes(script: Script) -> None:
    tested = self_test()
    assert (tested.passed, tested.why, tested.driver, tested.devices) == (True, "", "615.71.01", ("GPU-0",))


def test_a_real_driver_passes_or_has_a_reason() -> None:
    """The result is printed: it decides whether suspension can be used on this machine."""
    lacking = real_library.lacking()
    if lacking is not None:
        pytest.skip(f"no real GPU: {lacking}")
    tested = self_test()
    print(f"\nself-test on driver {tested.driver}: {'passed' if tested.passed else tested.why}")
    assert tested.passed or tested.why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param("cuda lie", "memory is still on the device", id="reports a suspension that did not happen"),
        pytest.param("cuda forget", "came back changed", id="loses the memory contents"),
        pytest.param("cuda error cuCheckpointProcessLock 600", "not ready (600)", id="cannot lock"),
        pytest.param("cuda error cuCheckpointProcessCheckpoint 2", "out of memory (2)", id="cannot suspend, as on MIG"),
        pytest.param("cuda error cuCheckpointProcessRestore 2", "out of memory (2)", id="cannot restore"),
        pytest.param(
            "cuda error cuCheckpointProcessGetState 800", "not permitted (800)", id="is not permitted to read the state"
        ),
        pytest.param("cuda die cuCheckpointProcessRestore", "ended with -6", id="crashes"),
        pytest.param("cuda hang cuCheckpointProcessUnlock 60000", "did not answer within 3 s", id="hangs"),
        pytest.param(
            "cuda error cuMemAlloc_v2 2", "could not use a device: the driver answers 2", id="has no free memory"
        ),
        pytest.param("0 error nvmlDeviceGetMemoryInfo 3", "cannot be read: nvmlDeviceGetMemoryInfo", id="cannot read"),
    ],
)
def test_a_defective_driver_does_not_pass(script: Script, line: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "GONE_S", 0.5)
    script.add(line)
    tested = self_test(step_s=3 if "hang" in line else 60)
    assert not tested.passed and why in tested.why


def test_in_a_container_without_visible_processes_the_device_memory_is_compared(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "GONE_S", 0.5)
    script.add("cuda hidden")
    assert self_test().passed
    script.add("cuda lie")
    assert "still on the device" in self_test().why


def test_a_driver_before_570_does_not_pass(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old"
    old.mkdir()
    fake_library.build(fake_library.build(old), fake_library.CUDA, flags=("-DOLD",))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old))
    assert "the driver is older than 570 and has no such call" in self_test().why


@pytest.mark.parametrize("machine", ["aarch64", "ppc64le"])
def test_only_x86_64_passes(script: Script, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary.platform, "machine", lambda: machine)
    assert "x86-64 only" in self_test().why


def test_a_device_without_free_memory_is_not_tested(script: Script) -> None:
    script.put("0 memory 143771 143000")
    assert "no device has 1024 MiB free" in self_test().why


def test_the_self_test_reports_a_missing_driver() -> None:
    hidden = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")}
    if real_library.lacking() is None:
        pytest.skip("there is a driver here")
    assert not self_test(hidden).passed


def test_the_doctor_shows_whether_processes_can_be_suspended(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    for name in ("JUPYTERHUB_USER", "JUPYTER_GPU_QUOTA_URL"):
        monkeypatch.delenv(name, raising=False)
    assert suspension(tmp_path)["verdict"] == "ok"
    script.add("cuda forget")
    found = suspension(tmp_path)
    assert found["verdict"] == "skip" and "came back changed" in found["found"]


def suspension(tmp_path: Path) -> dict[str, str]:
    known = {"JUPYTER_GPU_QUOTA_SETTINGS": "{}"}
    shown = CliRunner().invoke(main, ["doctor", "--json", "--state-dir", str(tmp_path)], env=known)
    found: dict[str, str] = next(each for each in json.loads(shown.stdout) if each["what"] == "suspension")
    return found
