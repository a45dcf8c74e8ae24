"""Jobs whose code bundles are gone, as after a restore without the old state folder, are held before they start."""

from __future__ import annotations

from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.reasons import CodeUnavailable
from jupyter_gpu_quota.store.records.commands import ChangeJob, Recorded
from tests.backends.fake_executor import Script
from tests.controllers.setups.scheduling import World

LOST, KEPT = "0" * 64, "1" * 64


def reason(world: World, job: str) -> object:
    record = world.store.job(job)
    assert record is not None
    return record.reason


def release(world: World, job: str) -> None:
    (outcome,) = world.store.record([ChangeJob(job=job, actor="system:test", change="release")], now=world.now)
    assert isinstance(outcome, Recorded)


def test_a_job_is_held_before_it_starts_and_starts_when_its_bundle_is_back() -> None:
    world = World()
    world.executor.lost_bundles.add(LOST)
    world.submit("bob", *(f"b{number}" for number in range(6)), bundle=LOST)
    world.submit("bob", "kept", bundle=KEPT)
    world.submit("bob", "without")
    world.turn()
    assert {name for name, state in world.states().items() if state == "held"} == {f"b{number}" for number in range(6)}
    assert reason(world, "b5") == CodeUnavailable(), "also those that would have started later"
    assert world.executor.running() == {"kept", "without"}

    release(world, "b0")
    world.turn()
    assert world.state("b0") is JobState.HELD
    world.executor.lost_bundles.clear()
    release(world, "b0")
    world.turn()
    assert "b0" in world.executor.running() and world.state("b1") is JobState.HELD


def test_no_job_is_paused_for_one_that_cannot_start() -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(2)
    world.executor.lost_bundles.add(LOST)
    world.submit("patty", "p1", bundle=LOST)
    world.turn(2)
    assert world.executor.stops == [] and len(world.executor.running()) == 4
    assert world.state("p1") is JobState.HELD


def test_a_paused_job_is_held_too() -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3", "b4", bundle=LOST)
    world.turn(2)
    world.submit("patty", "p1")
    world.turn(4)
    world.executor.lost_bundles.add(LOST)
    world.executor.end("p1", 0)
    world.turn(2)
    assert sorted(world.states().values()) == ["held", "running", "running", "running", "succeeded"]


def test_a_job_that_is_starting_is_held_with_this_reason() -> None:
    """A restored database may have it so. It keeps the reason while its devices are freed."""
    world = World(lambda order: Script(starts_after_ms=60_000))
    world.submit("bob", "b1", bundle=LOST)
    world.turn()
    assert world.state("b1") is JobState.STARTING
    world.executor.lost_bundles.add(LOST)
    starts = len(world.executor.starts)
    world.turn(8, every_ms=10_000)
    assert (world.state("b1"), reason(world, "b1")) == (JobState.HELD, CodeUnavailable())
    assert len(world.executor.starts) == starts and not world.controller.mirror.allocations()
