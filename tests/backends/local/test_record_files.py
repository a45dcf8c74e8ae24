"""Records on disk: a record that cannot be written whole leaves the one before it; no lock is awaited for ever."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files import record_files
from jupyter_gpu_quota.backends.job_files.record_files import raise_fence, read_fence, read_record, write_record


def test_a_record_that_a_full_disk_cuts_off_does_not_replace_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = str(tmp_path / "status.json"), os.write
    write_record(path, {"claimed_at": 1})
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    with pytest.raises(OSError, match="No space left"):
        write_record(path, {"claimed_at": 1, "pid": 7})
    assert read_record(path) == {"claimed_at": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"], "each try would leave a file on a full disk"


def test_two_threads_that_write_one_record_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync, written = str(tmp_path / "status.json"), os.fsync, list[int]()

    def during(fd: int) -> None:
        """Another thread writes the whole record while this one waits for the disk."""
        if not written:
            written.append(fd)
            thread = threading.Thread(target=write_record, args=(path, {"by": "another"}))
            thread.start()
            thread.join()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", during)
    write_record(path, {"by": "this"})
    assert read_record(path) == {"by": "this"}
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_a_leader_that_was_frozen_while_it_fenced_does_not_block_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "fence")
    monkeypatch.setattr(record_files, "LOCK_TIMEOUT_S", 0.1)
    with (tmp_path / "fence.lock").open("w") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="locked by another process"):
            raise_fence(path, 2)
        assert read_fence(path) == 0
    assert raise_fence(path, 2) == read_fence(path) == 2
