"""Devices that are lost or unhealthy while work runs on them: evictions, and the recorded end of that work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.protocol import Inventory
from jupyter_gpu_quota.controllers.scheduling import UNREAD_MS
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Health, JobState, JobTarget
from jupyter_gpu_quota.core.plan import Stop
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.transactions import Store
from tests.backends.fake_executor import FakeJobs
from tests.controllers.setups.scheduling import DEVICES, NODE, World
from tests.store.worlds import KINDS, opened
from tests.store.worlds import World as StoreWorld


# --- the recorded end of work -------------------------------------------------------------------------------------
@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


SICK = reason_from(ReasonCode.DEVICE_UNHEALTHY, (("device", "d0"),))


@pytest.mark.parametrize(
    ("exit_status", "asked", "completed", "state"),
    [
        pytest.param(75, True, False, "paused", id="it saved a checkpoint"),
        pytest.param(-9, True, False, "paused", id="it was killed"),
        pytest.param(1, True, False, "paused", id="it crashed after the stop order"),
        pytest.param(1, False, False, "queued", id="it crashed before the stop order"),
        pytest.param(0, True, True, "succeeded", id="it was complete"),
    ],
)
def test_leaving_an_unhealthy_device_uses_up_no_pause_and_no_retry(
    store: Store, exit_status: int, asked: bool, completed: bool, state: str
) -> None:
    world = StoreWorld(store)
    world.submit("j")
    world.run("j", "d0")
    before = world.job("j")
    world.committed(Stop(workload="j", target=JobTarget.PAUSED, grace_s=60, reason=SICK))
    world.see(world.gone("j", exit_status, asked=asked, completed=completed))
    record = world.job("j")
    assert record.job.state == state and record.retries_left == before.retries_left
    assert (record.job.paused_at, record.pauses, record.job.submitted_at) == ((), 0, before.job.submitted_at)


# --- the controller -----------------------------------------------------------------------------------------------
def lost(world: World) -> str:
    """The device of b1 is missing in the inventory."""
    (device,) = {held.device for held in world.controller.mirror.allocations() if held.workload == "b1"}
    world.executor.devices = tuple(each for each in DEVICES if each.id != device)
    return device


def test_a_job_on_a_lost_device_continues_on_another_device() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    device = lost(world)
    world.turn(70)
    (held,) = world.controller.mirror.allocations()
    assert held.device != device and world.state("b1") is JobState.RUNNING
    record = world.store.job("b1")
    assert record is not None and (record.job.attempt, record.pauses, record.job.paused_at) == (2, 0, ())
    assert [order.reason for order in world.executor.stops] == ["device_unhealthy"]


def test_a_device_that_is_lost_while_the_clock_is_set_back_is_unhealthy_within_seconds() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    device = lost(world)
    world.controller.due["inventory"] = world.now
    world.turn(1)
    assert world.controller.mirror.devices[device].health is Health.HEALTHY
    world.now -= 100_000
    world.turn(10)
    assert world.controller.mirror.devices[device].health is Health.UNHEALTHY


def test_a_job_that_was_lost_with_its_node_starts_on_another_one_at_once() -> None:
    world = World()
    world.executor.nodes = (*world.executor.nodes, replace(NODE, id="n2", name="n2"))
    world.executor.devices = (*DEVICES[:1], replace(DEVICES[1], id="n2-0", node="n2"))
    world.controller.due["inventory"] = world.now
    world.submit("bob", "b1")
    world.turn(2)
    (held,) = world.controller.mirror.allocations()
    node = world.controller.mirror.devices[held.device].node
    world.executor.nodes = tuple(replace(each, schedulable=each.id != node) for each in world.executor.nodes)
    world.executor.end("b1", None, why_lost=f"node {node} is lost")
    world.turn(2)
    (now,) = world.controller.mirror.allocations()
    assert world.controller.mirror.devices[now.device].node != node, "the inventory was not due"


def test_one_reading_without_a_device_stops_no_work() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    lost(world)
    world.controller.due["inventory"] = world.now
    world.turn(2)
    world.executor.devices = DEVICES
    world.turn(70)
    record = world.store.job("b1")
    assert record is not None and record.job.attempt == 1 and world.executor.stops == []
    assert {device.health for device in world.controller.mirror.devices.values()} == {Health.HEALTHY}


def test_an_unused_device_is_removed_after_the_first_reading_without_it() -> None:
    world = World()
    world.turn(2)
    world.executor.devices = DEVICES[1:]
    world.controller.due["inventory"] = world.now
    world.turn(1)
    assert world.controller.mirror.devices["n1-0"].health is Health.UNHEALTHY


# --- facts of the sampler -----------------------------------------------------------------------------------------
@dataclass
class FixedFacts:
    """A sampler that reports one fact of one device, and needs some ticks for each reading."""

    device: str
    fact: DeviceFact | None = None
    ticks: int = 0
    asked: list[int] = field(default_factory=list)

    def samples(self, users: object, *, now: int) -> list[DeviceSample] | None:
        self.asked.append(now)
        if len(self.asked) % (self.ticks + 1):
            return None
        unknown = {"utilisation_percent": None, "memory_used_mib": None, "coverage_permille": 0}
        why = {"utilisation_percent": "the driver's library does not answer"}
        return [DeviceSample(node="n1", device=self.device, at=now, simulated=False, why=why, **unknown)]  # type: ignore[arg-type]

    def device_facts(self) -> list[DeviceFact]:
        return [self.fact] if self.fact else []


def test_an_xid_evicts_a_job_from_its_device_with_the_reason() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    (held,) = world.controller.mirror.allocations()
    trouble = "XID 79: the GPU has fallen off the bus"
    world.controller.sampler = FixedFacts(
        held.device, DeviceFact(device=held.device, health="unhealthy", trouble=trouble)
    )
    broken = replace(world.controller.mirror.devices[held.device], health=Health.UNHEALTHY, trouble=trouble)
    world.executor.devices = tuple(broken if each.id == held.device else each for each in world.executor.devices)
    world.turn(70)
    (now_held,) = world.controller.mirror.allocations()
    assert now_held.device != held.device and world.state("b1") is JobState.RUNNING
    assert [order.reason for order in world.executor.stops] == ["device_unhealthy"]
    assert world.controller.mirror.devices[held.device].trouble == trouble


# R13, R14
def test_foreign_use_reduces_the_capacity_of_a_device() -> None:
    world = World()
    world.turn(2)
    world.controller.sampler = FixedFacts("n1-0", DeviceFact(device="n1-0", foreign_milli=140))
    world.turn(12)
    assert world.controller.mirror.devices["n1-0"].foreign_milli == 140
    for name in ("b1", "b2", "b3", "b4"):
        world.submit("bob", name)
    world.turn(3)
    assert "n1-0" not in {held.device for held in world.controller.mirror.allocations()}


def test_a_slow_reading_is_polled_at_each_tick_and_stored_once() -> None:
    world = World()
    world.turn(1)
    world.controller.sampler = found = FixedFacts("n1-0", ticks=2)
    world.controller.due.pop("sample")
    world.turn(3)
    assert len(found.asked) == 3 and found.asked[-1] - found.asked[0] == 2000
    row = world.store.latest_samples()["n1-0"]
    assert (row.utilisation_percent, row.why) == (None, {"utilisation_percent": "the driver's library does not answer"})
    world.turn(9)
    assert len(found.asked) == 3, "it is not asked again before it is due"


# --- devices that cannot be read ----------------------------------------------------------------------------------
@dataclass(slots=True)
class MuteExecutor(FakeJobs):
    """A job backend whose inventory cannot be read while it is ``mute``."""

    mute: bool = True
    asked: int = 0

    def inventory(self) -> Inventory | None:  # type: ignore[override]
        self.asked += 1
        return None if self.mute else Inventory(self.nodes, self.devices)


def unreadable(world: World) -> MuteExecutor:
    """From now on the devices cannot be read; running jobs continue."""
    kept = {each.name: getattr(world.executor, each.name) for each in fields(FakeJobs)}
    world.executor = world.controller.executor = found = MuteExecutor(**kept)
    world.controller.due["inventory"] = world.now
    return found


def test_work_on_unreadable_devices_continues() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    found = unreadable(world)
    world.turn(120)
    assert found.asked > 100, "it is looked again and again"
    assert world.state("b1") is JobState.RUNNING and world.executor.stops == []
    assert {device.health for device in world.controller.mirror.devices.values()} == {Health.HEALTHY}


@pytest.mark.parametrize("set_back_ms", [0, 100_000], ids=["the clock is as it was", "the clock is set back"])
def test_no_work_starts_on_devices_that_stay_unreadable(set_back_ms: int) -> None:
    world = World()
    world.turn(2)
    found = unreadable(world)
    world.submit("bob", "b1")
    world.turn(2)
    assert world.state("b1") is JobState.RUNNING, "a driver that is slow for a moment stops no work"
    world.now -= set_back_ms
    world.turn(UNREAD_MS // 1000)
    world.submit("bob", "b2")
    world.turn(5)
    assert world.state("b2") is JobState.QUEUED
    found.mute = False
    world.turn(5)
    assert world.state("b2") is JobState.RUNNING


def test_a_device_that_is_gone_stays_so_while_the_devices_cannot_be_read() -> None:
    world = World()
    world.turn(2)
    world.executor.devices = DEVICES[:-1]
    world.controller.due["inventory"] = world.now
    world.turn(1)
    gone = dict(world.controller.mirror.gone_devices)
    assert set(gone) == {DEVICES[-1].id}
    found = unreadable(world)
    world.turn(20)
    assert found.asked > 5 and world.controller.mirror.gone_devices == gone


def test_a_new_controller_ends_no_work_on_unreadable_devices() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    world.controller.leadership.resign()
    world.controller = world.another("second")
    unreadable(world)
    world.turn(60)
    assert world.state("b1") is JobState.RUNNING and world.executor.stops == []
