"""Sizes of outputs: real files, removals while they are measured, and folders that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files import disk_use
from jupyter_gpu_quota.backends.job_files.disk_use import MAX_DEPTH, Links, Measured, OutputSizes, measure
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.protocol import TOO_DEEP_MIB


class Disk:
    """The outputs of a job "j": one file of more than 3 MiB."""

    def __init__(self, state_dir: Path) -> None:
        self.sizes = OutputSizes(str(state_dir))
        self.outputs = Path(rank_paths(str(state_dir), "j", 0, 0).outputs)
        self.outputs.mkdir(parents=True)
        (state_dir / "trash").mkdir()
        (self.outputs / "file").write_bytes(os.urandom((3 << 20) + 1))

    def measured(self) -> object:
        self.sizes.measure(["j"])
        return self.sizes.sizes(["j"])


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_the_size_is_rounded_up_and_0_where_there_is_no_folder(disk: Disk) -> None:
    assert disk.measured() == {"j": 4}
    disk.sizes.measure(["none"])
    assert disk.sizes.sizes(["none"]) == {"none": 0}


def test_a_measurement_that_is_older_than_the_removal_is_discarded(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed_meanwhile(path: str, into: Measured) -> Iterator[None]:
        yield from measure(path, into)
        disk.sizes.move_to_trash("j")

    monkeypatch.setattr(disk_use, "measure", removed_meanwhile)
    assert disk.measured() == {}
    monkeypatch.undo()
    disk.sizes.move_to_trash("j")
    assert disk.measured() == {"j": 0}
    disk.sizes.move_to_trash("j")  # repeated until it is observed
    assert disk.sizes.sizes(["j"]) == {"j": 0}


def test_an_old_size_is_measured_again_if_the_outputs_are_gone(disk: Disk) -> None:
    assert disk.measured() == {"j": 4}
    disk.outputs.rename(disk.outputs.with_name("moved by another process"))
    disk.sizes.move_to_trash("j")
    assert disk.sizes.sizes(["j"]) == {}
    assert disk.measured() == {"j": 0}


@pytest.mark.parametrize("place", ["outputs", "outputs/below"])
def test_the_size_of_a_folder_that_cannot_be_read_is_unknown(
    disk: Disk, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk.outputs / "below").mkdir()
    usual, name = os.open, Path(place).name

    def refused(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if Path(path).name == name:
            raise PermissionError(13, "Permission denied", path)
        return usual(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refused)
    assert disk.measured() == {"j": None}
    assert disk.sizes.sizes(["j"]) == {}  # to be measured again
    monkeypatch.undo()
    assert disk.measured() == {"j": 4}


def test_a_folder_that_fails_while_it_is_read_makes_the_size_unknown(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(fd: int) -> object:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "scandir", stale)
    assert disk.measured() == {"j": None}
    monkeypatch.undo()
    assert disk.measured() == {"j": 4}


def test_folders_that_are_nested_too_deeply_exceed_every_limit(disk: Disk) -> None:
    disk.outputs.joinpath(*["d"] * (MAX_DEPTH + 2)).mkdir(parents=True)
    assert disk.measured() == {"j": TOO_DEEP_MIB}


@pytest.mark.parametrize(("most", "mib"), [(100, 1), (0, 3)], ids=["once", "by each name where there are too many"])
def test_a_file_with_several_names_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, mib: int) -> None:
    monkeypatch.setattr(disk_use, "MAX_LINKS", most)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "checkpoint" / "last").write_bytes(os.urandom(1 << 20))
    for name in ("checkpoint/best", "work/start"):
        (tmp_path / name).hardlink_to(tmp_path / "checkpoint" / "last")
    links = Links()
    found = [Measured(links), Measured(links)]
    for name, into in zip(("checkpoint", "work"), found, strict=True):
        list(measure(str(tmp_path / name), into))
    assert sum(each.size_bytes for each in found) // (1 << 20) == mib
