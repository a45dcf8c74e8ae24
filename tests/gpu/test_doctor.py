"""The doctor's table: the figures and the enforcement that each device supports, or why it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.backends.local.enforcement import cgroup
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.cli.doctor import devices as device_probes
from jupyter_gpu_quota.cli.doctor.probes import Ability
from jupyter_gpu_quota.client import connection
from tests.gpu.fake_library import Script


@pytest.fixture(autouse=True)
def a_hub_s_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    for name in ("JUPYTER_GPU_QUOTA_SETTINGS", "JUPYTERHUB_USER", "JUPYTER_GPU_QUOTA_URL"):
        monkeypatch.delenv(name, raising=False)


def gpus(tmp_path: Path) -> dict[str, Any]:
    known = {"JUPYTER_GPU_QUOTA_SETTINGS": "{}"}
    found = CliRunner().invoke(main, ["doctor", "--json", "--state-dir", str(tmp_path)], env=known)
    return next(each for each in json.loads(found.stdout) if each["what"] == "gpus")


def abilities(tmp_path: Path) -> dict[str, dict[str, str]]:
    """The reasons by feature and device; empty where the feature is available."""
    found: dict[str, dict[str, str]] = {}
    for each in gpus(tmp_path)["abilities"]:
        found.setdefault(each["what"], {}).update(dict.fromkeys(each["devices"], each["why_not"]))
    return found


def test_a_device_that_supports_everything(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "mounted", lambda: cgroup.DRIVER_ROOT)
    monkeypatch.setattr(cgroup.os, "access", lambda *_: True)
    monkeypatch.setattr(device_probes.os, "geteuid", lambda: 0)
    script.device(0)
    script.add("system limits ok")
    assert gpus(tmp_path)["found"] == "NVIDIA H200 (143771 MiB); driver 615.71.01"
    found = abilities(tmp_path)
    assert {what for what, by_device in found.items() if by_device == {"GPU-0": ""}} == set(found) - {
        "MIG (hardware)",
        "MPS",
    }
    assert "turned off" in found["MIG (hardware)"]["GPU-0"]


@pytest.mark.parametrize(
    ("lines", "what", "why"),
    [
        pytest.param(["0 error nvmlDeviceGetPowerUsage 3"], "power", "Not Supported", id="no power meter"),
        pytest.param(["0 error nvmlDeviceGetProcessUtilization 3"], "use per process", "Not Supported", id="no use"),
        pytest.param(["0 error nvmlDeviceRegisterEvents 3"], "fatal events (XID)", "Not Supported", id="no events"),
        pytest.param(
            ["system error nvmlEventSetCreate 4"], "fatal events (XID)", "Insufficient", id="events not allowed"
        ),
        pytest.param(["0 error nvmlDeviceGetTotalEccErrors 3"], "memory errors", "Not Supported", id="no ECC"),
        pytest.param(["0 error nvmlDeviceGetMigMode 3"], "MIG (hardware)", "Not Supported", id="no MIG"),
        pytest.param([], "memory limit (driver)", "Not Supported", id="no limits"),
    ],
)
def test_a_missing_ability_is_reported_for_its_device(
    script: Script, tmp_path: Path, lines: list[str], what: str, why: str
) -> None:
    script.device(0)
    script.device(1)
    script.add(*lines)
    found = abilities(tmp_path)[what]
    assert why in found["GPU-0"]
    assert (why in found["GPU-1"]) == (not any(line.startswith("0 ") for line in lines))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("1 error nvmlDeviceGetUUID 999", "GPU 1 is left out: its UUID", id="a device that is left out"),
        pytest.param("1 remap 1", "GPU-1: it has no spare rows for faulty memory any more", id="an unhealthy device"),
    ],
)
def test_a_device_that_takes_no_work_is_warned_of(script: Script, tmp_path: Path, line: str, said: str) -> None:
    script.device(0)
    script.device(1)
    script.put(line)
    found = gpus(tmp_path)
    assert (found["verdict"], said in found["found"]) == ("warn", True), found
    assert found["abilities"] and "NVIDIA H200" in found["found"]


def test_an_old_driver_limits_no_memory(script: Script, tmp_path: Path) -> None:
    script.device(0)
    script.put("system driver 550.54.14")
    assert "from 615 on, this is 550.54.14" in abilities(tmp_path)["memory limit (driver)"]["GPU-0"]


@pytest.mark.parametrize(
    ("lines", "use", "per_process"),
    [
        pytest.param([], "Not Supported", "idle only while no process is on it", id="without metrics"),
        pytest.param(["0/0 gpm 1 0"], "", "the metrics of the instance show whether it is idle", id="with metrics"),
    ],
)
def test_instances_are_enforced_by_hardware_and_have_no_use_per_process(
    script: Script, tmp_path: Path, lines: list[str], use: str, per_process: str
) -> None:
    script.device(0)
    script.put("0 mig 1")
    script.instance(0, 0)
    script.add(*lines)
    found = abilities(tmp_path)
    assert found["MIG (hardware)"] == {"MIG-0-0": ""}
    assert use in found["utilisation"]["MIG-0-0"] and bool(use) == bool(found["utilisation"]["MIG-0-0"])
    assert per_process in found["use per process"]["MIG-0-0"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param(["system error nvmlInitWithFlags 18"], "cannot be read: NVML cannot be started", id="a mismatch"),
        pytest.param(["system die nvmlDeviceGetCount_v2"], "cannot be read: the reader", id="a crash"),
        pytest.param([], "no GPU: NVML lists none", id="a driver without a device"),
        pytest.param(["system error nvmlInitWithFlags 9"], "no GPU: NVML cannot be started", id="no driver"),
    ],
)
def test_a_machine_without_devices_has_a_reason(script: Script, tmp_path: Path, lines: list[str], said: str) -> None:
    script.add(*lines)
    found = gpus(tmp_path)
    assert (found["verdict"], said in found["found"], found["abilities"]) == ("warn", True, []), found


def test_the_table_is_printed_below_the_devices(script: Script, tmp_path: Path) -> None:
    script.device(0)
    script.device(1)
    script.add("0 error nvmlDeviceGetPowerUsage 3")
    found = CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path)]).stdout
    (row,) = [line for line in found.splitlines() if "power" in line and "GPU-0" in line]
    assert row.split()[-4:] == ["no:", "NVML:", "Not", "Supported"]
    assert any("could enforce" in line and "cooperative" in line and "all" in line for line in found.splitlines())


def test_equal_devices_share_a_row() -> None:
    found = [
        Ability(kind="read", what="power", devices=("a", "b"), why_not=""),
        Ability(kind="enforce", what="MPS", devices=("a",), why_not="x"),
        Ability(kind="enforce", what="MPS", devices=("b",), why_not=""),
    ]
    rows = device_probes.table(found)[1]
    assert [row[2:] for row in rows] == [("all", "yes"), ("a", "no: x"), ("b", "yes")]
