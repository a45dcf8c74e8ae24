"""Where the programs of the control plane are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kube import build


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_programs_of_kubebuilder_assets_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets, cache = tmp_path / "assets", tmp_path / "cache"
    etcd, _ = program(assets, "etcd"), program(cache, "etcd")
    kwok = program(cache, "kwok")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setattr(build, "folder", lambda module: cache)
    assert (build.find("etcd"), build.find("kwok"), build.find("kube-apiserver")) == (etcd, kwok, None)


def test_another_version_of_a_module_builds_into_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    before = {module: build.folder(module) for module in ("kubernetes", "kwok")}
    shutil.copytree(build.HERE / "tools", tmp_path / "tools")
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.folder("kwok") == before["kwok"]
    with (tmp_path / "tools" / "kwok" / "go.sum").open("a") as file:
        file.write("changed\n")
    assert build.folder("kwok") != before["kwok"]
    assert build.folder("kubernetes") == before["kubernetes"], "the others need no new build"


def test_the_programs_report_the_version_of_their_module() -> None:
    assert "-X k8s.io/component-base/version.gitVersion=v1." in build.version_flags()
