"""A take-over or a turn that outlasts the lease: the term continues while it is renewed, and ends where it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.leadership.renewal import LeaseRenewal
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.calls import LeaseLost, StoreUnavailable
from jupyter_gpu_quota.store.transactions import Store
from tests.backends.fake_executor import FakeJobs
from tests.controllers.setups.scheduling import DEVICES, NODE, NoSampler, World
from tests.patience import until

STEP_MS, MAX_TURN_S = 200, 60.0
FENCE_MS = 30_000
"""How long the backend of thousands of pods needed."""


@dataclass(slots=True)
class SlowFence(FakeJobs):
    """A backend whose ``fence`` calls a function first, in which time passes."""

    during: Callable[[], object] = lambda: None
    fences: list[int] = field(default_factory=list)

    def fence(self, fencing: int) -> None:
        self.during()
        self.fences.append(fencing)
        super(SlowFence, self).fence(fencing)


class Process:
    """One controllers process on a virtual clock; its renewal runs where the test lets time pass."""

    def __init__(self, world: World, holder: str = "first") -> None:
        self.world = world
        self.executor = SlowFence(now=lambda: world.now, nodes=(NODE,), devices=DEVICES)
        self.leadership = Leadership(world.store, lambda: world.now, holder=holder)
        self.renewal = LeaseRenewal(
            self.leadership, world.store, lambda: world.now,
            max_turn_s=MAX_TURN_S, monotonic=lambda: world.now / 1000,
        )  # fmt: skip
        self.loop = Loop("scheduling", self.make, self.leadership, lambda: world.now, takes_lease=True)

    def make(self) -> SchedulingController:
        return SchedulingController(
            clock=lambda: self.world.now, store=self.world.store, executor=self.executor, sampler=NoSampler(),
            leadership=self.leadership,
        )  # fmt: skip

    def turn(self) -> None:
        self.renewal.note_turn()
        self.loop.run()
        self.world.now += 1_000

    def pass_time(self, ms: int) -> None:
        """Time in which the thread of the renewal runs."""
        for _ in range(0, ms, STEP_MS):
            self.world.now += STEP_MS
            self.renewal.run_once()

    def freeze(self, ms: int) -> None:
        """Time in which no thread of the process runs."""
        self.world.now += ms
        self.renewal.run_once()

    def started(self) -> list[str]:
        return [order.job for order in self.executor.starts]


@pytest.fixture
def world() -> World:
    world = World()
    world.submit("bob", "b1")
    return world


def test_a_take_over_that_outlasts_the_lease_ends_with_the_same_fencing_number(world: World) -> None:
    process = Process(world)
    process.executor.during = lambda: process.pass_time(FENCE_MS)
    for _ in range(3):
        process.turn()
    assert process.executor.fences == [1]
    assert process.started() == ["b1"]
    assert process.loop.status.failures == 0


def test_a_decision_that_outlasts_the_lease_does_not_end_the_term(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, commit = Process(world), MemoryStore.commit

    def slow(*given: object, **named: object) -> object:
        process.pass_time(FENCE_MS)
        return commit(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStore, "commit", slow)
    for _ in range(3):
        process.turn()
    assert (process.executor.fences, process.started()) == ([1], ["b1"])


def test_a_transaction_that_outlasts_the_lease_does_not_end_the_term(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can take the lease while it has the lock, and the thread cannot renew it."""
    process, real, slow = Process(world), MemoryStore._writing, list[int]()
    world.store.own_term = process.leadership
    process.turn()
    world.submit("bob", "b2")

    @contextmanager
    def writing(store: MemoryStore, now: int, **more: bool) -> Iterator[UnitOfWork]:
        with real(store, now, **more) as work:
            yield work
            if len(slow) < 3:
                slow.append(now)
                world.now += 20_000
        assert process.leadership.current() is not None, "the other loops continue, too"

    monkeypatch.setattr(MemoryStore, "_writing", writing)
    process.turn()
    process.turn()
    assert len(slow) == 3
    assert (process.executor.fences, process.started()) == ([1], ["b1", "b2"])


def test_a_lease_that_ended_before_a_transaction_is_not_extended_by_it(world: World) -> None:
    process = Process(world)
    world.store.own_term = process.leadership
    process.turn()
    world.now += 4_000
    world.submit("bob", "b2")
    assert process.leadership.current() is None
    process.turn()
    assert process.executor.fences == [1, 2]


def test_a_lease_that_is_given_back_is_not_extended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(world)
    monkeypatch.setattr(process.leadership, "extended", lambda lease: pytest.fail("it was extended"))
    world.store.own_term = process.leadership
    process.turn()
    world.now += 1_500
    process.leadership.resign()
    assert world.store.lease() is None


@contextmanager
def failing_renewals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fails(*given: object, **named: object) -> None:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "renew_lease", fails)
        yield


