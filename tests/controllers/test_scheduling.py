"""The scheduling controller on a virtual clock, with the shipped core, the in-memory store and a fake job backend."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from jupyter_gpu_quota.controllers import scheduling
from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.orders import stop_order
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.model import JobState, NotebookState, PreemptionPolicy
from jupyter_gpu_quota.core.plan import Plan
from jupyter_gpu_quota.core.scheduling.cycle import SchedulingCycle
from jupyter_gpu_quota.core.scheduling.decide import UndecidedPools
from jupyter_gpu_quota.core.scheduling.plan_builder import PlanBuilder
from jupyter_gpu_quota.core.validate import UnknownDevice
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.calls import Lease, LeaseLost, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ChangeJob, RequestNotebook, ReturnNotebook
from tests.backends.fake_executor import FakeJobs, Script
from tests.controllers.setups.scheduling import DEVICES, QUOTA, World


def test_bob_uses_every_idle_gpu_and_pattys_guarantee_pauses_two_of_his_jobs_which_resume() -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3", "b4", "b5", "b6")
    world.turn(3)
    assert world.executor.running() == {"b1", "b2", "b3", "b4"}
    world.submit("patty", "p1", "p2")
    world.turn(4)
    assert {"p1", "p2"} <= world.executor.running()
    paused = {name for name, state in world.states().items() if state == "paused"}
    assert len(paused) == 2 and paused < {"b1", "b2", "b3", "b4"}
    world.executor.end("p1", 0, completed=True)
    world.executor.end("p2", 0, completed=True)
    world.turn(3)
    assert world.executor.running() == {"b1", "b2", "b3", "b4"}, "the paused ones were submitted before b5 and b6"
    assert {world.executor.starts[-1].attempt, world.executor.starts[-2].attempt} == {2}
    assert isinstance(world.store.audit_verify(), int), "the audit's hash chain is broken"


def test_a_defect_in_the_decision_of_one_pool_keeps_only_that_pool_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    world, shipped = World(), SchedulingCycle.run
    world.submit("bob", "b1")
    world.turn(2)

    def run(cycle: SchedulingCycle) -> PlanBuilder:
        if cycle.pool.name == "train":
            raise IndexError("list index out of range")
        return shipped(cycle)

    monkeypatch.setattr(SchedulingCycle, "run", run)
    world.submit("bob", "b2")
    asked = RequestNotebook(
        notebook="nb1", user=world.users["bob"], server="", project="vision", pool="build", gpu_milli=125
    )
    world.store.record([ChangeJob(job="b1", actor=world.users["bob"], change="cancel"), asked], now=world.now)
    with pytest.raises(UndecidedPools, match=r"in these pools.*: train: IndexError: list index out of range"):
        world.turn()
    notebook = world.store.notebook("nb1")
    assert notebook is not None and notebook.notebook.state is NotebookState.BOOKED
    assert not world.executor.running(), "b1 was cancelled"
    monkeypatch.undo()
    world.turn(3)
    assert world.executor.running() == {"b2"}


def test_a_pool_that_stays_undecided_is_tried_again_later_and_later_in_the_same_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, tried = World(), list[int]()
    made = list[SchedulingController]()

    def make() -> SchedulingController:
        made.append(world.another("first"))
        return made[-1]

    loop = Loop(
        "scheduling", make, Leadership(world.store, lambda: world.now, holder="first"), lambda: world.now,
        takes_lease=True, max_backoff_ms=1_000,
    )  # fmt: skip

    def run(cycle: SchedulingCycle) -> PlanBuilder:
        if cycle.pool.name == "train":
            tried.append(world.now)
        raise IndexError("list index out of range")

    monkeypatch.setattr(SchedulingCycle, "run", run)
    world.submit("bob", "b1")
    for _ in range(300):
        world.now = max(loop.run(), world.now + 1)
        assert loop.status.failing_since is not None
    rests = [after - before for before, after in pairwise(tried)]
    assert rests == sorted(rests) and rests[-1] == 60_000 and len(tried) < 15
    assert (len(made), made[0].fenced) == (1, 1)
    monkeypatch.undo()
    world.submit("patty", "p1")
    for _ in range(4):
        world.now = max(loop.run(), world.now + 1)
    assert loop.status.failing_since is None and world.executor.running() == {"b1", "p1"}


def test_a_reading_that_is_refused_fails_the_loop_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    loop = Loop(
        "scheduling", lambda: world.controller, world.controller.leadership, lambda: world.now, takes_lease=True
    )
    loop.run()
    world.executor.devices = (*DEVICES, DEVICES[0])
    world.controller.due.clear()
    world.submit("bob", "b1")
    for _ in range(3):
        loop.run()
        world.now += 1000
    assert loop.status.last_error == "InventoryRefused: The inventory names n1-0 more than once; nothing was stored."
    assert loop.status.failing_since is not None and world.executor.running() == {"b1"}
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert said.message.endswith("The inventory names n1-0 more than once; nothing was stored.") and not said.exc_info
    world.executor.devices = DEVICES
    world.controller.due.clear()
    loop.run()
    assert loop.status.failing_since is None


def test_a_plan_of_an_earlier_term_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans that each fit the quota may not fit together, and no row that they name changed."""
    world = World()
    world.apply_quota(QUOTA.replace("{train: {training: 2}, build", "{train: {training: 0.5, limit: 0.5}, build"))
    world.turn(2)
    half = {"gpu_asked": "0.5", "gpu_milli": 500}
    first, shipped = world.controller, scheduling.decide

    def freezes(*given: Any) -> Plan:
        plan = shipped(*given)
        monkeypatch.undo()
        world.now += 10_000
        world.submit("bob", "urgent", priority=90, **half)
        second = world.another("second")
        second.run_once(world.now)
        assert world.state("urgent") is JobState.STARTING
        second.leadership.resign()
        return plan

    monkeypatch.setattr(scheduling, "decide", freezes)
    world.submit("bob", "b1", **half)
    first.run_once(world.now)
    world.turn(3)
    assert world.states() == {"b1": "queued", "urgent": "running"}


