"""Retention removes old records; a process that is killed in between leaves nothing behind."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.controllers import retention as retention_module
from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.retention import BUNDLES_EVERY_MS, DAY_MS, EVERY_MS, Retention, RetentionTimes
from jupyter_gpu_quota.core.model import Node
from jupyter_gpu_quota.store.records.calls import LeaseLost
from jupyter_gpu_quota.store.records.commands import (
    ApplyQuota,
    ChangeJob,
    ForgetBundles,
    KeepBundle,
    Recorded,
    SetInventory,
)
from tests.backends.fake_executor import FakeJobs
from tests.controllers.setups.scheduling import DEVICES, QUOTA, World


class Killed(Exception):
    """Stands for a process that ends between two lines."""


@dataclass
class Bundles:
    kept: list[set[str]] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)

    def sweep(self, keep: set[str]) -> None:
        self.kept.append(keep)

    def is_kept(self, digest: str) -> bool:
        return digest in self.stored


class Site:
    """One job that was cancelled 31 days ago, and one that waits."""

    def __init__(self) -> None:
        self.world, self.bundles = World(), Bundles()
        self.world.submit("bob", "old", bundle="a" * 64)
        self.world.store.record([ChangeJob(job="old", actor="bob", change="cancel")], now=self.world.now)
        self.world.now += 31 * DAY_MS
        self.world.submit("bob", "new", bundle="b" * 64)
        self.leadership = Leadership(self.world.store, lambda: self.world.now, holder="first")
        self.leadership.renew(self.world.now)

    def retention(self) -> Retention:
        world = self.world
        return Retention(world.store, self.leadership, world.executor, self.bundles, RetentionTimes())


def test_old_jobs_and_their_bundles_are_removed_from_backend_and_store() -> None:
    site = Site()
    assert site.retention().run_once(site.world.now) == site.world.now + EVERY_MS
    assert site.world.executor.forgotten == ["old"]
    assert site.world.store.job("old") is None and site.world.store.job("new") is not None
    assert site.bundles.kept == [{"b" * 64}]


def test_devices_that_are_gone_for_a_week_are_forgotten() -> None:
    site = Site()
    store, (kept, *others) = site.world.store, DEVICES
    node = Node(id=kept.node, name=kept.node, cpu_milli=1000, memory_mib=1000)
    store.record([SetInventory(nodes=(node,), devices=(kept, *others))], now=site.world.now)
    store.record([SetInventory(nodes=(node,), devices=(kept,))], now=site.world.now)
    for days, listed in ((7, 1 + len(others)), (0, 1)):
        site.world.now += days * DAY_MS + 1 - bool(days)
        site.leadership.renew(site.world.now)
        site.retention().run_once(site.world.now)
        assert len(store.changes(0).devices) == listed


def test_unused_bundles_are_removed_once_an_hour() -> None:
    site = Site()
    retention = site.retention()
    for _ in range(2 * BUNDLES_EVERY_MS // EVERY_MS):
        site.leadership.renew(site.world.now)
        site.world.now = retention.run_once(site.world.now)
    assert len(site.bundles.kept) == 2


def test_the_records_of_bundles_that_are_gone_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    store, (used, gone, recent) = site.world.store, (letter * 64 for letter in "bcd")
    kept = [KeepBundle(digest=each, user="bob", size_bytes=1) for each in (used, gone, recent)]
    store.record([*kept, KeepBundle(digest=gone, user="olga", size_bytes=1)], now=site.world.now)
    site.bundles.stored = {recent}
    monkeypatch.setattr(retention_module, "BUNDLES_AT_A_TIME", 1)
    retention = site.retention()
    for _ in range(3):
        site.world.now += EVERY_MS
        site.leadership.renew(site.world.now)
        retention.run_once(site.world.now)
    assert store.bundle_owners() == [(used, "bob"), (recent, "bob")]
    assert not store.bundle_owned(gone, "bob") and store.bundle_owned(used, "bob")


def test_the_record_of_a_bundle_that_is_stored_again_meanwhile_stays() -> None:
    site = Site()
    store, digest, now = site.world.store, "b" * 64, site.world.now
    store.record([KeepBundle(digest=digest, user="bob", size_bytes=1)], now=now)
    store.record([KeepBundle(digest=digest, user="bob", size_bytes=1)], now=now + 5)
    store.record([ForgetBundles(bundles=((digest, "bob"),), kept_before=now + 5)], now=now + 9)
    assert store.bundle_owners() == [(digest, "bob")]
    store.record([ForgetBundles(bundles=((digest, "bob"),), kept_before=now + 6)], now=now + 9)
    assert store.bundle_owners() == []


@pytest.mark.parametrize("killed_in", ["backend", "store"])
def test_a_killed_process_leaves_nothing_behind(killed_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    def killed(*given: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(*((FakeJobs, "forget") if killed_in == "backend" else (site.world.store, "forget")), killed)
        with pytest.raises(Killed):
            site.retention().run_once(site.world.now)
    site.retention().run_once(site.world.now)
    assert site.world.executor.forgotten[-1:] == ["old"] and site.world.store.job("old") is None


def test_a_job_whose_files_cannot_be_removed_keeps_its_rows(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    executor, retention = site.world.executor, site.retention()
    executor.unforgettable["old"] = "cluster west is left out"
    for _ in range(2):
        retention.run_once(site.world.now)
        assert site.world.store.job("old") is not None
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == "1 ended jobs stay until their files can be removed: cluster west is left out"
    executor.unforgettable.clear()
    retention.run_once(site.world.now)
    assert site.world.store.job("old") is None and executor.forgotten == ["old"]


def test_jobs_whose_files_cannot_be_removed_delay_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("store.queries", "controllers.retention"):
        monkeypatch.setattr(f"jupyter_gpu_quota.{module}.JOBS_AT_A_TIME", 1)
    site = Site()
    site.world.store.record([ChangeJob(job="new", actor="bob", change="cancel")], now=site.world.now)
    site.world.now += 31 * DAY_MS
    site.leadership.renew(site.world.now)
    site.world.executor.unforgettable["old"] = "cluster west is left out"
    retention = site.retention()
    for _ in range(2):
        retention.run_once(site.world.now)
    assert site.world.store.job("new") is None and site.world.store.job("old") is not None
    site.world.executor.unforgettable.clear()
    for _ in range(2):
        retention.run_once(site.world.now)
    assert site.world.store.job("old") is None


def test_a_job_that_may_still_run_keeps_its_rows(tmp_path: Path) -> None:
    site = Site()
    status = tmp_path / "jobs" / "old" / "attempts" / "1" / "rank-0" / "status.json"
    status.mkdir(parents=True)  # it cannot be read
    executor = LocalJobs(tmp_path, simulated_devices=[{"model": "X", "memory_mib": 1000, "count": 1}])
    retention = Retention(site.world.store, site.leadership, executor, site.bundles, RetentionTimes())
    for is_kept in (True, False):
        retention.run_once(site.world.now)
        assert (tmp_path / "jobs" / "old").exists() is (site.world.store.job("old") is not None) is is_kept
        if is_kept:
            status.rmdir()
    executor.close()


def test_no_job_is_removed_while_the_newest_quota_file_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    apply_unreadable(site.world)
    site.leadership.renew(site.world.now)
    retention = site.retention()
    for _ in range(2):
        retention.run_once(site.world.now)
    assert site.world.store.job("old") is not None and site.world.executor.forgotten == []
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert said.startswith(
        "no job and no output is removed after its time: revision 2 of the quota file cannot be read"
    )
    site.world.apply_quota(QUOTA)
    retention.run_once(site.world.now)
    assert site.world.store.job("old") is None


def apply_unreadable(world: World) -> None:
    """A quota file of a newer release."""
    file = quotafile.parse(QUOTA)
    assert not isinstance(file, list)
    request = ApplyQuota(
        actor="a",
        text=QUOTA,
        document={**file.to_document(), "later": 1},
        policy=file.policy(2),
        expected_revision=None,
    )
    assert isinstance(world.store.record([request], now=world.now)[0], Recorded)


def test_nothing_is_removed_without_the_lease() -> None:
    site = Site()
    site.world.now += 10_000
    with pytest.raises(LeaseLost):
        site.retention().run_once(site.world.now)
    assert site.world.store.job("old") is not None


def test_no_row_is_removed_where_the_lease_ends_while_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    def freezes(executor: FakeJobs, job: str) -> None:
        site.world.now += 4_000

    monkeypatch.setattr(FakeJobs, "forget", freezes)
    with pytest.raises(LeaseLost):
        site.retention().run_once(site.world.now)
    assert site.world.store.job("old") is not None


def test_jobs_are_kept_as_long_as_their_use_counts_in_the_queue() -> None:
    site = Site()
    site.world.apply_quota(QUOTA + "  history: {k: 1, half_life: 7d, window: 60d}\n")
    site.world.now += 30 * DAY_MS - 1
    for is_kept in (True, False):
        site.leadership.renew(site.world.now)
        site.retention().run_once(site.world.now)
        assert (site.world.store.job("old") is not None) is is_kept
        site.world.now += 1
