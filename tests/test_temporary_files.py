"""Temporary files are in memory where it has room for all of a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOM, has_room


@pytest.mark.parametrize(
    ("free", "flags", "is_used"),
    [
        pytest.param(ROOM, 0, True, id="has room"),
        pytest.param(ROOM - 1, 0, False, id="is too small"),
        pytest.param(ROOM, os.ST_NOEXEC, False, id="runs no programs"),
    ],
)
def test_a_folder_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, flags: int, is_used: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    assert has_room(tmp_path) == is_used


def test_a_folder_that_does_not_exist_is_not_used(tmp_path: Path) -> None:
    assert not has_room(tmp_path / "shm")
