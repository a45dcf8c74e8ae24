"""Control loops: they run under the lease only, and a failure is logged and retried."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from jupyter_gpu_quota.controllers.leadership.lease import (
    CLOCK_WARNING_EVERY_MS,
    FencedStore,
    Leadership,
    unique_holder,
)
from jupyter_gpu_quota.controllers.loop import (
    MAX_BACKOFF_MS,
    MIN_BACKOFF_MS,
    STANDBY_MS,
    Loop,
    LoopStatusRecorder,
)
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.activity import KeepNotes, Note
from jupyter_gpu_quota.store.records.calls import CLOCK_TOLERANCE_MS, LeaseLost, StoreUnavailable


@dataclass
class Counting:
    """A controller that the test scripts."""

    world: World
    name: str = "counting"
    runs: int = 0

    def run_once(self, now: int) -> int:
        self.runs += 1
        if self.world.error is not None:
            raise self.world.error
        return now + 2_000


@dataclass
class World:
    now: int = 1_000_000
    error: Exception | None = None
    made: list[Counting] = field(default_factory=list)
    store: MemoryStore = field(default_factory=MemoryStore)

    def process(self, holder: str = "first", ahead_ms: int = 0) -> tuple[Leadership, Loop]:
        leadership = Leadership(self.store, lambda: self.now + ahead_ms, holder=holder)
        return leadership, Loop("counting", self._make, leadership, lambda: self.now)

    def _make(self) -> Counting:
        self.made.append(Counting(self))
        return self.made[-1]


def test_a_loop_runs_only_while_its_process_has_the_lease() -> None:
    world = World()
    leadership, loop = world.process()
    assert (loop.run(), world.made) == (world.now + STANDBY_MS, [])
    leadership.renew(world.now)
    assert (loop.run(), loop.status.runs) == (world.now + 2_000, 1)
    world.now += 3_000
    assert (loop.run(), loop.status.runs) == (world.now + STANDBY_MS, 1), "the lease ended by the clock"


def test_each_term_of_leadership_begins_with_a_new_controller() -> None:
    world = World()
    leadership, loop = world.process()
    leadership.renew(world.now)
    loop.run()
    world.now += 1_000
    leadership.renew(world.now)
    loop.run()
    assert len(world.made) == 1
    world.now += 10_000
    leadership.renew(world.now)
    loop.run()
    assert (len(world.made), world.made[1].runs) == (2, 1)


def test_a_failure_is_logged_once_and_each_pause_is_longer(caplog: pytest.LogCaptureFixture) -> None:
    world = World(error=StoreUnavailable("the disk is full"))
    leadership, loop = world.process()
    rests = []
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            leadership.renew(world.now)
            rests.append(loop.run() - world.now)
            world.now += 1_000
    assert (rests[:3], max(rests)) == (
        [MIN_BACKOFF_MS, 2 * MIN_BACKOFF_MS, 4 * MIN_BACKOFF_MS],
        MAX_BACKOFF_MS,
    )
    assert [record.message for record in caplog.records] == ["counting: the disk is full"]
    assert (loop.status.failures, loop.status.last_error) == (8, "StoreUnavailable: the disk is full")
    world.error = None
    leadership.renew(world.now)
    assert (loop.run(), loop.status.failures_in_a_row) == (world.now + 2_000, 0)


def test_a_defect_is_logged_with_its_traceback_and_the_controller_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(error=ZeroDivisionError("oops"))
    leadership, loop = world.process()
    leadership.renew(world.now)
    loop.run()
    assert caplog.records[0].exc_info is not None
    world.error = None
    loop.run()
    assert len(world.made) == 2


def test_an_unavailable_store_does_not_replace_the_controller() -> None:
    world = World(error=StoreUnavailable("the disk is full"))
    leadership, loop = world.process()
    leadership.renew(world.now)
    loop.run()
    loop.run()
    assert len(world.made) == 1


def test_a_controller_that_takes_the_lease_itself_runs_without_one() -> None:
    world = World()
    loop = Loop("scheduling", world._make, world.process()[0], lambda: world.now, takes_lease=True)
    loop.run()
    assert loop.status.runs == 1


def test_the_status_of_loops_is_stored_once_a_minute_and_when_it_changes() -> None:
    world = World()
    leadership, loop = world.process()
    leadership.renew(world.now)
    recorder = LoopStatusRecorder([loop], FencedStore(world.store, leadership, lambda: world.now))

    def stored() -> tuple[object, object]:
        recorder.run_once(world.now)
        (note,) = world.store.notes("loop")
        return note.document["runs"], note.document["failing_since"]

    assert stored() == (0, None)
    loop.run()
    assert stored() == (0, None), "a success after a success is no change"
    world.error = StoreUnavailable("the disk is full")
    failed_at = world.now
    loop.run()
    world.now += 1_000
    assert stored() == (1, failed_at)
    world.error = None
    loop.run()
    assert stored() == (2, None)
    loop.run()
    world.now += 60_000
    leadership.renew(world.now)
    assert stored() == (3, None)


def test_the_store_refuses_records_of_a_frozen_former_leader() -> None:
    world = World()
    frozen, _ = world.process("frozen")
    fenced = FencedStore(world.store, frozen, lambda: world.now)
    frozen.renew(world.now)
    note = KeepNotes(notes=(Note(kind="idle", subject="nb", at=world.now, document={}),))
    fenced.record(note)
    before = world.now
    world.now += 4_000
    other, _ = world.process("other")
    other.renew(world.now)
    with pytest.raises(LeaseLost, match="lease of frozen ended"):
        fenced.record(note)
    frozen._clock = lambda: before  # it froze after it had checked its lease
    with pytest.raises(LeaseLost, match="other holds it"):
        fenced.record(note)


def test_two_processes_with_equal_host_names_and_process_ids_are_not_both_leaders() -> None:
    world = World()
    first, second = (world.process(unique_holder())[0] for _ in range(2))
    assert first.renew(world.now) is not None
    assert second.renew(world.now) is None


@pytest.mark.parametrize("renewal", ["turn", "thread"])
def test_a_standby_that_waited_for_the_lock_takes_no_lease_that_was_renewed_meanwhile(
    renewal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    (leader, _), (standby, _) = world.process("leader"), world.process("standby")
    leader.renew(world.now)
    writing = world.store._writing

    @contextmanager
    def after_a_wait(now: int, *, repeatable: bool = False) -> Iterator[UnitOfWork]:
        monkeypatch.setattr(world.store, "_writing", writing)
        for _ in range(4):
            world.now += 1_400
            if renewal == "turn":
                leader.renew(world.now)
            else:
                leader.continue_term(world.store)
        with writing(now, repeatable=repeatable) as work:
            yield work

    monkeypatch.setattr(world.store, "_writing", after_a_wait)
    assert standby.renew(world.now) is None and leader.current() is not None


def test_a_renewal_that_waited_for_the_lock_lasts_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    leadership, _ = world.process()
    leadership.renew(world.now)
    writing = world.store._writing

    @contextmanager
    def after_a_wait(now: int, *, repeatable: bool = False) -> Iterator[UnitOfWork]:
        world.now += 2_000
        with writing(now, repeatable=repeatable) as work:
            yield work

    monkeypatch.setattr(world.store, "_writing", after_a_wait)
    leadership.continue_term(world.store)
    assert leadership.lease is not None and leadership.lease.expires_at == world.now + 3_000


@pytest.mark.parametrize("ahead_ms", [0, 200, CLOCK_TOLERANCE_MS])
def test_two_controllers_whose_clocks_differ_little_keep_one_leader(ahead_ms: int) -> None:
    world = World()
    (ahead, _), (behind, _) = world.process("ahead", ahead_ms), world.process("behind")
    for _ in range(20):
        assert ahead.renew(world.now + ahead_ms) is not None
        for _ in range(3):
            assert behind.renew(world.now) is None
            world.now += STANDBY_MS
    world.now += 5_000
    for _ in range(20):
        assert behind.renew(world.now) is not None
        for _ in range(3):
            assert ahead.renew(world.now + ahead_ms) is None
            world.now += STANDBY_MS


def test_controllers_whose_clocks_differ_much_log_the_difference_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    (ahead, _), (behind, _) = world.process("ahead", 3_500), world.process("behind")
    until = world.now + CLOCK_WARNING_EVERY_MS + 5_000
    while world.now < until:
        assert ahead.renew(world.now + 3_500) is not None
        assert behind.renew(world.now) is not None
        world.now += STANDBY_MS
    said = [record.message for record in caplog.records if "clock" in record.message]
    assert len(said) == 2
    assert said[0].startswith("the clock of ahead is at least 3.5 s ahead of the clock of this process (behind)")
    assert "synchronise" in said[0]