def test_nothing_is_decided_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3", "b4", "b5")
    world.turn(3)
    calls = []
    monkeypatch.setattr("jupyter_gpu_quota.controllers.scheduling.decide", lambda *given: calls.append(given))
    world.turn(20)
    assert calls == []


# R10
def test_a_time_limit_ends_a_job_without_any_other_event() -> None:
    world = World()
    world.submit("bob", "b1", time_limit_s=30)
    world.turn(29)
    assert world.state("b1") is JobState.RUNNING
    world.turn(5)
    assert world.state("b1") is JobState.FAILED


def test_a_held_job_stops_and_starts_again_when_released() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    world.store.record([ChangeJob(job="b1", actor=world.users["bob"], change="hold")], now=world.now)
    world.turn(3)
    assert world.state("b1") is JobState.HELD and not world.executor.running()
    world.store.record([ChangeJob(job="b1", actor=world.users["bob"], change="release")], now=world.now)
    world.turn(2)
    assert world.executor.running() == {"b1"}


def test_a_start_order_has_the_grace_of_the_quota_file() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    assert [order.grace_s for order in world.executor.starts] == [10]


def test_a_job_that_ignores_the_pause_is_killed_after_its_grace_and_resumes() -> None:
    world = World(script=lambda order: Script(on_stop=None))
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(3)
    world.submit("patty", "p1")
    world.turn(9)
    assert "p1" not in world.executor.running(), "the grace is not over"
    world.turn(4)
    assert "p1" in world.executor.running()
    assert sorted(world.states().values()).count("paused") == 1


def test_a_notebook_starts_at_once_within_its_quota_and_returns_its_slice() -> None:
    world = World()
    asked = [
        RequestNotebook(notebook=name, user=world.users[user], server="", project=project, pool="build", gpu_milli=125)
        for name, user, project in (("nb1", "bob", "vision"), ("nb2", "patty", "speech"))
    ]
    world.store.record(asked, now=world.now)
    world.turn(1)
    booked = [world.store.notebook(name) for name in ("nb1", "nb2")]
    assert all(record is not None and record.notebook.state is NotebookState.BOOKED for record in booked)
    assert {held.device for held in world.controller.mirror.allocations()} == {"n1-4"}
    world.store.record([ReturnNotebook(notebook="nb1", actor="system:hub", why="stopped")], now=world.now)
    world.turn(1)
    assert [held.workload for held in world.controller.mirror.allocations()] == ["nb2"]


