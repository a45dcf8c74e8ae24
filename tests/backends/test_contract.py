"""What every executor promises, asked of the real one and of the labelled fake alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.worlds import FakeWorld, LocalWorld, World, leave, order


@pytest.fixture(params=["local executor", "fake executor"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake executor":
        yield FakeWorld()
        return
    with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
        world = LocalWorld(Path(folder))
        yield world
        world.close()


@pytest.mark.parametrize(
    ("acts", "exit_status", "completed"),
    [
        pytest.param("ends with 0", 0, False, id="a job that ends well is told with 0"),
        pytest.param("ends with 3", 3, False, id="a job that fails is told with its status"),
        pytest.param("completes and ends", 0, True, id="a job that reports done = total is complete"),
    ],
)
def test_an_end_is_told(world: World, acts: str, exit_status: int, completed: bool) -> None:
    world.executor.start(order("J", acts))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.completed, fact.pause_requested) == (exit_status, completed, False)
    assert fact.pid and fact.started_at and fact.ended_at and fact.started_at <= fact.ended_at


@pytest.mark.parametrize(
    ("acts", "grace_s", "exit_status", "completed"),
    [
        pytest.param("saves and leaves", 600, 75, False, id="a job that saves leaves with 75"),
        pytest.param("runs on", 600, -15, False, id="a job that knows nothing of pauses dies of SIGTERM"),
        pytest.param("ignores SIGTERM", 1, -9, False, id="a job that ignores SIGTERM is killed after its grace"),
        pytest.param("completes when asked to leave", 600, 0, True, id="a job that was just done says so"),
    ],
)
def test_a_pause_is_told(world: World, acts: str, grace_s: int, exit_status: int, completed: bool) -> None:
    world.executor.start(order("J", acts))
    world.ready("J", acts)
    world.executor.leave(leave("J", grace_s=grace_s))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested, fact.completed) == (exit_status, True, completed)


def test_a_start_given_twice_runs_once(world: World) -> None:
    for _ in range(3):
        world.executor.start(order("J", "runs on"))
    first = world.ready("J", "runs on")
    world.executor.start(order("J", "runs on"))
    world.pass_ms(300)
    assert [fact.pid for fact in world.executor.observe()] == [first.pid]


def test_an_attempt_that_ended_is_not_run_again(world: World) -> None:
    world.executor.start(order("J", "ends with 3"))
    ended = world.until(lambda fact: fact.tree_gone)
    world.executor.start(order("J", "ends with 3"))
    world.pass_ms(300)
    assert list(world.executor.observe()) == [ended]


def test_the_next_attempt_is_told_beside_the_last(world: World) -> None:
    world.executor.start(order("J", "ends with 3"))
    world.until(lambda fact: fact.tree_gone)
    world.executor.start(order("J", "ends with 0", attempt=2))
    fact = world.until(lambda fact: fact.attempt == 2 and fact.tree_gone)
    assert fact.exit_status == 0
    assert {fact.attempt for fact in world.executor.observe()} == {1, 2}


def test_a_repeated_request_to_leave_does_not_restart_the_grace(world: World) -> None:
    world.executor.start(order("J", "ignores SIGTERM"))
    world.ready("J", "ignores SIGTERM")
    asked_at = world.now()
    for _ in range(40):  # as long as it is asked again, a grace that starts anew never ends
        world.executor.leave(leave("J", grace_s=1))
        world.pass_ms(150)
        if ended := [fact.ended_at for fact in world.executor.observe() if fact.ended_at is not None]:
            break
    assert ended and ended[0] - asked_at >= 900


def test_a_second_request_may_shorten_the_grace(world: World) -> None:
    world.executor.start(order("J", "ignores SIGTERM"))
    world.ready("J", "ignores SIGTERM")
    world.executor.leave(leave("J", grace_s=600))
    world.until(lambda fact: fact.pause_requested)
    world.executor.leave(leave("J", grace_s=0))
    assert world.until(lambda fact: fact.tree_gone).exit_status == -9


def test_an_exit_before_the_request_is_judged_as_if_there_were_none(world: World) -> None:
    world.executor.start(order("J", "ends with 0"))
    before = world.until(lambda fact: fact.tree_gone)
    world.executor.leave(leave("J"))
    world.pass_ms(200)
    assert list(world.executor.observe()) == [before]
    assert not before.pause_requested


def test_a_job_asked_to_leave_before_it_began_never_begins(world: World) -> None:
    world.executor.leave(leave("J"))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.pid, fact.started_at, fact.pause_requested) == (None, None, True)
    world.executor.start(order("J", "runs on"))
    world.pass_ms(300)
    assert [fact.pid for fact in world.executor.observe()] == [None]


def test_an_older_leader_starts_nothing_and_a_newer_one_may(world: World) -> None:
    world.executor.fence(7)
    world.executor.start(order("J", "runs on", fencing=6))
    world.pass_ms(500)
    assert [fact for fact in world.executor.observe() if fact.pid or fact.ended_at] == []
    world.executor.start(order("J", "runs on", fencing=7))
    assert world.ready("J", "runs on").refused is None


def test_an_older_leader_makes_nobody_leave(world: World) -> None:
    world.executor.start(order("J", "runs on", fencing=6))
    running = world.ready("J", "runs on")
    world.executor.fence(7)
    world.executor.leave(leave("J", fencing=6, grace_s=0))
    world.pass_ms(300)
    assert list(world.executor.observe()) == [running]
    world.executor.leave(leave("J", fencing=7, grace_s=0))
    assert world.until(lambda fact: fact.tree_gone).pause_requested


def test_a_fence_is_never_lowered(world: World) -> None:
    world.executor.fence(7)
    world.executor.fence(3)
    world.executor.start(order("J", "runs on", fencing=6))
    world.pass_ms(300)
    assert world.executor.pids() == {}


def test_an_older_leader_cannot_end_what_never_began(world: World) -> None:
    world.executor.fence(7)
    world.executor.leave(leave("J", fencing=6))
    world.executor.start(order("J", "runs on", fencing=7))
    assert world.ready("J", "runs on").pid is not None


def test_what_is_settled_is_told_no_more(world: World) -> None:
    world.executor.start(order("J", "ends with 0"))
    world.until(lambda fact: fact.tree_gone)
    world.executor.settled("J", 1)
    assert list(world.executor.observe()) == []


def test_what_runs_cannot_be_forgotten(world: World) -> None:
    world.executor.start(order("J", "runs on"))
    running = world.ready("J", "runs on")
    world.executor.forget("J")
    assert list(world.executor.observe()) == [running]


def test_a_job_that_ended_can_be_forgotten(world: World) -> None:
    world.executor.start(order("J", "ends with 0"))
    world.until(lambda fact: fact.tree_gone)
    world.executor.forget("J")
    assert list(world.executor.observe()) == []


def test_processes_are_told_by_job_while_they_live(world: World) -> None:
    world.executor.start(order("J", "runs on"))
    world.executor.start(order("K", "runs on"))
    held = {job: world.until(lambda fact, job=job: fact.job == job and fact.pid).pid for job in ("J", "K")}  # type: ignore[misc]
    found = world.executor.pids()
    assert {job: held[job] in found[job] for job in ("J", "K")} == {"J": True, "K": True}
    assert not found["J"] & found["K"]
    world.executor.leave(leave("J", grace_s=0))
    world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    assert set(world.executor.pids()) == {"K"}


def test_every_rank_of_a_gang_is_told_and_leaves(world: World) -> None:
    world.executor.start(order("J", "runs on", ranks=3))
    for rank in range(3):
        world.until(lambda fact, rank=rank: fact.rank == rank and fact.pid is not None)  # type: ignore[misc]
    world.executor.leave(leave("J"))
    for rank in range(3):
        world.until(lambda fact, rank=rank: fact.rank == rank and fact.tree_gone and fact.pause_requested)  # type: ignore[misc]


def test_the_inventory_is_the_same_twice(world: World) -> None:
    nodes, devices = world.executor.inventory()
    assert (nodes, devices) == world.executor.inventory()
    assert {device.node for device in devices} == {node.id for node in nodes}
    assert all(device.simulated and device.pool is None for device in devices)
