"""A controller that fails or is killed between two steps: nothing is lost, and nothing is done without the lease."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest

from jupyter_gpu_quota.controllers.leadership.lease import FencedStore, Leadership
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.facts import DeviceFact, RankFact
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.records.calls import LeaseLost, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import Recorded, Refusal, Request
from tests.backends.fake_executor import FakeJobs
from tests.controllers.setups.enforcement import EnforcementSetup, policy, setup
from tests.controllers.setups.scheduling import DEVICES, NODE, QUOTA, World

__all__ = ["setup"]


@dataclass(slots=True)
class ReportsChanges(FakeJobs):
    """A backend that reports each fact once, as the protocol allows, and everything again after ``fence``."""

    fence_errors: int = 0
    fences: list[int] = field(default_factory=list)
    reported: list[RankFact] = field(default_factory=list)

    def observe(self) -> list[RankFact]:
        new = [fact for fact in FakeJobs.observe(self) if fact not in self.reported or fact.ended_at is not None]
        self.reported += new
        return new

    def fence(self, fencing: int) -> None:
        if self.fence_errors:
            self.fence_errors -= 1
            raise OSError("the disk is full")
        FakeJobs.fence(self, fencing)
        self.fences.append(fencing)
        self.reported.clear()


@dataclass
class OneSample:
    """Samples the first device at each request."""

    def samples(self, users: object, *, now: int) -> list[DeviceSample]:
        return [
            DeviceSample(
                node=NODE.id, device=DEVICES[0].id, at=now, utilisation_percent=1, memory_used_mib=1,
                coverage_permille=1000, simulated=False, workloads={},
            )
        ]  # fmt: skip

    def device_facts(self) -> list[DeviceFact]:
        return []


@pytest.fixture
def world() -> World:
    world = World()
    world.executor = ReportsChanges(now=lambda: world.now, nodes=(NODE,), devices=DEVICES)
    world.controller = world.another("first")
    return world


def loop_of(world: World) -> Loop:
    """The scheduling loop of one process, with the shipped error policy."""
    leadership = Leadership(world.store, lambda: world.now, holder="first")

    def make() -> SchedulingController:
        return SchedulingController(
            clock=lambda: world.now, store=world.store, executor=world.executor, sampler=OneSample(),
            leadership=leadership,
        )  # fmt: skip

    return Loop("scheduling", make, leadership, lambda: world.now, takes_lease=True)


def test_a_leader_whose_fence_failed_fences_again_before_its_first_order(world: World) -> None:
    executor = world.executor
    assert isinstance(executor, ReportsChanges)
    executor.fence_errors = 1
    world.submit("bob", "b1")
    loop = loop_of(world)
    loop.run()
    assert (loop.status.failures, executor.fences, executor.starts) == (1, [], [])
    for _ in range(3):
        world.now += 1_000
        loop.run()
    assert executor.fences == [1]
    assert [order.job for order in executor.starts] == ["b1"]


def test_a_fact_that_could_not_be_stored_is_stored_by_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object, **named: object) -> None:
        raise StoreUnavailable("the disk is full")

    world.submit("bob", "b1")
    while not world.executor.starts:
        world.controller.run_once(world.now)
    assert world.state("b1") is JobState.STARTING
    with monkeypatch.context() as patched:
        patched.setattr(type(world.store), "observe", fails)
        with pytest.raises(StoreUnavailable):
            world.controller.run_once(world.now)
    world.turn(2)
    assert world.state("b1") is JobState.RUNNING


def test_a_controller_that_lost_the_lease_during_a_decision_stores_no_inventory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn(2)
    world.submit("bob", "b1")
    recorded: list[object] = []
    record, commit = type(world.store).record, type(world.store).commit

    def lost(store: object, *given: object, **named: object) -> object:
        """While the controller decides, its lease ends, another process takes it, and an admin applies a quota file."""
        world.now += 4_000
        world.store.acquire_lease("second", clock=lambda: world.now, ttl_ms=3_000)
        world.apply_quota(QUOTA.replace("{training: 2}", "{training: 1}"))
        monkeypatch.setattr(type(world.store), "record", noted)
        return commit(store, *given, **named)  # type: ignore[arg-type]

    def noted(store: object, requests: list[object], **named: object) -> object:
        recorded.extend(requests)
        return record(store, requests, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.store), "commit", lost)
    with pytest.raises(LeaseLost):
        world.controller.run_once(world.now)
    assert recorded == []


def test_the_samples_of_a_replaced_controller_are_stored(world: World) -> None:
    loop = loop_of(world)
    for _ in range(3):
        loop.run()
        world.now += 10_000
    loop._failed(ZeroDivisionError("a defect"), world.now)
    world.now += 10_000
    loop.run()
    (newest,) = world.store.latest_samples().values()
    assert newest.at == world.now


# --- enforcement ------------------------------------------------------
def booked_notebook(setup: EnforcementSetup) -> str:
    setup.apply(policy("policed"))
    setup.world.controllers.enforcement.effects.stop_server = lambda record: None
    with setup.world.stepping():
        slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": "0.5"}
        return str(setup.world.post("notebooks", "hub", slice).json["id"])


def warnings_of(setup: EnforcementSetup, notebook: str) -> int:
    rows, _ = setup.world.store.audit()
    return sum(row.subject == notebook and "over_share" in row.kind for row in rows)


class Killed(BaseException):
    """The process ends at this point."""


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(StoreUnavailable("the disk is full"), id="the database was unavailable"),
        pytest.param(Killed(), id="the process was killed"),
    ],
)
@pytest.mark.parametrize("writes", [pytest.param(n, id=f"after {n} writes") for n in range(4)])
def test_a_warning_is_stored_once_whatever_happens_between_two_writes(
    setup: EnforcementSetup, monkeypatch: pytest.MonkeyPatch, error: BaseException, writes: int
) -> None:
    notebook, left = booked_notebook(setup), iter(range(writes))
    record = FencedStore.record

    def fails_after(store: FencedStore, *requests: Request) -> list[Recorded | Refusal]:
        if requests and next(left, None) is None:
            raise error
        return record(store, *requests)

    with monkeypatch.context() as patched:
        patched.setattr(FencedStore, "record", fails_after)
        with contextlib.suppress(StoreUnavailable, Killed):
            setup.read(**{notebook: 7000})
    if isinstance(error, Killed):
        setup.world.controllers.take_over()
        setup.world.controllers.enforcement.effects.stop_server = lambda record: None
    for _ in range(2):
        setup.read(1_000, **{notebook: 7000})
    assert warnings_of(setup, notebook) == 1
