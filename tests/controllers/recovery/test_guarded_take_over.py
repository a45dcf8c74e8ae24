"""A take-over with the check of the database, on a backend that fails or a volume that is full: it holds nothing."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.recovery.guard import RecoveryGuard
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.recovery.differences import AttemptRecord
from jupyter_gpu_quota.core.recovery.evidence import FencingWentBack
from jupyter_gpu_quota.store.history_mark import HistoryMark
from jupyter_gpu_quota.store.records.commands import ChangeJob
from tests.backends.fake_executor import FakeJobs
from tests.controllers.setups.scheduling import DEVICES, NODE, NoSampler, World


class Killed(BaseException):
    """The process ends here."""


@dataclass(slots=True)
class Fences(FakeJobs):
    """A backend that calls a function after each fencing number was stored."""

    after_fence: Callable[[], object] = lambda: None
    fences: list[int] = field(default_factory=list)

    def fence(self, fencing: int) -> None:
        super(Fences, self).fence(fencing)
        self.fences.append(fencing)
        self.after_fence()


@dataclass
class Attempts:
    """The attempts of this backend."""

    jobs: Fences

    def newest_fence(self) -> int:
        return self.jobs.fencing

    def left_out(self) -> Mapping[str, bool]:
        return {}

    def unsettled(self) -> Collection[tuple[str, int]]:
        return ()

    def newest(self, jobs: Collection[str]) -> Sequence[AttemptRecord]:
        facts = self.jobs.observe()
        return [AttemptRecord(job=f.job, attempt=f.attempt, facts=(f,), ranks=1, placements=()) for f in facts]


class Site:
    """Processes that follow one another; job "b1" runs since the first one."""

    def __init__(self, folder: Path) -> None:
        self.world, self.mark = World(), folder / "history.json"
        self.jobs = self.world.executor = Fences(now=lambda: self.world.now, nodes=(NODE,), devices=DEVICES)
        self.start("first")
        self.world.submit("bob", "b1")
        self.turns(4)
        assert self.world.state("b1") is JobState.RUNNING

    def start(self, holder: str) -> None:
        """Begin a process after the lease of the one before."""
        self.world.now += 5_000
        self.leadership = Leadership(self.world.store, lambda: self.world.now, holder=holder)
        self.loop = Loop("scheduling", self._controller, self.leadership, lambda: self.world.now, takes_lease=True)

    def _controller(self) -> SchedulingController:
        store, mark = self.world.store, HistoryMark(self.mark)
        return SchedulingController(
            clock=lambda: self.world.now, store=store, executor=self.jobs, sampler=NoSampler(),
            leadership=self.leadership, guard=RecoveryGuard(store, Attempts(self.jobs), mark),
        )  # fmt: skip

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.loop.run()
            self.world.now += 1_000

    def cancel(self) -> None:
        request = ChangeJob(job="b1", change="cancel", actor=self.world.users["bob"])
        self.world.store.record([request], now=self.world.now)

    def assert_acts(self) -> None:
        """No decision is held: a cancelled job gets its stop order, and the other loops act."""
        self.cancel()
        self.turns()
        assert self.world.store.hold() is None
        assert [order.job for order in self.jobs.stops] == ["b1"] and self.world.state("b1") is JobState.CANCELLED
        self.leadership.check()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def fails(site: Site) -> None:
    raise OSError("503 for the fencing number, which was stored")


def sets_clock_back(site: Site) -> None:
    site.world.now -= 500


@pytest.mark.parametrize("failure", [fails, sets_clock_back])
def test_a_leader_whose_fence_failed_fences_again_and_holds_nothing(
    site: Site, failure: Callable[[Site], object]
) -> None:
    site.start("second")
    site.jobs.after_fence = lambda: failure(site)
    site.loop.run()
    assert site.jobs.fences == [1, 2] and not site.leadership.current()
    site.jobs.after_fence = lambda: None
    site.world.now += 1_000
    site.assert_acts()
    assert site.jobs.fences == [1, 2, 3]


def test_a_leader_killed_when_its_fence_was_stored_leaves_no_evidence_to_the_next(site: Site) -> None:
    def killed() -> None:
        raise Killed

    site.start("second")
    site.jobs.after_fence = killed
    with pytest.raises(Killed):
        site.loop.run()
    site.jobs.after_fence = lambda: None
    site.start("third")
    site.assert_acts()
    assert site.jobs.fences == [1, 2, 3]


@pytest.mark.parametrize("term", ["first", "second"])
def test_a_full_volume_stops_no_order_and_no_other_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, term: str
) -> None:
    """Retention, which empties it, is one of these loops."""

    def is_full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(HistoryMark, "write", is_full)
        if term == "second":
            site.start(term)
        site.assert_acts()
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.endswith("go on without it: [Errno 28] No space left on device")
    site.turns()
    mark = HistoryMark(site.mark).newest
    assert mark is not None and mark.position == site.world.store.position()


def test_a_number_that_another_process_used_holds_decisions(site: Site) -> None:
    """The database is that from before process "lost", whose number is in use."""
    site.jobs.fence(2)
    site.start("second")
    site.turns()
    hold = site.world.store.hold()
    assert hold is not None and hold.why == (FencingWentBack(fencing=2, used=2),)
