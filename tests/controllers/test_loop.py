"""The runner of control loops: who may act, and what becomes of one that fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from jupyter_gpu_quota.controllers.lease import FencedStore, Leadership
from jupyter_gpu_quota.controllers.loop import FIRST_REST_MS, LONGEST_BACKOFF_MS, STANDBY_MS, Loop
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.activity import KeepNotes, Note
from jupyter_gpu_quota.store.records.protocol import LeaseLost, StoreUnavailable


@dataclass
class Counting:
    """A controller that does what the test says."""

    world: World
    name: str = "counting"
    runs: int = 0

    def run_once(self, now: int) -> int:
        self.runs += 1
        if self.world.trouble is not None:
            raise self.world.trouble
        return now + 2_000


@dataclass
class World:
    now: int = 1_000_000
    trouble: Exception | None = None
    made: list[Counting] = field(default_factory=list)
    store: MemoryStore = field(default_factory=MemoryStore)

    def process(self, holder: str = "first") -> tuple[Leadership, Loop]:
        leadership = Leadership(self.store, lambda: self.now, holder=holder)
        return leadership, Loop("counting", self._make, leadership, lambda: self.now)

    def _make(self) -> Counting:
        self.made.append(Counting(self))
        return self.made[-1]


def test_a_loop_turns_only_while_its_process_has_the_lease() -> None:
    world = World()
    leadership, loop = world.process()
    assert (loop.turn(), world.made) == (world.now + STANDBY_MS, [])
    leadership.renew(world.now)
    assert (loop.turn(), loop.status.runs) == (world.now + 2_000, 1)
    world.now += 3_000
    assert (loop.turn(), loop.status.runs) == (world.now + STANDBY_MS, 1), "the lease ended by the clock"


def test_each_term_of_leadership_begins_with_a_controller_made_anew() -> None:
    world = World()
    leadership, loop = world.process()
    leadership.renew(world.now)
    loop.turn()
    world.now += 1_000
    leadership.renew(world.now)
    loop.turn()
    assert len(world.made) == 1
    world.now += 10_000
    leadership.renew(world.now)
    loop.turn()
    assert (len(world.made), world.made[1].runs) == (2, 1)


def test_a_loop_that_fails_is_told_once_and_rests_ever_longer(caplog: pytest.LogCaptureFixture) -> None:
    world = World(trouble=StoreUnavailable("the disk is full"))
    leadership, loop = world.process()
    rests = []
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            leadership.renew(world.now)
            rests.append(loop.turn() - world.now)
            world.now += 1_000
    assert (rests[:3], max(rests)) == ([FIRST_REST_MS, 2 * FIRST_REST_MS, 4 * FIRST_REST_MS], LONGEST_BACKOFF_MS)
    assert [record.message for record in caplog.records] == ["counting: the disk is full"]
    assert (loop.status.failures, loop.status.last_error) == (8, "StoreUnavailable: the disk is full")
    world.trouble = None
    leadership.renew(world.now)
    assert (loop.turn(), loop.status.failures_in_a_row) == (world.now + 2_000, 0)


def test_a_defect_of_one_loop_ends_nothing_and_is_told_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    world = World(trouble=ZeroDivisionError("oops"))
    leadership, loop = world.process()
    leadership.renew(world.now)
    loop.turn()
    assert caplog.records[0].exc_info is not None


def test_what_a_leader_that_was_frozen_records_is_refused_by_the_store() -> None:
    world = World()
    frozen, _ = world.process("frozen")
    fenced = FencedStore(world.store, frozen, lambda: world.now)
    frozen.renew(world.now)
    note = KeepNotes(notes=(Note(kind="idle", subject="nb", at=world.now, document={}),))
    fenced.record(note)
    lease = frozen.check()
    world.now += 4_000
    other, _ = world.process("other")
    other.renew(world.now)
    with pytest.raises(LeaseLost):
        fenced.record(note)
    with pytest.raises(LeaseLost, match="other holds it"):
        world.store.record([note], now=world.now, lease=lease)
