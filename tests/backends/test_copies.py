"""Copies of the folders of a job whose processes may still run."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.backends.job_files import copies
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import JobVolume


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "model").write_bytes(bytes(range(256)) * 5000)
    (made / "inner" / "model").chmod(0o700)
    os.utime(made / "inner" / "model", (1000, 2000))
    return made


@pytest.mark.parametrize("has_range", [True, False], ids=["the file system copies", "the content is read and written"])
def test_a_copy_has_content_time_and_permissions_for_all(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_range: bool
) -> None:
    if not has_range:
        monkeypatch.setattr(os, "copy_file_range", _no_range)
    copies.copy_folder(source, tmp_path / "target")
    copied = tmp_path / "target" / "inner" / "model"
    assert copied.read_bytes() == (source / "inner" / "model").read_bytes()
    assert (copied.stat().st_mtime, copied.stat().st_mode & 0o777) == (2000, 0o766)
    assert copied.parent.stat().st_mode & 0o777 == 0o777
    assert not list(tmp_path.glob(".*"))


def _no_range(*_: object) -> int:
    raise OSError(38, "not implemented")


def test_links_are_copied_as_links_and_pipes_are_left_out(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "link").symlink_to(tmp_path / "secret")
    (source / "folder").symlink_to(tmp_path)
    os.mkfifo(source / "pipe")
    copies.copy_folder(source, tmp_path / "target")
    assert (tmp_path / "target" / "link").readlink() == tmp_path / "secret"
    assert (tmp_path / "target" / "folder").is_symlink()
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["folder", "inner", "link"]


def test_a_file_that_becomes_a_link_is_not_followed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    real = os.open

    def swapped(name: str, *given: int, **more: int) -> int:
        if name == "model":
            (source / "inner" / "model").unlink()
            (source / "inner" / "model").symlink_to(tmp_path / "secret")
        return real(name, *given, **more)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match="symbolic links"):
        copies.copy_folder(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_file_that_becomes_a_pipe_is_left_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def swapped(name: str, *given: int, **more: int) -> int:
        if name == "model":
            (source / "inner" / "model").unlink()
            os.mkfifo(source / "inner" / "model")
        return real(name, *given, **more)

    monkeypatch.setattr(os, "open", swapped)
    copies.copy_folder(source, tmp_path / "target")
    assert not list((tmp_path / "target" / "inner").iterdir())


MIB = 1 << 20


@pytest.mark.parametrize("has_range", [True, False], ids=["the file system copies", "the content is read and written"])
def test_a_copy_takes_as_much_space_as_what_it_was_made_of(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_range: bool
) -> None:
    if not has_range:
        monkeypatch.setattr(os, "copy_file_range", _no_range)
    with (source / "sparse").open("wb") as file:
        file.seek(16 * MIB)
        file.write(b"data")
        file.truncate(64 * MIB)
    with (source / "hole").open("wb") as file:
        file.truncate(64 * MIB)
    for name in ("again", "inner/again"):
        os.link(source / "inner" / "model", source / name)
    copies.copy_folder(source, tmp_path / "target")
    sparse, hole = ((tmp_path / "target" / name).stat() for name in ("sparse", "hole"))
    assert (tmp_path / "target" / "sparse").read_bytes() == bytes(16 * MIB) + b"data" + bytes(48 * MIB - 4)
    assert hole.st_size == 64 * MIB and (sparse.st_blocks + hole.st_blocks) * 512 < MIB
    names = [tmp_path / "target" / name for name in ("again", "inner/again", "inner/model")]
    assert len({path.stat().st_ino for path in names}) == 1 and names[0].stat().st_nlink == 3
    assert names[0].read_bytes() == (source / "again").read_bytes()


@pytest.mark.parametrize("has_range", [True, False], ids=["the file system copies", "the content is read and written"])
@pytest.mark.parametrize("is_longer", [True, False], ids=["longer", "shorter"])
def test_a_file_that_becomes_longer_or_shorter_while_it_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_range: bool, is_longer: bool
) -> None:
    """A process appends faster than the file is copied, or cuts it at 1,000 bytes."""
    model, real = source / "inner" / "model", os.copy_file_range
    content = model.read_bytes()

    def changes(*given: int) -> int:
        if is_longer:
            assert model.stat().st_size < 10 * len(content), "the copy has no end"
            with model.open("ab") as file:
                file.write(content)
        else:
            os.truncate(model, 1000)
        return real(*given) if has_range else _no_range()

    monkeypatch.setattr(os, "copy_file_range", changes)
    copies.copy_folder(source, tmp_path / "target")
    copied = (tmp_path / "target" / "inner" / "model").read_bytes()
    assert copied == (content if is_longer else content[:1000])


@pytest.mark.parametrize(
    ("call", "number"), [("lseek", errno.EOPNOTSUPP), ("lseek", errno.EINVAL), ("link", errno.EMLINK)]
)
def test_a_file_system_without_holes_or_links_is_copied_in_full(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fails(*given: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    (source / "one").write_bytes(b"content")
    os.link(source / "one", source / "two")
    os.truncate(source / "one", 1 << 20)
    monkeypatch.setattr(os, call, fails)
    copies.copy_folder(source, tmp_path / "copy")
    for name in ("one", "two"):
        assert (tmp_path / "copy" / name).read_bytes() == (source / name).read_bytes()


def test_a_new_file_with_the_inode_of_a_removed_one_is_not_linked_to_its_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of the job may still run, and replace files while they are copied."""
    (source / "a1").write_bytes(b"old")
    (source / "z1").write_bytes(b"new")
    for name in ("a", "z"):
        os.link(source / f"{name}1", source / f"{name}2")
    fstat, one = os.fstat, (source / "a1").stat().st_ino

    def with_inode_of_the_first(file: int) -> SimpleNamespace:
        found = fstat(file)
        figures = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**figures | {"st_ino": one})

    monkeypatch.setattr(os, "fstat", with_inode_of_the_first)
    copies.copy_folder(source, tmp_path / "copy")
    assert [(tmp_path / "copy" / name).read_bytes() for name in ("a2", "z2")] == [b"old", b"new"]


