"""A plan becomes true whole, or is dropped whole, on every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.lifecycle import IllegalTransition
from jupyter_gpu_quota.core.model import Device, JobState, JobTarget, NotebookState
from jupyter_gpu_quota.core.plan import Pause, Refuse, Reserve, Resume, Start, Stop, Unreserve
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.store.records.calls import Committed, Stale
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ChangeNode, ReturnNotebook, SetInventory
from jupyter_gpu_quota.store.transactions import Store
from tests.store.worlds import (
    DEVICES,
    KINDS,
    MEMORY_MIB,
    NODE,
    POLICY,
    T0,
    TAKEN,
    WITHIN,
    World,
    opened,
    placements,
    submit,
)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def start(job: str, *devices: str, milli: int = 1000, memory: int = 1000, attempt: int = 1) -> Start:
    parts = placements(*devices, milli=milli, memory=memory)
    return Start(workload=job, attempt=attempt, placements=parts, borrower=False, reason=WITHIN)


# --- what the actions do --------------------------------------------------------------------------------------------
def test_a_started_job_owns_its_device_before_it_runs(world: World) -> None:
    world.submit("j")
    before = world.store.version()
    world.start("j", "d2", borrower=True)
    record = world.job("j")
    assert (record.job.state, record.job.attempt, record.job.started_at) == (JobState.STARTING, 1, None)
    assert (record.job.borrower, record.reason) == (True, WITHIN)
    [allocation] = world.store.changes(before).allocations
    assert (allocation.workload, allocation.device, allocation.gpu_milli) == ("j", "d2", 1000)
    [rank] = world.store.ranks("j")
    assert (rank.attempt, rank.rank, rank.node, rank.handle, rank.fencing) == (1, 0, "n1", None, world.lease.fencing)
    assert world.store.version() == before + 1


def test_a_job_of_two_devices_on_one_rank_has_one_rank(world: World) -> None:
    world.submit("j", milli=2000)
    parts = tuple(replace(part, rank=0) for part in placements("d0", "d1"))
    world.committed(Start(workload="j", attempt=1, placements=parts, borrower=False, reason=WITHIN))
    assert [rank.rank for rank in world.store.ranks("j")] == [0]
    assert world.held() == {"d0": 1000, "d1": 1000}


def test_a_pause_for_a_claim_is_counted(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.now += 10
    world.pause("j")
    record = world.job("j")
    assert (record.job.state, record.job.target, record.job.pausing_since_at) == (
        JobState.PAUSING,
        JobTarget.PAUSED,
        T0 + 10,
    )
    assert (record.job.paused_for, record.job.paused_at, record.pauses) == ("patty's job", (T0 + 10,), 1)
    assert record.reason == TAKEN
    assert world.held() == {"d0": 1000}, "it owns its device until its processes are gone"


def test_pauses_older_than_the_window_are_not_kept_with_the_job(world: World) -> None:
    world.submit("j")
    for _ in range(2):
        world.run("j", "d0")
        world.pause("j")
        world.see(world.gone("j", 75, asked=True))
        world.now += 3600 * 1000
        world.lease = world.lead("leader")
    assert (world.job("j").job.paused_at, world.job("j").pauses) == ((T0 + 3600 * 1000,), 2)


@pytest.mark.parametrize("target", [JobTarget.HELD, JobTarget.CANCELLED, JobTarget.FAILED])
def test_a_stopped_job_reaches_its_target_without_a_counted_pause(world: World, target: JobTarget) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.stop("j", target)
    record = world.job("j")
    assert (record.job.state, record.job.target, record.job.paused_for) == (JobState.PAUSING, target, None)
    assert (record.job.paused_at, record.pauses) == ((), 0)


def test_a_refused_notebook_shows_the_reason(world: World) -> None:
    world.ask_notebook("n")
    reason = reason_from(ReasonCode.ABOVE_NOTEBOOK_QUOTA, (("quota_milli", 100),))
    world.committed(Refuse(workload="n", reason=reason))
    record = world.notebook("n")
    assert (record.notebook.state, record.reason, record.ended_at) == (NotebookState.REFUSED, reason, T0)


def test_a_reservation_is_replaced_dropped_and_used_up(world: World) -> None:
    world.submit("j")
    world.committed(Reserve(workload="j", placements=placements("d0"), reason=WITHIN))
    world.now += 1
    before = world.store.version()
    world.committed(Reserve(workload="j", placements=placements("d1"), reason=WITHIN))
    [reservation] = world.store.changes(before).reservations
    assert (reservation.placements, reservation.reserved_at) == (placements("d1"), T0 + 1)
    before = world.store.version()
    world.committed(Unreserve(workload="j", reason=WITHIN))
    assert world.store.changes(before).unreserved == ("j",)
    world.committed(Reserve(workload="j", placements=placements("d0"), reason=WITHIN))
    before = world.store.version()
    world.start("j", "d0")
    assert world.store.changes(before).unreserved == ("j",)
    assert world.store.changes(0).reservations == ()


def test_a_reservation_takes_no_room(world: World) -> None:
    world.submit("j1")
    world.submit("j2")
    world.committed(Reserve(workload="j1", placements=placements("d0"), reason=WITHIN))
    world.start("j2", "d0")
    assert world.held() == {"d0": 1000}


def test_every_action_and_the_plan_are_audited(world: World) -> None:
    world.submit("j1")
    world.submit("j2")
    world.run("j1", "d0")
    before = len(world.audited())
    world.committed(Pause(workload="j1", preemptor="patty's job", grace_s=60, reason=TAKEN), start("j2", "d1"))
    plan, started, paused = world.store.audit()[0][:3]
    assert world.audited()[before:] == ["pause j1", "start j2", f"plan {world.store.version()}"]
    assert '"reason":{"code":"reclaimed","figures":[["preemptor","patty\'s job"]]}' in paused.payload
    assert '"snapshot":"snapshot"' in plan.payload and plan.project is None
    assert started.project == "bob-lab" and started.actor == "system:controller"


def test_an_empty_plan_writes_nothing(world: World) -> None:
    before = (world.store.version(), world.audited())
    answer = world.commit()
    assert answer == Committed(version=before[0]) and (world.store.version(), world.audited()) == before


# --- stale ----------------------------------------------------------------------------------------------------------
def unchanged_after(world: World, *actions: object, seen: int) -> str:
    """Commit; it must be stale and leave no trace. Returns why."""
    before = (world.store.version(), world.audited(), world.held(), world.store.changes(0))
    answer = world.commit(*actions, seen=seen)  # type: ignore[arg-type]
    assert isinstance(answer, Stale), answer
    assert (world.store.version(), world.audited(), world.held(), world.store.changes(0)) == before
    return answer.why


def test_a_job_that_was_cancelled_since_is_not_started(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    world.change("j", "cancel")
    assert "j" in unchanged_after(world, start("j", "d0"), seen=seen)


def test_no_job_is_paused_for_a_claim_that_was_cancelled(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    seen = world.store.version()
    world.change("patty's job", "cancel")
    pause = Pause(workload="j", preemptor="patty's job", grace_s=60, reason=TAKEN)
    assert "patty's job" in unchanged_after(world, pause, seen=seen)


def test_a_notebook_that_was_returned_since_is_not_booked(world: World) -> None:
    world.ask_notebook("n")
    seen = world.store.version()
    world.record(ReturnNotebook(notebook="n", actor="system:hub", why="cancelled"))
    assert "n" in unchanged_after(world, start("n", "d0", milli=125, attempt=0), seen=seen)


def test_one_stale_action_drops_the_whole_plan(world: World) -> None:
    world.submit("j1")
    world.submit("j2")
    seen = world.store.version()
    world.change("j2", "hold")
    unchanged_after(world, start("j1", "d0"), start("j2", "d1"), seen=seen)


def test_new_arrivals_alone_do_not_make_a_plan_stale(world: World) -> None:
    world.submit("j1")
    seen = world.store.version()
    world.submit("j2")
    world.ask_notebook("n")
    assert isinstance(world.commit(start("j1", "d0"), seen=seen), Committed)


def test_a_plan_under_an_older_quota_is_stale(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    world.record(ApplyQuota(actor="admin", text="", document={}, policy=POLICY, expected_revision=1))
    assert "revision 2" in unchanged_after(world, start("j", "d0"), seen=seen)


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(DeviceFact(device="d0", health="unhealthy"), id="it fell ill"),
        pytest.param(DeviceFact(device="d0", foreign_milli=10), id="foreign work came"),
    ],
)
def test_a_device_that_changed_since_makes_the_plan_stale(world: World, fact: DeviceFact) -> None:
    world.submit("j")
    seen = world.store.version()
    world.see(fact)
    assert "d0" in unchanged_after(world, start("j", "d0"), seen=seen)


def test_a_reservation_of_a_device_that_changed_or_is_unknown_makes_the_plan_stale(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    world.see(DeviceFact(device="d0", health="unhealthy"))
    for device, why in (("d0", "d0 changed"), ("d9", "d9, which is not known")):
        reserve = Reserve(workload="j", placements=placements(device), reason=WITHIN)
        assert why in unchanged_after(world, reserve, seen=seen)


def test_a_node_that_was_cordoned_since_makes_the_plan_stale(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    world.record(ChangeNode(node="n1", actor="admin", change="cordon"))
    assert "d0" in unchanged_after(world, start("j", "d0"), seen=seen)


def test_a_device_that_vanished_since_makes_the_plan_stale(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES[1:]))
    assert "d0" in unchanged_after(world, start("j", "d0"), seen=seen)


def test_nothing_starts_on_a_device_that_is_not_healthy(world: World) -> None:
    world.submit("j")
    world.see(DeviceFact(device="d0", health="quarantined"))
    assert "quarantined" in unchanged_after(world, start("j", "d0"), seen=world.store.version())


def test_an_unknown_workload_or_device_makes_the_plan_stale(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    assert "ghost" in unchanged_after(world, start("ghost", "d0"), seen=seen)
    assert "d9" in unchanged_after(world, start("j", "d9"), seen=seen)


# --- no device carries more than it has -----------------------------------------------------------------------------
def test_a_full_device_takes_no_milli_more(world: World) -> None:
    for job in ("j1", "j2", "j3"):
        world.submit(job, milli=500)
    world.start("j1", "d0", milli=500)
    world.start("j2", "d0", milli=500)
    assert "1001" in unchanged_after(world, start("j3", "d0", milli=1), seen=world.store.version())


def test_two_starts_of_one_plan_count_together(world: World) -> None:
    world.submit("j1", milli=600)
    world.submit("j2", milli=600)
    actions = (start("j1", "d0", milli=600), start("j2", "d0", milli=600))
    assert "1200" in unchanged_after(world, *actions, seen=world.store.version())


# R57
def test_work_that_is_leaving_still_counts(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    assert "d0" in unchanged_after(world, start("patty's job", "d0"), seen=world.store.version())
    world.see(world.gone("j", 75, asked=True))
    world.committed(start("patty's job", "d0"))


def test_pausing_and_starting_on_the_same_device_in_one_plan_is_too_early(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    pause = Pause(workload="j", preemptor="patty's job", grace_s=60, reason=TAKEN)
    unchanged_after(world, pause, start("patty's job", "d0"), seen=world.store.version())


# R13
def test_foreign_use_counts(world: World) -> None:
    world.submit("j", milli=800)
    world.see(DeviceFact(device="d0", foreign_milli=300))
    assert "1100" in unchanged_after(world, start("j", "d0", milli=800), seen=world.store.version())


def test_memory_counts(world: World) -> None:
    world.submit("j1", milli=100)
    world.submit("j2", milli=100)
    world.committed(start("j1", "d0", milli=100, memory=MEMORY_MIB))
    why = unchanged_after(world, start("j2", "d0", milli=100, memory=1), seen=world.store.version())
    assert f"{MEMORY_MIB + 1} MiB" in why


def test_a_pool_change_of_a_device_is_seen(world: World) -> None:
    world.submit("j")
    seen = world.store.version()
    moved: tuple[Device, ...] = (replace(DEVICES[0], pool="other"), *DEVICES[1:])
    world.record(SetInventory(nodes=(NODE,), devices=moved))
    unchanged_after(world, start("j", "d0"), seen=seen)


# --- plans that are wrong whatever changed --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "action",
    [
        pytest.param(start("running", "d1", attempt=2), id="starting a running job"),
        pytest.param(Pause(workload="queued", preemptor="running", grace_s=1, reason=TAKEN), id="pausing a queued job"),
        pytest.param(
            Stop(workload="queued", target=JobTarget.CANCELLED, grace_s=1, reason=TAKEN), id="stopping a queued job"
        ),
        pytest.param(Refuse(workload="booked", reason=WITHIN), id="refusing a booked slice"),
    ],
)
def test_an_illegal_transition_raises_and_changes_nothing(world: World, action: Pause) -> None:
    world.submit("running")
    world.run("running", "d0")
    world.submit("queued")
    world.ask_notebook("booked")
    world.committed(start("booked", "d3", milli=125, attempt=0))
    before = (world.store.version(), world.audited(), world.store.changes(0))
    with pytest.raises(IllegalTransition):
        world.commit(action)
    assert (world.store.version(), world.audited(), world.store.changes(0)) == before


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(start("j", "d0", attempt=2), id="an attempt that is not the next"),
        pytest.param(start("j"), id="on no device"),
        pytest.param(start("j", "d0", milli=0), id="on nothing of a device"),
        pytest.param(start("j", "d0", milli=-500), id="on less than nothing"),
        pytest.param(start("j", "d0", memory=-1), id="on less than no memory"),
        pytest.param(Refuse(workload="j", reason=WITHIN), id="refusing a job"),
    ],
)
def test_an_invalid_plan_raises_and_changes_nothing(world: World, action: Start) -> None:
    world.submit("j")
    before = (world.store.version(), world.audited(), world.store.changes(0))
    with pytest.raises(ValueError, match="j"):
        world.commit(action)
    assert (world.store.version(), world.audited(), world.store.changes(0)) == before


# --- the lease ------------------------------------------------------------------------------------------------------
def test_a_frozen_leader_with_an_expired_lease_changes_nothing(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.submit("j2")
    seen = world.store.version()
    frozen = world.lease
    world.now += 3001
    second = world.store.acquire_lease("second", clock=lambda: world.now, ttl_ms=3000)
    assert second is not None and second.fencing > frozen.fencing
    assert "second" in unchanged_after(world, start("j2", "d1"), seen=seen)
    answer = world.store.observe([world.gone("j", 0)], lease=frozen, now=world.now)
    assert isinstance(answer, Stale) and world.state("j") == "running -> running"
    assert isinstance(world.commit(start("j2", "d1"), seen=seen, lease=second), Committed)


def test_a_leader_with_an_expired_lease_must_acquire_it_again(world: World) -> None:
    world.submit("j")
    world.now += 3000
    assert "ended" in unchanged_after(world, start("j", "d0"), seen=world.store.version())
    assert isinstance(world.store.observe([], lease=world.lease, now=world.now), Stale)
    again = world.lead("leader")
    assert again.fencing == world.lease.fencing + 1
    assert isinstance(world.commit(start("j", "d0"), lease=again), Committed)


def test_a_renewed_lease_keeps_its_fencing(world: World) -> None:
    world.now += 2000
    again = world.lead("leader")
    assert (again.fencing, again.expires_at) == (world.lease.fencing, world.now + 3000)


def test_a_renewal_continues_a_term_and_never_begins_one(world: World) -> None:
    world.now += 2_999
    renewed = world.store.renew_lease(world.lease, clock=lambda: world.now, ttl_ms=3_000)
    assert renewed is not None
    assert (renewed.fencing, renewed.expires_at) == (world.lease.fencing, world.now + 3_000)
    assert world.store.lease() == renewed
    world.now += 3_000
    assert world.store.renew_lease(renewed, clock=lambda: world.now, ttl_ms=3_000) is None, "it ended: the term is over"
    again = world.lead("leader")
    assert again.fencing == renewed.fencing + 1
    assert world.store.renew_lease(renewed, clock=lambda: world.now, ttl_ms=3_000) is None, "it is of the term before"
    world.store.release_lease(again)
    assert world.store.renew_lease(again, clock=lambda: world.now, ttl_ms=3_000) is None, "it was given back"
    second = world.store.acquire_lease("second", clock=lambda: world.now, ttl_ms=3_000)
    assert world.store.renew_lease(again, clock=lambda: world.now, ttl_ms=3_000) is None, "another holder has it"
    assert world.store.lease() == second


def test_a_lease_from_before_the_clock_was_set_back_is_not_renewed(world: World) -> None:
    assert world.store.renew_lease(world.lease, clock=lambda: world.now - 3_600_000, ttl_ms=3_000) is None


def test_a_second_holder_waits_until_the_first_has_let_go(world: World) -> None:
    assert world.store.acquire_lease("second", clock=lambda: world.now + 2999, ttl_ms=3000) is None
    world.store.release_lease(world.lease)
    second = world.store.acquire_lease("second", clock=lambda: world.now, ttl_ms=3000)
    assert second is not None and second.fencing == world.lease.fencing + 1
    world.store.release_lease(world.lease)  # the first one's late call takes nothing away
    assert world.store.acquire_lease("third", clock=lambda: world.now, ttl_ms=3000) is None


def test_a_clock_set_back_does_not_keep_the_lease_for_an_hour(world: World) -> None:
    second = world.store.acquire_lease("second", clock=lambda: world.now - 3_600_000, ttl_ms=3000)
    assert second is not None and second.fencing == world.lease.fencing + 1


@pytest.mark.parametrize("ttl_ms", [0, 3001])
def test_a_lease_is_short(world: World, ttl_ms: int) -> None:
    with pytest.raises(ValueError, match="3000"):
        world.store.acquire_lease("second", clock=lambda: world.now, ttl_ms=ttl_ms)
    with pytest.raises(ValueError, match="3000"):
        world.store.renew_lease(world.lease, clock=lambda: world.now, ttl_ms=ttl_ms)


def test_leases_and_renewals_make_no_version(world: World) -> None:
    before = world.store.version()
    world.lead("leader")
    assert world.store.version() == before


def test_resume_is_a_start_from_paused(world: World) -> None:
    world.record(submit("j"))
    world.run("j", "d0")
    world.pause("j")
    world.see(world.gone("j", 75, asked=True, saved_at=T0 - 3))
    world.committed(Resume(workload="j", attempt=2, placements=placements("d1"), borrower=False, reason=WITHIN))
    record = world.job("j")
    assert (record.job.state, record.job.attempt, record.job.checkpoint_at) == (JobState.STARTING, 2, T0 - 3)
    assert (record.job.submitted_at, record.job.pausing_since_at, record.job.paused_for) == (T0, None, None)
    assert [(rank.attempt, rank.exit_status) for rank in world.store.ranks("j")] == [(1, 75), (2, None)]