@pytest.mark.parametrize("is_taken", [True, False], ids=["another leader began", "nobody else began"])
def test_a_leader_whose_renewals_fail_during_its_take_over_does_not_act(
    world: World, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    process, second = Process(world), Process(world, "second")

    def during() -> None:
        with failing_renewals(monkeypatch):
            process.pass_time(FENCE_MS)
        assert process.leadership.current() is None
        if is_taken:
            second.turn()

    process.executor.during = during
    process.turn()
    assert (process.started(), process.loop.status.runs) == ([], 0)
    process.executor.during = lambda: None
    process.turn()
    assert process.executor.fences == ([1] if is_taken else [1, 2]), "a number is never kept over two terms"


@pytest.mark.parametrize("is_taken", [True, False], ids=["another leader began", "nobody else began"])
def test_a_leader_that_was_frozen_during_its_take_over_does_not_act(world: World, is_taken: bool) -> None:
    process, second = Process(world), Process(world, "second")

    def during() -> None:
        process.pass_time(FENCE_MS)
        process.world.now += 4_000
        if is_taken:
            second.turn()
        process.freeze(0)

    process.executor.during = during
    process.turn()
    assert (process.started(), process.loop.status.runs) == ([], 0)
    assert process.leadership.current() is None
    lease = world.store.lease()
    assert lease is not None and (lease.holder, lease.fencing) == (("second", 2) if is_taken else ("first", 1))


def test_a_leader_that_was_frozen_while_it_gives_orders_gives_no_more(world: World) -> None:
    process = Process(world)
    world.submit("bob", "b2", "b3")
    start = FakeJobs.start

    def slow(jobs: FakeJobs, order: object) -> None:
        start(jobs, order)  # type: ignore[arg-type]
        process.freeze(4_000)

    process.executor.__class__ = type("Slow", (SlowFence,), {"start": slow, "__slots__": ()})
    for turns in (1, 2, 3):
        process.turn()
        assert [order.fencing for order in process.executor.starts] == list(range(1, turns + 1))


def test_a_main_loop_that_hangs_loses_the_lease(world: World) -> None:
    process, second = Process(world), Process(world, "second")
    process.turn()
    process.pass_time(int(MAX_TURN_S * 1000) + 4_000)
    second.turn()
    lease = world.store.lease()
    assert lease is not None and lease.holder == "second"


def test_a_renewal_begins_no_term_and_takes_none_from_another(world: World) -> None:
    process, second = Process(world), Process(world, "second")
    process.pass_time(5_000)
    assert world.store.lease() is None, "a process that never was the leader renews nothing"
    process.turn()
    process.leadership.resign()
    process.pass_time(5_000)
    second.turn()
    process.pass_time(5_000)
    lease = world.store.lease()
    assert lease is not None and (lease.holder, lease.fencing) == ("second", 2)


def test_a_term_that_is_over_is_not_renewed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(world)
    process.turn()
    world.now += 3_000
    with failing_renewals(monkeypatch):
        process.pass_time(5_000)
    assert not process.renewal.is_failing, "the database was not asked"


def test_a_lease_that_another_process_took_is_not_in_force_here(world: World) -> None:
    """The clock of the other one is ahead, so it counted this lease as expired."""
    process = Process(world)
    process.turn()
    held = process.leadership.current()
    assert held is not None
    world.store.acquire_lease("second", clock=lambda: held.expires_at, ttl_ms=3_000)
    process.pass_time(held.expires_at - world.now - 200)
    assert world.now < held.expires_at
    assert process.leadership.current() is None


def test_a_loop_that_turns_renews_the_lease_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The observed ends are on disk with the loop's own renewal, so the thread does not come before it."""
    process = Process(world)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "renew_lease", lambda *given, **named: pytest.fail("the thread renewed"))
        for _ in range(10):
            process.renewal.note_turn()
            at = process.loop.run()
            process.pass_time((at - world.now) // STEP_MS * STEP_MS)
            world.now = at
    assert process.executor.fences == [1]


def test_an_end_is_settled_although_every_turn_is_slow(world: World) -> None:
    process = Process(world)
    process.turn()
    process.turn()
    process.executor.end("b1", 0)
    settled = list[str]()
    process.executor.__class__ = type(
        "Settled", (SlowFence,), {"settled": lambda jobs, job, attempt: settled.append(job), "__slots__": ()}
    )
    for _ in range(3):
        process.turn()
        process.pass_time(10_000)
    assert "b1" in settled


def test_the_thread_renews_while_the_main_thread_waits() -> None:
    """With a clock and a thread: a fence that waits for five renewals."""

    def now() -> int:
        return time.time_ns() // 1_000_000

    store, executor = MemoryStore(), SlowFence(now=now)
    leadership = Leadership(store, now, holder="first", lease_ms=1_000)
    seen = set[int]()

    def renewed() -> bool:
        lease = store.lease()
        assert lease is not None
        seen.add(lease.expires_at)
        return len(seen) > 5

    executor.during = lambda: until(renewed, what="five renewals")
    controller = SchedulingController(
        clock=now, store=store, executor=executor, sampler=NoSampler(), leadership=leadership
    )
    renewal = LeaseRenewal(leadership, store, now, max_turn_s=MAX_TURN_S)
    renewal.start()
    try:
        controller.run_once(now())
    finally:
        renewal.end()
    assert executor.fences == [1]


def test_the_thread_renews_again_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def now() -> int:
        return time.time_ns() // 1_000_000

    store = MemoryStore()
    leadership = Leadership(store, now, holder="first", lease_ms=1_000)
    leadership.renew(now())
    ends_at = _ends_at(store)
    real, calls = leadership.continue_term, list[Store]()

    def once_without_the_table(given: Store) -> None:
        calls.append(given)
        if len(calls) == 1:
            raise KeyError("head")
        real(given)

    monkeypatch.setattr(leadership, "continue_term", once_without_the_table)
    renewal = LeaseRenewal(leadership, store, now, max_turn_s=MAX_TURN_S)
    renewal.start()
    try:
        until(lambda: _ends_at(store) > ends_at, what="a renewal")
    finally:
        renewal.end()
    assert "the lease could not be renewed" in caplog.text


def _ends_at(store: Store) -> int:
    lease = store.lease()
    return 0 if lease is None else lease.expires_at


def test_the_take_over_ends_with_lease_lost(world: World) -> None:
    process = Process(world)
    process.executor.during = lambda: process.freeze(4_000)
    with pytest.raises(LeaseLost, match="ended"):
        process.make().run_once(world.now)
