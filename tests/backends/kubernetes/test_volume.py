"""The volume of jobs: what a job leaves in its folders does not mislead the service, and what is kept of its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import bundle_file
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import JobVolume
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
    paths = volume.paths("J", 1, 0)
    (tmp_path / "outside").mkdir()
    Path(paths.work).mkdir(parents=True)
    for name in ("unpacked", ".unpack-1"):
        Path(paths.work, name).symlink_to(tmp_path / "outside")
    volume.prepare(order("J", "runs on", bundle=DIGEST))
    assert Path(paths.code, "train.py").read_text() == "pass"
    assert not list((tmp_path / "outside").iterdir())
    assert sorted(each.name for each in Path(paths.work).iterdir()) == [".unpack-1", "code", "unpacked"]
    assert not list(Path(paths.control).iterdir())