def test_a_second_controller_waits_for_the_lease_and_a_thawed_first_one_changes_nothing() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)
    frozen, second = world.controller, world.another("second")
    with pytest.raises(LeaseLost):
        second.run_once(world.now)
    world.now += 4000
    world.controller = second
    world.turn(1)
    version, orders = world.store.version(), len(world.executor.starts)
    assert second.lease is not None and frozen.lease is not None and second.lease.fencing > frozen.lease.fencing
    world.submit("bob", "b2")
    before = world.store.version()
    held = frozen.lease
    with pytest.raises(LeaseLost):
        frozen._observe(held, world.now)
    with pytest.raises(LeaseLost):
        frozen._decide(held, world.now)
    frozen._apply(held, world.now)
    assert world.state("b2") is JobState.QUEUED and len(world.executor.starts) == orders
    assert world.store.version() == before > version


@pytest.mark.parametrize("work_waits", [True, False], ids=["a plan is written", "nothing is decided"])
def test_an_end_is_reported_until_a_later_plan_or_lease_is_on_disk(
    monkeypatch: pytest.MonkeyPatch, work_waits: bool
) -> None:
    """An observed end need not be on disk at once: after a power failure it must be reported again."""
    world = World(lambda order: Script(runs_for_ms=1_200, completes=True))
    order = list[str]()

    def noted(kind: type, name: str) -> None:
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *args, **named: (order.append(name), real(*args, **named))[1])

    for name in ("commit", "acquire_lease", "observe"):
        noted(MemoryStore, name)
    noted(FakeJobs, "settled")
    world.submit("bob", *[f"b{number}" for number in range(6 if work_waits else 1)])
    world.turn(14, every_ms=500)
    assert world.store.job("b0").job.state is JobState.SUCCEEDED
    at = order.index("settled")
    written = [name for name in order[:at] if name != "settled"]
    assert written[-1] == ("commit" if work_waits else "acquire_lease")
    assert "observe" in written[-3:], "it was seen before that, and not long before"
    assert not world.controller.unsettled


def test_a_refused_attempt_is_settled_as_one_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    observe, refused = FakeJobs.observe, {"handle": None, "started_at": None, "refused": "no such image"}
    monkeypatch.setattr(
        FakeJobs, "observe", lambda jobs: [replace(fact, **refused, tree_gone=True) for fact in observe(jobs)]
    )
    world = World()
    world.submit("bob", "b1")
    world.turn(14, every_ms=500)
    assert world.state("b1") is JobState.FAILED
    assert [run.settled for run in world.executor._runs.values()] == [True]


def test_a_committed_plan_is_applied_by_the_next_controller() -> None:
    world = World()
    world.submit("bob", "b1")
    first = world.controller
    assert first._renew_lease() and first.lease is not None
    first._observe(first.lease, world.now)
    assert first._decide(first.lease, world.now)
    assert world.state("b1") is JobState.STARTING and not world.executor.running()
    world.controller = world.another("second")
    world.now += 4000
    world.turn(2)
    assert world.executor.running() == {"b1"} and world.state("b1") is JobState.RUNNING


def test_an_edited_quota_pauses_by_claims_only() -> None:
    world = World()
    world.submit("bob", "b1", "b2")
    world.submit("patty", "p1", "p2", "p3")
    world.turn(3)
    running = world.executor.running()
    world.apply_quota(
        QUOTA.replace("{name: vision, quota: {train: {training: 2}", "{name: vision, quota: {train: {training: 0}")
    )
    world.turn(2)
    assert world.executor.running() >= running - {"b1", "b2"}
    assert len(world.executor.running()) == 4


def test_the_api_is_notified_of_new_versions_only() -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(3)
    versions = list(world.versions)
    assert versions == sorted(versions) and versions
    world.turn(10)
    assert world.versions == versions