def test_what_an_abandoned_process_writes_does_not_reach_the_job(tmp_path: Path) -> None:
    volume = JobVolume(str(tmp_path))
    volume.make_layout()
    folder = tmp_path / "jobs" / "J" / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "n").write_text("7")
    mounted = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(2):
            volume.detach("J", 1)
        for name, text in (("n", b"8"), ("later", b"9")):
            opened = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=mounted)
            os.write(opened, text)
            os.close(opened)
    finally:
        os.close(mounted)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("n", "7")]
    assert (tmp_path / "jobs/J/detached/1/checkpoint/n").read_text() == "8"
    volume.record_end({"job": "J", "attempt": 1, "rank": 0, "ended_at": 1, "unconfirmed": True}, None)
    for _ in range(2):
        volume.drop_detached("J", 1)
    assert not (tmp_path / "jobs/J/detached/1/checkpoint").exists() and (folder / "n").read_text() == "7"
    volume.detach("J", 1)
    assert not (tmp_path / "jobs/J/detached/1/checkpoint").exists(), "an order of before changes nothing"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param({}, None, id="no attempt"),
        pytest.param({1: False}, None, id="its end was seen"),
        pytest.param({1: True}, 1, id="it may still run"),
        pytest.param({1: True, 2: False}, None, id="the second attempt began with copies"),
        pytest.param({1: False, 2: True}, 2, id="the second one may still run"),
    ],
)
def test_the_attempt_whose_containers_may_still_run(
    tmp_path: Path, ends: dict[int, bool], expected: int | None
) -> None:
    volume = JobVolume(str(tmp_path))
    for attempt, unconfirmed in ends.items():
        for rank in range(2):
            status = {"job": "J", "attempt": attempt, "rank": rank, "ended_at": 1}
            volume.record_end({**status, "unconfirmed": unconfirmed and rank == 1}, None)
        control = volume.paths("J", attempt, 0).control
        shutil.copytree(control, f"{control}.bak")
    assert volume.unconfirmed_before("J", 4) == expected


def test_a_copy_that_was_interrupted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = JobVolume(str(tmp_path))
    volume.make_layout()
    for name in ("work", "checkpoint"):
        (tmp_path / "jobs/J" / name).mkdir(parents=True)
        (tmp_path / "jobs/J" / name / "n").write_text(name)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchmod", _no_range)
        with pytest.raises(OSError, match="not implemented"):
            volume.detach("J", 1)
    volume.detach("J", 1)
    assert (tmp_path / "jobs/J/work/n").read_text() == "work"
    assert (tmp_path / "jobs/J/checkpoint/n").read_text() == "checkpoint"


@pytest.mark.parametrize("is_slower", [True, False], ids=["the other one is faster", "the other one is killed"])
def test_a_target_is_complete_with_two_processes_that_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slower: bool
) -> None:
    """The second one copies all, or a part, while the first one is at its first file."""
    real, target = copies._copy_file, tmp_path / "target"
    (source / "other").write_text("other")

    def interrupted(old: int, new: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(copies, "_copy_file", real if is_slower else _no_range)
            patch.setattr(shutil, "rmtree", shutil.rmtree if is_slower else lambda *_, **__: None)
            with contextlib.nullcontext() if is_slower else pytest.raises(OSError, match="not implemented"):
                copies.copy_folder(source, target)
        monkeypatch.setattr(copies, "_copy_file", real)
        real(old, new)

    monkeypatch.setattr(copies, "_copy_file", interrupted)
    copies.copy_folder(source, target)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == ["inner", "inner/model", "other"]
    assert not list(tmp_path.glob(".*")), "no part of a copy is left"


def test_a_copy_that_lost_files_is_not_used(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(old: int, new: int) -> None:
        for partial in tmp_path.glob(".target.*"):
            shutil.rmtree(partial)

    (source / "other").write_text("other")
    monkeypatch.setattr(copies, "_copy_file", removed)
    with pytest.raises(FileNotFoundError):
        copies.copy_folder(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()
