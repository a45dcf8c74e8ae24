"""The volume of jobs: what a job leaves in its folders does not mislead the service, and what is kept of its end."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.outputs import JobOutputs
from jupyter_gpu_quota.backends.job_files.paths import bundle_file
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import FULL_DISK_S, JobVolume
from jupyter_gpu_quota.bundle import pack
from tests.backends.worlds import order

DIGEST = "0" * 64


@pytest.fixture
def volume(tmp_path: Path) -> JobVolume:
    made = JobVolume(str(tmp_path / "volume"))
    made.make_layout()
    return made


def has_link(pause: Path) -> None:
    pause.symlink_to("../../../../../database")


def has_link_to_nothing(pause: Path) -> None:
    pause.symlink_to("../../../../../new")


@pytest.mark.parametrize("left", [has_link, has_link_to_nothing, os.mkfifo, Path.mkdir])
@pytest.mark.timeout(20)
def test_a_pause_request_opens_nothing_that_a_job_left_at_its_path(volume: JobVolume, left: object) -> None:
    volume.prepare(order("J", "runs on"))
    database = Path(volume.state_dir, "database")
    database.write_text("rows")
    left(Path(volume.paths("J", 1, 0).pause))  # type: ignore[operator]
    volume.request_pause("J", 1, 0, "reclaim")
    assert database.read_text() == "rows" and not Path(volume.state_dir, "new").exists()


def test_a_pause_request_makes_the_pause_file(volume: JobVolume) -> None:
    volume.prepare(order("J", "runs on"))
    for _ in range(2):
        volume.request_pause("J", 1, 0, "reclaim")
    pause = Path(volume.paths("J", 1, 0).pause)
    assert pause.read_text() == "reclaim\n" and pause.stat().st_mode & 0o444 == 0o444


def test_code_is_unpacked_where_no_rank_can_write(volume: JobVolume, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    packed = Path(bundle_file(f"{volume.state_dir}/bundles", DIGEST))
    packed.parent.mkdir(parents=True)
    pack(tmp_path / "code", packed)
    assert volume.has_code("J", DIGEST)
    paths = volume.paths("J", 1, 0)
    (tmp_path / "outside").mkdir()
    Path(paths.work).mkdir(parents=True)
    for name in ("unpacked", ".unpack-1"):
        Path(paths.work, name).symlink_to(tmp_path / "outside")
    volume.prepare(order("J", "runs on", bundle=DIGEST))
    assert Path(paths.code, "train.py").read_text() == "pass"
    assert Path(paths.code).stat().st_mode & 0o777 == 0o777, "a pod may have any account"
    assert not list((tmp_path / "outside").iterdir())
    assert sorted(each.name for each in Path(paths.work).iterdir()) == [".unpack-1", "code", "unpacked"]
    assert not list(Path(paths.control).iterdir())
    packed.unlink()
    assert volume.has_code("J", DIGEST) and not volume.has_code("K", DIGEST)


def end(seconds_ago: float = 0) -> dict[str, Any]:
    """The status of a rank that ended, by the clock of its node."""
    ended_at = int(1000 * (time.time() - seconds_ago))
    return {"job": "J", "attempt": 1, "rank": 0, "ended_at": ended_at, "exit_status": 0, "tree_gone": True}


CLOCKS = [pytest.param(3600, id="a clock that is behind"), pytest.param(-3600, id="a clock that is ahead")]


def log_of(volume: JobVolume) -> bytes:
    return JobOutputs(volume.state_dir).log("J", 1, 0).data


def test_a_process_that_is_killed_while_it_keeps_a_log_loses_none_of_it(
    volume: JobVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    for step in ("write", "close"):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(RotatingLog, step, killed)
            volume.record_end(end(), b"all of it\n")
        assert volume.ended("J", 1, 0) is None and log_of(volume) == b""
    volume.record_end(end(), b"all of it\n")
    assert log_of(volume) == b"all of it\n"
    assert sorted(each.name for each in Path(volume.paths("J", 1, 0).control).iterdir()) == ["log", "status.json"]


def test_an_empty_log_of_a_killed_process_of_an_earlier_release_is_none(volume: JobVolume) -> None:
    Path(volume.paths("J", 1, 0).log).mkdir(parents=True)
    volume.record_end(end(), b"all of it\n")
    assert log_of(volume) == b"all of it\n"


@pytest.mark.parametrize("seconds_ago", CLOCKS)
def test_a_log_waits_for_room_on_the_volume_and_not_for_ever(
    volume: JobVolume, monkeypatch: pytest.MonkeyPatch, seconds_ago: float
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(RotatingLog, "_append", lambda log, part: False)
        with pytest.raises(OSError, match="10 bytes of the log cannot be written"):
            volume.record_end(end(seconds_ago), b"all of it\n", FULL_DISK_S - 1)
        assert volume.ended("J", 1, 0) is None
        volume.record_end(end(seconds_ago) | {"job": "K"}, b"all of it\n", FULL_DISK_S)
    assert volume.ended("K", 1, 0) is not None
    volume.record_end(end(), b"all of it\n")
    assert log_of(volume) == b"all of it\n"


@pytest.mark.parametrize("seconds_ago", CLOCKS)
def test_an_end_waits_for_room_for_its_record_and_not_for_ever(
    volume: JobVolume, monkeypatch: pytest.MonkeyPatch, seconds_ago: float
) -> None:
    def is_full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.volume.write_record", is_full)
        found = end(seconds_ago)
        for waits, waited_s in ((found, FULL_DISK_S - 1), (found | {"unconfirmed": True}, FULL_DISK_S)):
            with pytest.raises(OSError, match="No space left"):
                volume.record_end(waits, b"all of it\n", waited_s)
        assert volume.record_end(found, b"all of it\n", FULL_DISK_S)["exit_status"] == 0
    assert volume.ended("J", 1, 0) is None


def test_the_log_of_an_end_is_closed(volume: JobVolume) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        volume.record_end(end() | {"attempt": number}, b"line\n")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20