def test_a_violated_invariant_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.controller.validate = True
    world.submit("bob", "b1")
    world.turn(2)
    assert not caplog.records
    found = UnknownDevice(allocation="a", device="gone")
    monkeypatch.setattr("jupyter_gpu_quota.controllers.scheduling.violations", lambda snapshot: (found,))
    for name in ("b2", "b3"):
        world.submit("bob", name)
        world.turn(1)
    (record,) = caplog.records
    assert "UnknownDevice(allocation='a', device='gone')" in record.message


def test_an_unavailable_database_stops_the_run_and_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("bob", "b1")
    world.turn(2)

    def full(*given: object, **named: object) -> None:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(world.store, "acquire_lease", full)
        with pytest.raises(StoreUnavailable):
            world.controller.run_once(world.now)
    assert world.executor.running() == {"b1"}
    world.turn(1)
    assert world.state("b1") is JobState.RUNNING


@pytest.mark.parametrize("call", ["holdings", "record"])
def test_a_new_quota_file_is_followed_although_one_read_or_write_failed(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.turn(2)
    world.apply_quota(QUOTA.replace("/opt/torch", "/opt/newer").replace("[Big]", "[Bigger]"))

    def fails(*given: object, **named: object) -> None:
        raise StoreUnavailable("the statement took too long and was stopped")

    with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
        broken.setattr(world.store, call, fails)
        world.controller.run_once(world.now)
    world.turn(2)
    file = world.controller.quota_file
    assert file is not None and file.environment_named("torch").python == "/opt/newer/bin/python"  # type: ignore[union-attr]
    pools = {device.model: device.pool for device in world.controller.mirror.devices.values()}
    assert pools == {"Big": None, "Small": "build"}


def test_the_quota_file_can_set_a_shorter_interval() -> None:
    world = World()
    world.turn(1)
    assert world.controller.tick_max_ms() == 1000
    world.apply_quota(QUOTA + "  tick_max: 200ms\n")
    world.turn(1)
    assert world.controller.tick_max_ms() == 200


def test_the_lease_is_renewed_when_half_of_it_is_left() -> None:
    """A machine that is slow for a second and a half does not change the leader."""
    world = World()
    left = []
    for _ in range(20):
        world.now = world.controller.run_once(world.now)
        assert world.controller.lease is not None
        left.append(world.controller.lease.expires_at - world.now)
    assert min(left) == 1500 and max(left) == 2000


# R58
def test_a_job_that_cannot_be_killed_quarantines_its_device_and_the_claim_uses_another() -> None:
    world = World(script=lambda order: Script(on_stop=None, lingers_ms=60_000 if order.job == "b4" else 0))
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(3)
    world.submit("patty", "p1")
    world.turn(2)
    assert world.state("b4") is JobState.PAUSING, "of equals, what was submitted last"
    world.turn(19)
    health = {device.id: str(device.health) for device in world.controller.mirror.devices.values()}
    assert sorted(health.values()).count("quarantined") == 1
    world.turn(14)
    assert "p1" in world.executor.running(), "another victim made room"
    world.turn(60)
    assert "quarantined" not in {str(device.health) for device in world.controller.mirror.devices.values()}


# R58
def test_a_device_is_not_quarantined_before_the_stop_order_reached_its_node() -> None:
    world = World(script=lambda order: Script(on_stop=None, lingers_ms=600_000 if order.job == "b4" else 0))
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(3)
    world.executor.stop_is_delayed = True
    world.submit("patty", "p1")
    world.turn(60)
    assert world.state("b4") is JobState.PAUSING
    assert "quarantined" not in {str(device.health) for device in world.controller.mirror.devices.values()}
    world.executor.stop_is_delayed = False
    world.turn(40)
    assert "quarantined" in {str(device.health) for device in world.controller.mirror.devices.values()}


# --- environments -----------------------------------------------------------------------------------------------------
def test_the_interpreter_of_an_environment_replaces_a_leading_python() -> None:
    world = World()
    world.submit("bob", "named", command=("python", "train.py"), environment="torch")
    world.submit("bob", "plain", command=("python3", "train.py"))
    world.submit("patty", "shell", command=("sh", "-c", "python train.py"), environment="torch")
    world.turn(2)
    assert {order.job: order.command for order in world.executor.starts} == {
        "named": ("/opt/torch/bin/python", "train.py"),
        "plain": ("python3", "train.py"),
        "shell": ("sh", "-c", "python train.py"),
    }


# --- gangs ------------------------------------------------------------------------------------------------------------
def test_an_elastic_job_grows_when_it_may_without_any_other_event() -> None:
    world = World()
    world.submit("patty", "p1", "p2")
    world.submit("bob", "e", ranks=4, min_ranks=2)
    world.turn(2)
    assert {order.job: order.ranks for order in world.executor.starts} == {"p1": 1, "p2": 1, "e": 2}
    world.store.record([ChangeJob(job=name, actor="patty", change="cancel") for name in ("p1", "p2")], now=world.now)
    world.turn(30)
    record = world.store.job("e")
    assert record is not None and record.job.started_at is not None and record.job.held_ranks == 2
    assert world.executor.running() == {"e"}, "it has not run for ten graces yet"
    world.now = record.job.started_at + 100_000
    world.turn(1)
    assert {stop.reason for stop in world.executor.stops if stop.job == "e"} == {"resize"}
    world.turn(15)
    assert (world.executor.starts[-1].job, world.executor.starts[-1].ranks) == ("e", 4)
    record = world.store.job("e")
    assert record is not None and (record.job.held_ranks, record.job.paused_at, record.pauses) == (4, (), 0)


# R56
def test_a_rank_that_dies_ends_the_gang_which_is_retried_once() -> None:
    world = World()
    world.submit("bob", "g", ranks=3, retries=1)
    world.turn(3)
    world.executor.end("g", -9, rank=1)
    world.turn(3)
    assert {stop.reason for stop in world.executor.stops} == {"rank_failed"}
    world.turn(20)
    record = world.store.job("g")
    assert record is not None and (record.job.state, record.job.attempt, record.retries_left) == ("running", 2, 0)
    world.executor.end("g", -9, rank=2)
    world.turn(20)
    assert world.state("g") is JobState.FAILED and world.executor.running() == set()


# R56
@pytest.mark.parametrize(("retries", "state", "attempt"), [(0, JobState.FAILED, 1), (1, JobState.RUNNING, 2)])
def test_a_gang_that_is_held_and_released_around_a_failure_ends(
    monkeypatch: pytest.MonkeyPatch, retries: int, state: JobState, attempt: int
) -> None:
    """The leader observes the failure during the hold, and the release comes before it decides."""
    world, decide = World(), SchedulingController._decide
    world.submit("bob", "g", ranks=2, retries=retries)
    world.turn(3)

    def change(what: str) -> None:
        request = ChangeJob(job="g", actor=world.users["bob"], change=what)  # type: ignore[arg-type]
        world.store.record([request], now=world.now)

    def released(*given: Any) -> bool:
        change("release")
        return decide(*given)

    change("hold")
    world.executor.end("g", 1, rank=1)
    with monkeypatch.context() as patched:
        patched.setattr(SchedulingController, "_decide", released)
        world.controller.run_once(world.now)
    world.turn(20)
    record = world.store.job("g")
    assert record is not None and (record.job.state, record.job.attempt) == (state, attempt)
    assert (world.executor.running() == set()) == (state is JobState.FAILED)


def test_a_gang_that_is_cancelled_before_it_started_gives_back_all_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with monkeypatch.context() as patched:
        patched.setattr(FakeJobs, "start", lambda self, order: None)  # the orders are lost
        world.submit("bob", "g", ranks=4)
        world.turn(2)
    world.store.record([ChangeJob(job="g", actor=world.users["bob"], change="cancel")], now=world.now)
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(5)
    assert world.state("g") is JobState.CANCELLED
    assert world.executor.running() == {"b1", "b2", "b3", "b4"}


@pytest.mark.parametrize(("borrower", "grace_s"), [(False, 60), (True, 10)])
def test_every_stop_of_a_borrower_has_its_grace(borrower: bool, grace_s: int) -> None:
    world = World()
    world.submit("bob", "a")
    record = world.store.job("a")
    assert record is not None
    record = replace(record, job=replace(record.job, borrower=borrower))
    order = stop_order(record, [], PreemptionPolicy(), Lease(holder="c", fencing=1, expires_at=1))
    assert order.grace_s == grace_s
