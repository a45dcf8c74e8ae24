"""A device that is lost under its work: what the controller does, and what the end of that work means in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.model import Health, JobState, JobTarget
from jupyter_gpu_quota.core.plan import Reason, ReasonCode, Stop
from jupyter_gpu_quota.store.ledger import LedgerStore
from tests.shell.store_worlds import KINDS, opened
from tests.shell.store_worlds import World as StoreWorld
from tests.shell.test_controller import DEVICES, World


# --- what the end means -------------------------------------------------------------------------------------------
@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerStore]:
    with opened(request.param, tmp_path) as store:
        yield store


SICK = Reason(code=ReasonCode.DEVICE_UNHEALTHY, figures=(("device", "d0"),))


@pytest.mark.parametrize(
    ("exit_status", "asked", "completed", "state"),
    [
        pytest.param(75, True, False, "paused", id="it saved"),
        pytest.param(-9, True, False, "paused", id="it was killed"),
        pytest.param(1, True, False, "paused", id="it crashed on the sick device after it was asked"),
        pytest.param(1, False, False, "queued", id="it crashed on the sick device before it could be asked"),
        pytest.param(0, True, True, "succeeded", id="it was complete"),
    ],
)
def test_leaving_an_unhealthy_device_uses_up_no_pause_and_no_retry(
    store: LedgerStore, exit_status: int, asked: bool, completed: bool, state: str
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
    """The device of b1 vanishes from the inventory."""
    (device,) = {held.device for held in world.controller.mirror.allocations() if held.workload == "b1"}
    world.executor.devices = tuple(each for each in DEVICES if each.id != device)
    return device


def test_a_job_whose_device_is_lost_goes_on_on_another_one() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    device = lost(world)
    world.turn(70)
    (held,) = world.controller.mirror.allocations()
    assert held.device != device and world.state("b1") is JobState.RUNNING
    record = world.store.job("b1")
    assert record is not None and (record.job.attempt, record.pauses, record.job.paused_at) == (2, 0, ())
    assert [order.reason for order in world.executor.leaves] == ["device_unhealthy"]


def test_one_reading_that_lacks_a_device_ends_nobodys_work() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    lost(world)
    world.controller.due["inventory"] = world.now
    world.turn(2)
    world.executor.devices = DEVICES
    world.turn(70)
    record = world.store.job("b1")
    assert record is not None and record.job.attempt == 1 and world.executor.leaves == []
    assert {device.health for device in world.controller.mirror.devices.values()} == {Health.HEALTHY}


def test_a_device_that_nobody_uses_is_gone_with_the_first_reading_that_lacks_it() -> None:
    world = World()
    world.turn(2)
    world.executor.devices = DEVICES[1:]
    world.controller.due["inventory"] = world.now
    world.turn(1)
    assert world.controller.mirror.devices["n1-0"].health is Health.UNHEALTHY
