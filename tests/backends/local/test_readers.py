"""The local backend's checks of a job before it is queued."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.readers import LocalSubmissionChecks
from jupyter_gpu_quota.backends.protocol import JobRefused

CHECKS = LocalSubmissionChecks()


@pytest.mark.parametrize(
    ("user", "words"),
    [
        pytest.param("no-such-account", "There is no account 'no-such-account'", id="a user without an account"),
        pytest.param("root", "would run as root", id="root"),
    ],
)
def test_a_user_who_cannot_run_jobs_is_refused_with_the_reason(user: str, words: str) -> None:
    with pytest.raises(JobRefused, match=words) as refused:
        CHECKS.check_user(user)
    assert refused.value.code == "no_account"
    with pytest.raises(JobRefused, match=words):
        CHECKS.live_directory(user, ".")


@pytest.mark.parametrize(
    ("directory", "below"),
    [
        pytest.param("work/a", "work/a", id="a relative path is below the home"),
        pytest.param(".", "", id="the home itself"),
        pytest.param("HOME/work", "work", id="an absolute path below the home"),
    ],
)
def test_a_live_job_runs_below_the_home_of_the_service_s_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str, below: str
) -> None:
    (tmp_path / "work" / "a").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = directory.replace("HOME", str(tmp_path))
    assert CHECKS.live_directory(None, directory) == os.path.normpath(tmp_path / below)


@pytest.mark.parametrize("directory", ["nowhere", "file/below"])
def test_a_live_directory_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(JobRefused, match=f"There is no folder {tmp_path / directory}; a live job runs"):
        CHECKS.live_directory(None, directory)


@pytest.mark.parametrize("directory", ["/etc", "work/../../elsewhere"])
def test_a_live_directory_elsewhere_is_refused(directory: str) -> None:
    with pytest.raises(JobRefused, match="below its submitter's home") as refused:
        CHECKS.live_directory(None, directory)
    assert refused.value.code == "path"


def test_a_live_job_of_a_user_runs_below_that_user_s_home() -> None:
    others = [entry for entry in pwd.getpwall() if entry.pw_uid]
    if not others:
        pytest.skip("this machine has no account beside root")
    user = others[0]
    assert CHECKS.live_directory(user.pw_name, ".") == os.path.normpath(user.pw_dir)
