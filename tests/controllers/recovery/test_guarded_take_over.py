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
from jupyter_gpu_quota.core.facts import DeviceFact, RankFact
from jupyter_gpu_quota.core.model import JobState, Placement
from jupyter_gpu_quota.core.recovery.differences import AttemptRecord
from jupyter_gpu_quota.core.recovery.evidence import Evidence, FencingWentBack, WorkDiffers
from jupyter_gpu_quota.store.history_mark import HistoryMark, Mark
from jupyter_gpu_quota.store.records.calls import Lease
from jupyter_gpu_quota.store.records.commands import ChangeJob
from jupyter_gpu_quota.store.records.recovery import AcceptRecovery, HoldDecisions, UnknownWork
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


# --- evidence ---------------------------------------------------------------------------------------------------------
def guard_of(site: Site) -> RecoveryGuard:
    return RecoveryGuard(site.world.store, Attempts(site.jobs), HistoryMark(site.mark))


def renewed(site: Site) -> Lease:
    lease = site.leadership.renew(site.world.now)
    assert lease is not None
    return lease


def test_a_number_that_only_this_process_noted_holds_decisions(site: Site) -> None:
    """The backend was restored, too."""
    HistoryMark(site.mark).write(Mark(position=site.world.store.position(), holder="second", fencing=5))
    site.start("second")
    assert guard_of(site).begin(renewed(site), site.world.now) == 5
    hold = site.world.store.hold()
    assert hold is not None and hold.why == (FencingWentBack(fencing=2, used=5),)


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        pytest.param(1, None, id="an attempt that ended without a leader holds nothing"),
        pytest.param(2, (WorkDiffers(jobs=1),), id="an ended attempt that the database never had holds decisions"),
    ],
)
def test_an_ended_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch, attempt: int, why: tuple[Evidence, ...] | None
) -> None:
    fact = RankFact(job="b1", attempt=attempt, rank=0, handle="1", started_at=1, ended_at=2, tree_gone=True)
    monkeypatch.setattr(Attempts, "newest", lambda *_: [AttemptRecord(job="b1", attempt=attempt, facts=(fact,))])
    site.start("second")
    guard_of(site).begin(renewed(site), site.world.now)
    hold = site.world.store.hold()
    assert (None if hold is None else hold.why) == why


# --- while decisions are held -----------------------------------------------------------------------------------------
def test_an_accepted_hold_lasts_while_a_cluster_is_left_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now, lease, guard = site.world.store, site.world.now, renewed(site), guard_of(site)
    store.record([HoldDecisions(why=(FencingWentBack(fencing=1, used=2),), differences=())], now=now, lease=lease)
    store.record([AcceptRecovery(actor="ann")], now=now)
    with monkeypatch.context() as away:
        away.setattr(Attempts, "left_out", lambda _: {"west": False})
        assert guard.follow(site.jobs, lease, now) and store.hold() is not None
    assert not guard.follow(site.jobs, lease, now) and store.hold() is None


def test_a_reading_never_lowers_the_use_of_unknown_work(site: Site) -> None:
    guard = guard_of(site)
    parts = (Placement(rank=0, device="n1-0", gpu_milli=1000, memory_mib=0),)
    guard.unknown = {("x", 1): UnknownWork(job="x", attempt=1, placements=parts, stops=False)}
    facts = [DeviceFact(device=device, foreign_milli=use) for device, use in (("n1-0", 0), ("n1-1", 5), ("n1-0", None))]
    assert [fact.foreign_milli for fact in guard.with_unknown_use(facts)] == [1000, 5, None]
