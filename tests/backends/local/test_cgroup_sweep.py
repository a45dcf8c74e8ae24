"""Sweeps of cgroups: none removes the cgroup of work that is about to start, not even after a freeze."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import active_marker
from jupyter_gpu_quota.backends.local.enforcement import cgroup
from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup, notebook_cgroup
from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from tests.backends.worlds import KINDS


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroups:
    """A folder in place of cgroup v2: an empty folder can be removed like an empty cgroup."""
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr(cgroup, "mounted", lambda: root)
    monkeypatch.setattr(cgroup, "own_group", lambda: "/")
    return Cgroups(tmp_path / "state")


def test_the_cgroup_of_a_notebook_that_was_booked_during_a_run_is_kept(tmp_path: Path, cgroups: Cgroups) -> None:
    enforcement = LocalEnforcement(tmp_path / "state", limits=lambda requests: [])
    name = notebook_cgroup("booked-meanwhile")
    cgroups.make(name)
    enforcement.sweep(frozenset(), ())
    assert cgroups.exists(name), "this list of notebooks was read before the slice was booked"
    enforcement.sweep(frozenset({"booked-meanwhile"}), ())
    enforcement.sweep(frozenset(), ())
    assert cgroups.exists(name)
    enforcement.sweep(frozenset(), ())
    assert not cgroups.exists(name), "the slice was returned"


def test_a_frozen_controller_keeps_the_cgroup_of_a_rank_that_its_successor_starts(
    tmp_path: Path, cgroups: Cgroups
) -> None:
    frozen = LocalJobs(tmp_path / "state", simulated_devices=KINDS)
    try:
        Path(active_marker(str(tmp_path / "state"), "J", 1)).touch()  # as the successor does before it makes the cgroup
        cgroups.make(job_cgroup("J", 1, 0))
        frozen._sweep()
        assert cgroups.exists(job_cgroup("J", 1, 0))
        Path(active_marker(str(tmp_path / "state"), "J", 1)).unlink()
        frozen._sweep()
        assert not cgroups.exists(job_cgroup("J", 1, 0))
    finally:
        frozen.close()
