"""The trash of a state folder: what cannot be removed is reported, and is removed by a later attempt."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.trash import empty_trash


def program(folder: Path, name: str, script: str) -> Path:
    """A program of this name, in a folder for PATH."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


def failing_rm(folder: Path) -> Path:
    """A program rm that fails, in a folder for PATH."""
    return program(folder, "rm", "echo 'rm: cannot remove: Stale file handle' >&2; exit 1")


def test_what_cannot_be_removed_is_reported_and_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "trash" / "J.1"
    (folder / "work").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{failing_rm(tmp_path / 'bin')}:/usr/bin:/bin")
        assert empty_trash(str(tmp_path)) == {str(folder): "rm: cannot remove: Stale file handle"}
    assert empty_trash(str(tmp_path)) == {}
    assert list((tmp_path / "trash").iterdir()) == []


def test_folders_nested_deeper_than_the_recursion_limit_are_removed(tmp_path: Path) -> None:
    nested = tmp_path.joinpath("trash", "J.1", *["d"] * 1500)
    subprocess.run(["mkdir", "-p", str(nested)], check=True, timeout=60)
    assert empty_trash(str(tmp_path)) == {}
    assert list((tmp_path / "trash").iterdir()) == []


def test_folders_whose_owner_removed_its_own_permissions_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "trash" / "J.1" / "closed"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    folder.chmod(0o000)
    assert empty_trash(str(tmp_path)) == {}


@pytest.mark.parametrize(("user", "changes"), [pytest.param(0, False, id="root"), pytest.param(1000, True, id="other")])
def test_root_changes_no_permissions_in_a_folder_of_a_submitter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, changes: bool
) -> None:
    (tmp_path / "trash" / "J.1").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'bin', 'chmod', f'touch {tmp_path}/changed')}:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert empty_trash(str(tmp_path)) == {}
    assert (tmp_path / "changed").exists() == changes
