"""The contract of backends, for the local one, the simulated one, and one behind an unreliable network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.backends.protocol import OutputRefused, StopNotebookOrder
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare
from jupyter_gpu_quota.core.model import Allocation
from tests.backends.contract import REAL, Controller, RemoteContract, opened
from tests.backends.worlds import order

KINDS = ["local", "simulated", "clusters own", "clusters west", *(f"remote {seed}" for seed in range(4))]


@pytest.fixture(params=[*KINDS, "scripted"])
def world(request: pytest.FixtureRequest) -> Iterator[Controller]:
    """A controller of each backend, and of the scripted jobs of other tests."""
    yield from opened(request.param)


@pytest.fixture(params=KINDS)
def whole(request: pytest.FixtureRequest) -> Iterator[Controller]:
    """A controller of each backend that has all parts."""
    yield from opened(request.param)


# --- ends and pauses --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("acts", "exit_status", "completed"),
    [
        pytest.param("ends with 0", 0, False, id="a job that succeeds is reported with 0"),
        pytest.param("ends with 3", 3, False, id="a job that fails is reported with its status"),
        pytest.param("completes and ends", 0, True, id="a job that reports done = total is complete"),
    ],
)
def test_an_end_is_reported(world: Controller, acts: str, exit_status: int, completed: bool) -> None:
    world.start("J", acts)
    fact = world.gone("J")
    assert (fact.exit_status, fact.completed, fact.pause_requested) == (exit_status, completed, False)
    assert fact.started_at and fact.ended_at and fact.started_at <= fact.ended_at


@pytest.mark.parametrize(
    ("acts", "grace_s", "exit_status", "completed"),
    [
        pytest.param("saves and stops", 600, 75, False, id="a job that saves ends with 75"),
        pytest.param("runs on", 600, -15, False, id="a job without a handler is ended by SIGTERM"),
        pytest.param("ignores SIGTERM", 1, -9, False, id="a job that ignores SIGTERM is killed after its grace"),
        pytest.param("completes when stopped", 600, 0, True, id="a job that completes during the pause is complete"),
    ],
)
def test_a_pause_is_reported(world: Controller, acts: str, grace_s: int, exit_status: int, completed: bool) -> None:
    world.start("J", acts)
    world.began("J", acts)
    world.stop("J", grace_s=grace_s)
    fact = world.gone("J")
    assert (fact.exit_status, fact.pause_requested, fact.completed) == (exit_status, True, completed)


def test_an_exit_before_a_stop_order_is_not_a_pause(world: Controller) -> None:
    world.start("J", "ends with 0")
    before = world.gone("J")
    world.stop("J")
    world.wait()
    assert world.seen() == [before]
    assert not before.pause_requested


def test_every_rank_of_a_gang_is_paused_and_reported(world: Controller) -> None:
    world.start("J", "runs on", ranks=3)
    for rank in range(3):
        world.until(lambda fact, rank=rank: fact.rank == rank and fact.started_at is not None)  # type: ignore[misc]
    world.stop("J")
    for rank in range(3):
        world.until(lambda fact, rank=rank: fact.rank == rank and fact.tree_gone and fact.pause_requested)  # type: ignore[misc]


# --- repeated orders ------------------------------------------------------------------------------------------------
def test_a_repeated_start_order_runs_once(world: Controller) -> None:
    for _ in range(3):
        world.start("J", "runs on")
    first = world.began("J", "runs on")
    world.start("J", "runs on")
    world.wait()
    assert world.seen() == [first]


def test_an_ended_attempt_is_not_started_again(world: Controller) -> None:
    world.start("J", "ends with 3")
    ended = world.gone("J")
    world.wait()
    assert world.seen() == [ended]


def test_the_next_attempt_is_reported_beside_the_last(world: Controller) -> None:
    world.start("J", "ends with 3")
    world.gone("J")
    world.start("J", "ends with 0", attempt=2)
    fact = world.until(lambda fact: fact.attempt == 2 and fact.tree_gone)
    assert fact.exit_status is not None
    assert {fact.attempt for fact in world.seen()} == {1, 2}


def test_a_repeated_stop_order_does_not_restart_the_grace(world: Controller) -> None:
    world.start("J", "ignores SIGTERM")
    world.began("J", "ignores SIGTERM")
    asked_at = world.world.now()
    world.stop("J", grace_s=2)  # it is repeated every second: a grace that restarts would never end
    ended_at = world.gone("J").ended_at
    assert ended_at is not None and ended_at - asked_at >= 1_900


def test_a_second_stop_order_may_shorten_the_grace(world: Controller) -> None:
    world.start("J", "ignores SIGTERM")
    world.began("J", "ignores SIGTERM")
    world.stop("J", grace_s=600)
    world.until(lambda fact: fact.pause_requested)
    world.stop("J", grace_s=0)
    assert world.gone("J").exit_status == -9


def test_a_stop_order_is_dated_once(world: Controller) -> None:
    world.start("J", "ignores SIGTERM")
    world.began("J", "ignores SIGTERM")
    assert world.backend.jobs.stop_ordered_at("J", 1) is None
    before = world.world.now()
    world.stop("J", grace_s=600)
    world.until(lambda fact: fact.pause_requested)
    ordered_at = world.world.until(lambda: world.backend.jobs.stop_ordered_at("J", 1))
    assert before <= ordered_at <= world.world.now()
    world.pass_ms(10)
    world.stop("J", grace_s=500)
    world.wait()
    assert world.backend.jobs.stop_ordered_at("J", 1) == ordered_at
    world.stop("J", grace_s=0)
    world.gone("J")


def test_a_job_that_is_stopped_before_it_started_never_starts(world: Controller) -> None:
    world.stop("J")
    fact = world.gone("J")
    assert (fact.started_at, fact.pause_requested) == (None, True)
    world.start("J", "runs on")
    world.wait()
    assert [fact.started_at for fact in world.seen()] == [None]


def test_every_rank_of_a_gang_that_is_stopped_before_it_started_ends(world: Controller) -> None:
    world.stop("J", ranks=3)
    for rank in range(3):
        fact = world.until(lambda fact, rank=rank: fact.rank == rank and fact.tree_gone)  # type: ignore[misc]
        assert (fact.started_at, fact.pause_requested) == (None, True)
    world.start("J", "runs on", ranks=3)
    world.wait()
    assert [fact.started_at for fact in world.seen()] == [None] * 3


# --- leaders ----------------------------------------------------------------------------------------------------------
def test_an_older_leader_starts_nothing_and_a_newer_one_may(world: Controller) -> None:
    world.backend.jobs.fence(7)
    world.start("J", "runs on", fencing=6)
    world.wait()
    assert [fact for fact in world.seen() if fact.started_at or fact.ended_at] == []
    world.orders.clear()
    world.start("J", "runs on", fencing=7)
    assert world.began("J", "runs on").refused is None


def test_an_older_leader_stops_nothing(world: Controller) -> None:
    world.start("J", "runs on", fencing=6)
    running = world.began("J", "runs on")
    world.backend.jobs.fence(7)
    world.stop("J", fencing=6, grace_s=0)
    world.wait()
    assert world.seen() == [running]
    world.stop("J", fencing=7, grace_s=0)
    assert world.gone("J").pause_requested


def test_a_fence_is_never_lowered(world: Controller) -> None:
    world.backend.jobs.fence(7)
    world.backend.jobs.fence(3)
    world.start("J", "runs on", fencing=6)
    world.wait()
    assert not any(fact.started_at for fact in world.seen())


def test_an_older_leader_cannot_end_an_unstarted_attempt(world: Controller) -> None:
    world.backend.jobs.fence(7)
    world.stop("J", fencing=6)
    world.wait()
    world.orders.clear()
    world.start("J", "runs on", fencing=7)
    assert world.began("J", "runs on").started_at is not None


def test_a_leader_that_takes_over_observes_running_and_ended_attempts(world: Controller) -> None:
    world.start("J", "runs on")
    world.start("K", "ends with 3")
    before = world.began("J", "runs on"), world.gone("K")
    world.take_over(2)
    found = world.until(lambda fact: fact.job == "J"), world.gone("K")
    assert found == before
    world.stop("J", fencing=2)
    assert world.gone("J").pause_requested


def test_a_leader_that_has_waited_observes_what_was_started_meanwhile(world: Controller) -> None:
    standby = world.world.another()
    world.start("J", "runs on")
    world.start("K", "ends with 3")
    before = world.began("J", "runs on"), world.gone("K")
    world.take_over_by(standby, 2)
    assert (world.until(lambda fact: fact.job == "J"), world.gone("K")) == before


# --- settled and forgotten --------------------------------------------------------------------------------------------
def test_settled_facts_are_not_reported_again(world: Controller) -> None:
    world.start("J", "ends with 0")
    world.gone("J")
    world.orders.clear()
    world.backend.jobs.settled("J", 1)
    world.facts.clear()
    world.wait()
    assert world.seen() == []


def test_a_running_attempt_cannot_be_forgotten(world: Controller) -> None:
    world.start("J", "runs on")
    running = world.began("J", "runs on")
    with pytest.raises(OSError, match="J"):
        world.backend.jobs.forget("J")
    world.wait()
    assert world.seen() == [running]
    world.stop("J")
    assert world.gone("J").pause_requested


def test_a_job_that_ended_can_be_forgotten(world: Controller) -> None:
    world.start("J", "ends with 0")
    world.gone("J")
    world.backend.jobs.settled("J", 1)
    world.orders.clear()
    world.forget("J")
    world.wait()
    world.take_over(2)
    world.wait()
    assert world.seen() == []


# --- devices ----------------------------------------------------------------------------------------------------------
def test_the_inventory_is_the_same_twice(whole: Controller) -> None:
    found = whole.backend.jobs.inventory()
    assert found is not None and found == whole.backend.jobs.inventory()
    nodes, devices = found.nodes, found.devices
    assert {device.node for device in devices} == {node.id for node in nodes}
    assert all(device.simulated and device.pool is None for device in devices)


def test_every_device_is_sampled_and_an_unknown_figure_is_not_0(whole: Controller) -> None:
    found = whole.backend.jobs.inventory()
    assert found is not None
    (device, *others) = found[1]
    held = Allocation(id="A", workload="unheard of", rank=0, device=device.id, gpu_milli=500, memory_mib=100)
    users = {device: [held], **{other: [] for other in others}}
    samples = whole.world.until(lambda: whole.backend.samples.samples(users, now=whole.world.now()) or [])
    of = {each.device: each for each in samples}
    assert set(of) == {each.id for each in found[1]}
    assert of[device.id].workloads == {"unheard of": None}
    assert (of[device.id].utilisation_percent, of[device.id].coverage_permille) == (None, 0)
    assert of[device.id].why["unheard of"] and of[device.id].why["memory_used_mib"]


def test_a_simulated_device_enforces_nothing_and_an_unread_one_is_unknown(whole: Controller) -> None:
    found = whole.backend.jobs.inventory()
    assert found is not None
    devices = [found[1][0], REAL]
    offers = whole.backend.enforcement.capabilities(devices, gpu_milli=500, project="vision").offers
    assert [each.device for each in offers] == [each.id for each in devices]
    assert [(each.memory, each.unsure) for each in offers] == [("none", False), ("none", True)]
    assert all(each.why for each in offers)


def test_a_share_that_cannot_be_read_back_has_the_reason(whole: Controller) -> None:
    part = {"workload": "J", "gpu_milli": 500, "memory_mib": 100, "attempt": 1}
    shares = {
        "a": DeviceShare(device="SIM-0", simulated=True, **part),  # type: ignore[arg-type]
        "b": DeviceShare(device="GPU-0", **part),  # type: ignore[arg-type]
    }
    labels = whole.backend.enforcement.read_back(shares, {}, policed=True, now=whole.world.now())
    assert {name: (each.memory, each.compute, each.unsure) for name, each in labels.items()} == {
        "a": ("none", "none", False), "b": ("none", "none", True),
    }  # fmt: skip
    assert all(each.why for each in labels.values())


def test_a_stop_order_of_an_older_leader_is_refused(whole: Controller) -> None:
    whole.backend.jobs.fence(7)
    whole.give(StopNotebookOrder(notebook="N", fencing=6, reason="over_share"))
    whole.wait()
    assert not whole.world.stopped()
    whole.give(StopNotebookOrder(notebook="N", fencing=7, reason="over_share"))
    whole.wait()
    assert whole.world.stopped() in (["N"], None)


# --- logs and outputs -------------------------------------------------------------------------------------------------
def test_a_log_is_read_by_offsets(whole: Controller) -> None:
    whole.start("J", "writes")
    whole.gone("J")
    log = whole.backend.outputs.log
    assert log("J", 1, 0) == (0, b"one\ntwo\n", 8, 0)
    assert log("J", 1, 0, 4, 2) == (4, b"tw", 6, 0)
    assert log("J", 1, 0, -4) == (4, b"two\n", 8, 0)
    assert log("J", 1, 0, 8) == (8, b"", 8, 0)
    assert log("K", 1, 0).data == b""


def test_outputs_are_listed_and_read(whole: Controller) -> None:
    whole.start("J", "writes")
    whole.gone("J")
    outputs = whole.backend.outputs
    assert [(each.path, each.size_bytes) for each in outputs.outputs("J").files] == [("a/model", 7), ("notes", 1)]
    first = outputs.outputs("J", 1)
    assert (len(first.files), first.is_truncated, outputs.outputs("J", 2).is_truncated) == (1, True, False)
    with outputs.open_output("J", "a/model") as file:
        assert file.read() == b"weights"
    with pytest.raises(OutputRefused, match="nowhere"):
        outputs.open_output("J", "nowhere")
    assert outputs.outputs("K") == ([], False)


def test_the_outputs_of_a_job_are_removed_only_after_its_end(world: Controller) -> None:
    world.start("J", "writes and runs on")
    world.began("J", "writes and runs on")

    def size() -> int | None:
        return world.world.until(lambda: world.backend.jobs.output_sizes(["J"])).get("J")

    assert size() == 1
    world.remove_outputs("J")
    world.wait()
    assert size() == 1
    world.stop("J")
    world.gone("J")

    def is_removed() -> bool:
        world.remove_outputs("J")
        return size() == 0

    world.world.until(is_removed)


def test_removed_outputs_are_not_listed_and_the_log_stays(whole: Controller) -> None:
    whole.start("J", "writes")
    whole.gone("J")

    def is_removed() -> bool:
        whole.remove_outputs("J")
        return not whole.backend.outputs.outputs("J").files

    whole.world.until(is_removed)
    assert whole.backend.outputs.log("J", 1, 0).data == b"one\ntwo\n"


# --- a node that cannot be reached ------------------------------------------------------------------------------------
def test_the_state_of_an_unreachable_node_is_unknown() -> None:
    remote = RemoteContract(0)
    world = Controller(remote)
    world.start("J", "runs on")
    running = world.began("J", "runs on")
    remote.network.down = True
    world.stop("J", grace_s=0)
    world.pass_ms(60_000)
    assert world.seen() == [running], "it was ordered to leave, and not seen to"
    assert world.backend.jobs.inventory() is None
    assert world.backend.samples.samples({}, now=0) is None
    offers = world.backend.enforcement.capabilities([REAL], gpu_milli=500, project=None).offers
    assert offers[0].unsure and offers[0].why
    with pytest.raises(OutputRefused):
        world.backend.outputs.open_output("J", "model")
    with pytest.raises(TimeoutError):
        world.backend.jobs.fence(9)
    remote.network.down = False
    assert world.gone("J").exit_status == -15


def test_a_delayed_order_of_an_older_leader_has_no_effect() -> None:
    remote = RemoteContract(1)
    world = Controller(remote)
    made = remote.there.jobs
    world.backend.jobs.fence(1)
    remote.network.send_after(30_000, lambda: made.start(order("J", "runs on", fencing=1)))
    world.take_over(2)
    world.pass_ms(60_000)
    assert world.seen() == []
