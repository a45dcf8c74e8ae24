"""Outputs of ended jobs: measured, totalled by project, and removed in time or at a user's request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.retention import DAY_MS, Retention, RetentionTimes
from jupyter_gpu_quota.controllers.retention.output_retention import JOBS_A_RUN
from jupyter_gpu_quota.store.records.activity import OUTPUTS_TOTAL
from jupyter_gpu_quota.store.records.calls import LeaseLost, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ChangeJob, OutputsExpired, Recorded, Refusal, RemoveOutputs
from tests.backends.fake_executor import FakeJobs
from tests.controllers.setups.scheduling import QUOTA, World
from tests.controllers.test_retention import Bundles, apply_unreadable

STORAGE = "storage: {outputs: 1GiB, keep: 2d}"
LIMITED = QUOTA.replace("members: {users: [bob]}", f"members: {{users: [bob]}}, {STORAGE}")


class Site:
    """A job "j" of vision that was cancelled; its outputs are 300 MiB."""

    def __init__(self, quota: str = LIMITED) -> None:
        self.world = World()
        self.world.apply_quota(quota)
        self.leadership = Leadership(self.world.store, lambda: self.world.now, holder="first")
        self.retention = self.another()
        self.end("j", 300)

    def another(self) -> Retention:
        """That of a process that has just started."""
        self.leadership.renew(self.world.now)
        return Retention(self.world.store, self.leadership, self.world.executor, Bundles(), RetentionTimes())

    def end(self, job: str, mib: int | None, user: str = "bob") -> None:
        self.world.submit(user, job)
        self.world.store.record([ChangeJob(job=job, actor=user, change="cancel")], now=self.world.now)
        if mib is not None:
            self.world.executor.outputs_mib[job] = mib

    def run(self, *, after_ms: int = 0) -> int:
        """Run retention once; returns after how many milliseconds it runs again."""
        self.world.now += after_ms
        self.leadership.renew(self.world.now)
        return self.retention.run_once(self.world.now) - self.world.now

    def totals(self) -> object:
        note = self.world.store.note("retention", OUTPUTS_TOTAL)
        return None if note is None else note.document

    def removed(self, job: str) -> object:
        note = self.world.store.note("outputs", job)
        return None if note is None else note.document["removed_at"]


def test_the_outputs_of_ended_jobs_are_totalled_by_project() -> None:
    site = Site()
    site.end("k", 200)
    site.end("other", 50, user="patty")  # its project has no limits
    site.world.submit("bob", "waits")
    site.run()
    assert site.totals() == {"vision": 500}
    site.end("l", 1)
    site.run()
    assert site.totals() == {"vision": 501}


def test_outputs_that_are_being_measured_are_read_again_soon() -> None:
    site = Site()
    site.end("large", None)
    assert site.run() == 1_000
    assert site.totals() == {"vision": None}  # unknown is never 0
    site.world.executor.outputs_mib["large"] = 7
    assert site.run() == 30_000
    assert site.totals() == {"vision": 307}


def test_outputs_are_removed_after_their_time_and_the_job_stays() -> None:
    site = Site()
    site.run(after_ms=2 * DAY_MS - 1)
    assert site.world.executor.removed_outputs == []
    site.run(after_ms=1)
    site.run(after_ms=1_000)
    assert site.world.executor.removed_outputs == ["j"]
    assert site.removed("j") == site.world.now - 1_000
    assert site.totals() == {"vision": 0} and site.world.store.job("j") is not None
    assert site.world.executor.forgotten == []


def test_outputs_are_removed_also_while_unused_bundles_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Bundles, "sweep", full)
    site = Site()
    for after_ms in (2 * DAY_MS, 1_000):
        with pytest.raises(OSError, match="No space left"):
            site.run(after_ms=after_ms)
    assert site.world.executor.removed_outputs == ["j"] and site.removed("j") is not None


@pytest.mark.parametrize("again", ["repeated", "by the next leader"])
def test_a_removal_is_ordered_until_it_is_observed(again: str) -> None:
    site = Site()
    site.run(after_ms=DAY_MS)
    executor = site.world.executor
    executor.removal_is_slow = True
    site.run(after_ms=DAY_MS)
    assert site.removed("j") is None
    if again == "by the next leader":
        site.retention = site.another()
    executor.removal_is_slow = False
    site.run(after_ms=1_000)
    assert executor.removed_outputs == ["j", "j"] and site.removed("j") == site.world.now
    site.run(after_ms=1_000)
    assert executor.removed_outputs == ["j", "j"]


def test_a_user_s_request_is_carried_out_in_projects_without_limits_too() -> None:
    site = Site(QUOTA)
    store, now = site.world.store, site.world.now
    assert all(isinstance(each, Recorded) for each in store.record([RemoveOutputs(job="j", actor="bob")], now=now))
    site.run()
    assert site.world.executor.removed_outputs == ["j"] and site.removed("j") == now
    assert store.notes("outputs_removal") == []
    assert [row.actor for row in store.audit()[0] if row.kind == "job.remove_outputs"] == ["bob"]
    (again,) = store.record([RemoveOutputs(job="j", actor="bob")], now=now)
    assert isinstance(again, Recorded) and again.existed


@pytest.mark.parametrize(("job", "code"), [("waits", "in_use"), ("nothing", "unknown")])
def test_outputs_of_a_job_that_has_not_ended_are_not_removed(job: str, code: str) -> None:
    site = Site()
    site.world.submit("bob", "waits")
    (refusal,) = site.world.store.record([RemoveOutputs(job=job, actor="bob")], now=site.world.now)
    assert isinstance(refusal, Refusal) and refusal.code == code
    site.run()
    assert site.world.executor.removed_outputs == []


def test_a_job_is_listed_as_long_as_its_outputs_are_kept() -> None:
    site = Site(LIMITED.replace("keep: 2d", "keep: 90d"))
    site.run(after_ms=80 * DAY_MS)
    assert site.world.store.job("j") is not None
    for _ in range(3):
        site.run(after_ms=10 * DAY_MS + 1)
    assert site.world.store.job("j") is None and site.world.store.notes("outputs") == []
    assert site.totals() == {"vision": 0}


def test_jobs_that_ended_before_the_limit_are_found_in_turn() -> None:
    site = Site(QUOTA)
    for number in range(JOBS_A_RUN + 10):
        site.end(f"k{number:04}", 1)
    site.run()
    assert site.totals() is None
    site.world.apply_quota(LIMITED)
    assert site.run() == 1_000
    assert site.totals() == {"vision": None}
    assert len(site.world.store.notes("outputs")) == JOBS_A_RUN
    assert site.run() == 30_000
    assert site.totals() == {"vision": 300 + JOBS_A_RUN + 10}


def test_no_job_is_passed_over_where_others_are_removed_between_two_parts() -> None:
    site = Site(QUOTA)
    site.world.submit("bob", "long")
    for number in range(JOBS_A_RUN + 10):
        site.end(f"k{number:04}", 1)
    site.world.now += 10
    site.world.store.record([ChangeJob(job="long", actor="bob", change="cancel")], now=site.world.now)
    site.world.executor.outputs_mib["long"] = 20
    site.world.now += 10
    site.end("late", 4)
    site.world.apply_quota(LIMITED.replace(", keep: 2d", ""))
    site.run()
    site.run(after_ms=30 * DAY_MS - 15)  # those that ended first are removed
    assert [note.subject for note in site.world.store.notes("outputs")] == ["late", "long"]
    assert site.totals() == {"vision": 24}


def test_a_forgotten_job_whose_outputs_were_being_removed_is_dropped() -> None:
    site = Site()
    site.world.executor.removal_is_slow = True
    site.run(after_ms=2 * DAY_MS)
    site.end("k", 200)
    site.run(after_ms=29 * DAY_MS)
    assert site.world.store.job("j") is None
    assert site.run() == 1_000 and site.world.executor.removed_outputs[-1] == "k"


def test_outputs_that_cannot_be_measured_are_unknown_and_tried_again_without_hurry() -> None:
    site = Site()
    site.end("unreadable", None)
    site.world.executor.unreadable_outputs.add("unreadable")
    assert site.run() == 30_000
    assert site.totals() == {"vision": None}
    site.run(after_ms=30_000)
    site.world.executor.unreadable_outputs.clear()
    site.world.executor.outputs_mib["unreadable"] = 1
    site.run(after_ms=30_000)
    assert site.totals() == {"vision": 301}


def test_outputs_that_cannot_be_removed_delay_no_others(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.end("bad", 5)
    site.end("good", 7)
    site.world.executor.unremovable_outputs["bad"] = "Permission denied"
    for _ in range(2):
        site.run(after_ms=2 * DAY_MS)
    assert site.removed("good") == site.world.now - 2 * DAY_MS and site.removed("bad") is None
    assert site.totals() == {"vision": 5} and site.run() == 30_000
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == "the outputs of 1 job cannot be removed now: Permission denied"
    site.world.executor.unremovable_outputs.clear()
    site.run(after_ms=1_000)
    assert site.removed("bad") == site.world.now


def test_a_removal_that_no_user_requested_is_audited_when_it_is_observed() -> None:
    site = Site()
    site.world.executor.removal_is_slow = True
    site.run(after_ms=2 * DAY_MS)
    removals = [row for row in site.world.store.audit()[0] if row.kind == "job.remove_outputs"]
    assert removals == []
    site.world.executor.removal_is_slow = False
    for _ in range(2):
        site.run(after_ms=1_000)
    (row,) = [row for row in site.world.store.audit()[0] if row.kind == "job.remove_outputs"]
    assert (row.actor, row.subject, row.project) == ("system:controller", "j", "vision")


def test_outputs_that_were_removed_while_the_database_failed_are_recorded_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    site.run(after_ms=DAY_MS)
    record = site.world.store.record

    def fails(requests: Sequence[object], **more: object) -> object:
        if any(isinstance(each, OutputsExpired) for each in requests):
            raise StoreUnavailable("the disk is full")
        return record(requests, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
        broken.setattr(site.world.store, "record", fails)
        site.run(after_ms=DAY_MS)
    site.run(after_ms=30_000)
    assert site.removed("j") == site.world.now and site.totals() == {"vision": 0}
    assert [row.subject for row in site.world.store.audit()[0] if row.kind == "job.remove_outputs"] == ["j"]


def test_a_removal_that_a_frozen_former_leader_observes_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    sizes = FakeJobs.output_sizes

    def freezes(executor: FakeJobs, jobs: Sequence[str]) -> object:
        site.world.now += 4_000
        assert Leadership(site.world.store, lambda: site.world.now, holder="other").renew(site.world.now)
        return sizes(executor, jobs)

    monkeypatch.setattr(FakeJobs, "output_sizes", freezes)
    with pytest.raises(LeaseLost):
        site.run(after_ms=2 * DAY_MS)
    assert site.removed("j") is None


def test_outputs_are_kept_while_the_newest_quota_file_cannot_be_read() -> None:
    site = Site()
    site.run()
    apply_unreadable(site.world)
    site.run(after_ms=3 * DAY_MS)
    assert site.world.executor.removed_outputs == [] and site.totals() == {"vision": 300}
    site.world.store.record([RemoveOutputs(job="j", actor="bob")], now=site.world.now)
    site.run(after_ms=1_000)
    assert site.world.executor.removed_outputs == ["j"], "its owner wants it"


def test_one_job_may_write_no_more_than_the_space_of_its_project() -> None:
    site = Site()
    site.world.submit("bob", "starts")
    site.world.controller.run_once(site.world.now)
    (order,) = site.world.executor.starts
    assert order.outputs_limit_mib == 1024
