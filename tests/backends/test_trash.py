"""The trash of a state folder: what cannot be removed is reported, and is removed by a later attempt."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.trash import empty_trash


def failing_rm(folder: Path) -> Path:
    """A program rm that fails, in a folder for PATH."""
    folder.mkdir()
    program = folder / "rm"
    program.write_text("#!/bin/sh\necho 'rm: cannot remove: Stale file handle' >&2\nexit 1\n")
    program.chmod(0o755)
    return folder


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
