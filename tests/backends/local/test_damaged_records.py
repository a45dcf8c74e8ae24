"""A damaged record, or one that the disk does not return, concerns its own job only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.attempt_records import JobAttempts
from jupyter_gpu_quota.backends.job_files.outputs import JobOutputs
from jupyter_gpu_quota.backends.job_files.paths import active_marker, job_directory, rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.backends.local.jobs import executor as local
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs, make_control, make_layout
from tests.backends.worlds import stop
from tests.patience import until

CLAIMED = {"job": "damaged", "attempt": 1, "rank": 0, "claimed_at": 1}


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalJobs]:
    """One job whose record is sound, and one whose record a test writes."""
    made = LocalJobs(tmp_path, simulated_devices=[{"model": "X", "memory_mib": 1000, "count": 1}])
    made.close()
    sound = {**CLAIMED, "job": "sound", "ended_at": 2, "exit_status": 0, "tree_gone": True}
    for record in (CLAIMED, sound):
        write(tmp_path, record)
        Path(active_marker(str(tmp_path), str(record["job"]), 1)).touch()
    made = LocalJobs(tmp_path, simulated_devices=[{"model": "X", "memory_mib": 1000, "count": 1}])
    yield made
    made.close()


def write(state_dir: Path, record: dict[str, object]) -> None:
    paths = rank_paths(str(state_dir), str(record["job"]), 1, 0)
    make_control(paths)
    Path(paths.status).write_text(json.dumps(record))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(CLAIMED, id="without its supervisor"),
        pytest.param({**CLAIMED, "supervisor": None}, id="a supervisor of another type"),
        pytest.param({**CLAIMED, "supervisor": {"pid": 1}}, id="a supervisor without its start"),
        pytest.param({"job": "damaged", "claimed_at": 1, "tree_gone": True}, id="without its attempt"),
    ],
)
def test_a_damaged_record_hides_no_other_job(
    executor: LocalJobs, tmp_path: Path, record: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, record)
    for _ in range(3):
        assert [fact.job for fact in executor.observe()] == ["sound"]
        assert executor.pids() == {}
    said = [each.message for each in caplog.records if "cannot be read" in each.message]
    assert len(said) == 1 and "remove status.json there and cancel the job" in said[0]


def test_a_record_that_the_disk_does_not_return_hides_no_other_job(
    executor: LocalJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = local.read_record

    def fails(path: str) -> dict[str, object] | None:
        if "/damaged/" in path:
            raise OSError(5, "Input/output error", path)
        return read(path)

    monkeypatch.setattr(local, "read_record", fails)
    assert [fact.job for fact in executor.observe()] == ["sound"]
    assert executor.pids() == {}
    for job in ("damaged", "sound"):
        executor.settled(job, 1)
    for remove in (executor.forget, executor.remove_outputs):
        with pytest.raises(OSError, match="attempt 1 of job damaged may still have processes"):
            remove("damaged")
    executor.forget("sound")
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["damaged"]


def test_a_job_whose_damaged_record_was_removed_can_be_cancelled(executor: LocalJobs, tmp_path: Path) -> None:
    executor.observe()
    Path(rank_paths(str(tmp_path), "damaged", 1, 0).status).unlink()
    executor.stop(stop("damaged"))
    until(lambda: any(fact.job == "damaged" and fact.tree_gone for fact in executor.observe()), what="its end")


@pytest.mark.parametrize(
    ("name", "is_loop"),
    [
        pytest.param("attempts/1/rank-0/status.json", False, id="the record of a rank"),
        pytest.param("attempts/1/rank-0/status.json", True, id="the record of a rank, also by its name"),
        pytest.param("attempts/1/rank-0/watch.json", False, id="a further record of a rank"),
        pytest.param("attempts/1", True, id="the folder of an attempt"),
        pytest.param("attempts", True, id="the folder of all attempts"),
    ],
)
def test_an_attempt_that_cannot_be_read_is_a_running_one(
    executor: LocalJobs, tmp_path: Path, name: str, is_loop: bool
) -> None:
    path = Path(job_directory(str(tmp_path), "damaged"), name)
    if path.exists():
        path.rename(tmp_path / "kept")
    if is_loop:
        path.symlink_to(path)
    else:
        path.mkdir()
    damaged, sound = JobAttempts(tmp_path).newest([])
    assert (damaged.job, damaged.attempt, damaged.runs, len(damaged.facts)) == ("damaged", 1, True, 1)
    assert (sound.job, sound.has_processes) == ("sound", False)


def test_no_attempts_are_assumed_where_neither_their_folder_nor_a_marker_says_which(tmp_path: Path) -> None:
    make_layout(str(tmp_path))
    Path(job_directory(str(tmp_path), "damaged")).mkdir()
    Path(job_directory(str(tmp_path), "damaged"), "attempts").touch()
    with pytest.raises(NotADirectoryError):
        JobAttempts(tmp_path).newest(["damaged"])


def test_copies_beside_the_records_of_a_job_are_ignored(executor: LocalJobs, tmp_path: Path) -> None:
    attempts = Path(job_directory(str(tmp_path), "sound"), "attempts")
    shutil.copytree(attempts / "1" / "rank-0", attempts / "1" / "rank-0.bak")
    shutil.copytree(attempts / "1", attempts / "1.bak")
    for name in ("sound.1.bak", ".1", "note"):
        (tmp_path / "active" / name).touch()
    assert "sound" in {fact.job for fact in executor.observe()}
    later = LocalJobs(tmp_path, simulated_devices=[{"model": "X", "memory_mib": 1000, "count": 1}])
    later.close()
    records = JobAttempts(tmp_path)
    assert records.unsettled() == {("damaged", 1), ("sound", 1)}
    assert [(each.job, each.attempt, len(each.facts)) for each in records.newest(["sound"])] == [
        ("damaged", 1, 1), ("sound", 1, 1),
    ]  # fmt: skip
    executor.remove_outputs("sound")
    executor.forget("sound")
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["damaged"]


def test_an_offset_that_the_file_system_refuses_is_beyond_the_end(tmp_path: Path) -> None:
    RotatingLog(rank_paths(str(tmp_path), "job", 1, 0).log, 1 << 20).write(b"hello\n")
    part = JobOutputs(tmp_path).log("job", 1, 0, offset=10**15)  # the maximum of GET jobs/{id}/logs
    assert (part.data, part.next_offset) == (b"", 10**15)
