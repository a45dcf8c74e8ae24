"""Sweeps of cgroups: none removes the cgroup of work that is about to start, not even after a freeze."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import active_marker
from jupyter_gpu_quota.backends.local.enforcement import cgroup
from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup, notebook_cgroup
from jupyter_gpu_quota.backends.local.enforcement.limiter import Limiter
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer, LimitRequest
from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare
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


def test_a_cgroup_is_made_while_the_last_other_one_is_removed(
    cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal takes the parent with it, between the two steps that make the other one."""
    enable, last = cgroup._enable, job_cgroup("J", 1, 0)
    cgroups.make(last)

    def removed_meanwhile(folder: Path, controller: str) -> None:
        enable(folder, controller)
        if cgroups.exists(last):
            cgroups.remove(last)

    monkeypatch.setattr(cgroup, "_enable", removed_meanwhile)
    assert cgroups.make(job_cgroup("K", 1, 0)) == "" and cgroups.exists(job_cgroup("K", 1, 0))


@pytest.mark.parametrize(
    ("answer", "is_removed"),
    [
        pytest.param(LimitAnswer(why="the driver reports no limit", is_known=True), True, id="the limit is removed"),
        pytest.param(LimitAnswer(why="NVML: Not Supported", is_known=True), True, id="the driver has no limits"),
        pytest.param(LimitAnswer(why="the driver's library does not answer"), False, id="the driver hangs"),
    ],
)
def test_a_cgroup_stays_until_its_limits_are_removed(cgroups: Cgroups, answer: LimitAnswer, is_removed: bool) -> None:
    name, asked, now = job_cgroup("J", 1, 0), list[LimitRequest](), [0.0]

    def limits(requests: Sequence[LimitRequest]) -> list[LimitAnswer]:
        asked.extend(requests)
        now[0] += 0 if answer.is_known else 30
        return [answer] * len(requests)

    limiter = Limiter(cgroups, limits, lambda: now[0])
    share = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=4000)
    cgroups.make(name)
    assert not limiter.limit(name, [share]), "which is why the driver is not asked for limits for a while"
    for _ in range(2):
        assert limiter.release(name, ["GPU-0"]) == is_removed != cgroups.exists(name)
    assert [request.mib for request in asked] == [4000, 0], "a driver that hangs is not asked twice in a row"
    now[0] += 30
    limiter.release(name, ["GPU-0"])
    assert len(asked) == (2 if is_removed else 3)


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
