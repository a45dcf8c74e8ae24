"""The doctor: each probe on a machine that is well, and on one that is not."""

from __future__ import annotations

import ctypes
import json
import os
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.cli import main, probes
from jupyter_gpu_quota.client import connection
from jupyter_gpu_quota.config import GPUQuota
from tests.shell.fake_service import TOKEN, World, served


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    for name in (
        "JUPYTER_GPU_QUOTA_URL",
        "JUPYTERHUB_PUBLIC_HUB_URL",
        "JUPYTERHUB_API_TOKEN",
        "JUPYTER_GPU_QUOTA_SETTINGS",
    ):
        monkeypatch.delenv(name, raising=False)


def versions(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    def version(name: str) -> str:
        try:
            return known[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        pytest.param({"jupyterhub": "6.1.1"}, "ok", id="the newest hub"),
        pytest.param({"jupyterhub": "5.3.0"}, "ok", id="the oldest hub that is supported"),
        pytest.param({"jupyterhub": "5.2.1"}, "fail", id="a hub that is too old"),
        pytest.param({"jupyterhub": "7.0.0b1"}, "fail", id="a hub of the future"),
        pytest.param({}, "warn", id="no hub in this environment"),
    ],
)
def test_the_hub_s_version(monkeypatch: pytest.MonkeyPatch, known: dict[str, str], verdict: str) -> None:
    versions(monkeypatch, **known)
    assert probes.hub().verdict == verdict


def test_the_imitation_of_the_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, configurable_http_proxy="0.4.0")
    assert (probes.proxy().verdict, "imitation" in probes.proxy().advice) == ("fail", True)


@pytest.mark.parametrize(
    ("programs", "verdict"),
    [
        pytest.param(["node", "configurable-http-proxy"], "ok", id="node and proxy"),
        pytest.param(["node"], "warn", id="node alone"),
        pytest.param([], "warn", id="neither"),
    ],
)
def test_node_and_the_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: list[str], verdict: str) -> None:
    versions(monkeypatch)
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\necho v20.1.0\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.proxy().verdict == verdict


def test_simulated_devices_are_said_to_be_simulated() -> None:
    found = probes.gpus(
        GPUQuota(simulated_devices=[{"model": "Sim", "memory_mib": 1, "count": 4}, {"model": "S2", "memory_mib": 1}])
    )
    assert (found.verdict, found.found) == ("warn", "5 simulated devices")


def test_whose_account_jobs_have() -> None:
    assert probes.accounts(0).verdict == "ok"
    assert "REST door" in probes.accounts(1000).advice


def test_cgroups(tmp_path: Path) -> None:
    assert probes.cgroups(tmp_path).verdict == "warn"
    (tmp_path / "cgroup.controllers").write_text("cpu")
    (tmp_path / "cgroup.procs").write_text("")
    assert probes.cgroups(tmp_path).verdict == "ok"


def test_the_subreaper_is_asked_for_and_given_back() -> None:
    before, after = ctypes.c_int(), ctypes.c_int()
    libc = ctypes.CDLL(None)
    libc.prctl(probes.PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    assert probes.subreaper().verdict == "ok"
    libc.prctl(probes.PR_GET_CHILD_SUBREAPER, ctypes.byref(after), 0, 0, 0)
    assert before.value == after.value


def test_the_state_folder(tmp_path: Path) -> None:
    assert "can be made" in probes.state_dir(tmp_path / "a" / "b").found
    tmp_path.chmod(0o700)
    assert probes.state_dir(tmp_path).verdict == "ok"
    tmp_path.chmod(0o777)
    assert (probes.state_dir(tmp_path).verdict, probes.state_dir(tmp_path).advice) == ("fail", f"chmod go-w {tmp_path}")
    (tmp_path / "file").write_text("")
    assert probes.state_dir(tmp_path / "file").verdict == "fail"


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LEAST_FREE", 0)
    assert probes.disk(tmp_path / "later").verdict == "ok"
    monkeypatch.setattr(probes, "LEAST_FREE", 1 << 62)
    assert probes.disk(tmp_path).verdict == "warn"


def test_fsync_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SLOW_FSYNC_S", 60)
    assert probes.fsync(tmp_path).verdict == "ok"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", _no_disk)
    assert probes.fsync(tmp_path).verdict == "fail"
    assert list(tmp_path.iterdir()) == []


def _no_disk(fd: int) -> None:
    raise OSError(5, "Input/output error")


def test_the_service_is_asked_who_one_is() -> None:
    with served(World()) as world:
        found = list(probes.service(world.url, TOKEN))
        assert [(each.what, each.verdict) for each in found] == [("service", "ok"), ("ready", "ok"), ("token", "ok")]
        assert found[2].found == "ann: fraud (member)"
        assert list(probes.service(world.url, "wrong"))[-1].verdict == "warn"


def test_no_service_is_a_warning_with_advice() -> None:
    assert [(each.what, each.verdict) for each in probes.service("http://127.0.0.1:9", None)] == [("service", "warn")]


def test_doctor_prints_lines_and_one_document(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path)])
    assert told.exit_code == 0, told.output
    document = json.loads(CliRunner().invoke(main, ["doctor", "--json", "--state-dir", str(tmp_path)]).stdout)
    assert [each["what"] for each in document] == [
        "python",
        "hub",
        "proxy",
        "gpus",
        "enforcement",
        "accounts",
        "cgroups",
        "subreaper",
        "state folder",
        "disk",
        "fsync",
        "service",
    ]
    assert all(each["found"] and (each["advice"] or each["verdict"] == "ok") for each in document)


def test_doctor_ends_with_1_when_something_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize("settings", ["{", '{"state_dir": 5}', "[]"])
def test_settings_that_cannot_be_read_are_wrong_usage(monkeypatch: pytest.MonkeyPatch, settings: str) -> None:
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_SETTINGS", settings)
    told = CliRunner().invoke(main, ["doctor"])
    assert (told.exit_code, "JUPYTER_GPU_QUOTA_SETTINGS" in told.stderr) == (2, True)
