"""Facts change ranks, jobs and devices, on every kind of store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import DeviceFact, Fact, RankFact
from jupyter_gpu_quota.core.job_ends import CommandFailed
from jupyter_gpu_quota.core.model import Amounts, Health, JobState, JobTarget
from jupyter_gpu_quota.store import transactions
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.calls import Stale
from jupyter_gpu_quota.store.records.commands import SetInventory
from jupyter_gpu_quota.store.records.rows import RankRecord
from jupyter_gpu_quota.store.transactions import Store
from jupyter_gpu_quota.store.writes import observe
from tests.store.worlds import DEVICES, KINDS, NODE, POLICY, T0, World, opened


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


# --- running --------------------------------------------------------------------------------------------------------
def test_a_job_runs_when_its_process_is_seen(world: World) -> None:
    world.submit("j")
    world.start("j", "d0")
    world.see(world.fact("j", handle=None, started_at=None))
    assert world.state("j") == "starting -> running"
    world.see(world.fact("j", handle="4711", started_at=T0 + 9))
    assert world.state("j") == "running -> running"
    assert world.job("j").job.started_at == T0 + 9
    [rank] = world.store.ranks("j")
    assert (rank.handle, rank.started_at, rank.ended_at) == ("4711", T0 + 9, None)


def test_the_trouble_of_a_rank_is_kept_while_it_waits(world: World) -> None:
    def trouble() -> str | None:
        return world.store.ranks("j")[-1].trouble

    world.submit("j")
    world.start("j", "d0")
    waits, before = world.fact("j", handle=None, started_at=None, trouble="no node \ud800"), world.job("j")
    world.see(waits)
    assert trouble() == "no node ?"
    assert world.store.changes(before.changed).jobs, "the job is sent to its readers again"
    version = world.store.version()
    world.see(waits)
    assert world.store.version() == version, "no news, nothing written"
    world.see(replace(waits, trouble=None))
    assert trouble() is None
    world.see(waits)
    world.see(world.gone("j", None, handle=None, started_at=None, why_lost="Evicted"))
    assert (world.state("j"), trouble()) == ("queued -> running", None), "why it was lost is in its own column"


def test_progress_metrics_and_checkpoints_are_kept(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.see(world.fact("j", done=3, total=10, metrics={"loss": 0.5}, saved_at=T0 - 5))
    record = world.job("j")
    assert (record.done, record.total, record.metrics, record.job.checkpoint_at) == (3, 10, {"loss": 0.5}, T0 - 5)
    world.see(world.fact("j"))
    assert (world.job("j").done, world.job("j").metrics) == (3, {"loss": 0.5}), "values that are not reported are kept"
    world.see(world.fact("j", saved_at=T0 - 6))
    assert world.job("j").job.checkpoint_at == T0 - 5


def test_facts_without_news_write_nothing(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    fact = world.fact("j", done=3, total=10, metrics={"loss": 0.5}, saved_at=T0 - 5)
    version = world.see(fact)
    audited = world.audited()
    again = replace(fact, metrics={"loss": 0.5})
    assert world.see(fact) == world.see(again) == world.see(fact, again) == world.see() == version
    other = World.__new__(World)
    other.store, other.now, other.lease = world.store, world.now, world.lead("leader")
    assert other.see(again) == version == world.store.version() and world.audited() == audited


def test_a_fact_repeated_after_a_change_of_leader_is_harmless(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    first, second = world.fact("j", done=1), world.fact("j", done=2)
    world.see(first)
    ours, world.store = world.store, Store(world.store._rows)  # another process on the same rows
    world.store.release_lease(world.lease)
    world.lease = world.lead("second")
    world.see(second)
    world.store.release_lease(world.lease)
    world.store = ours
    world.lease = world.lead("leader")
    world.see(first)
    assert world.job("j").done == 1


@pytest.mark.parametrize("saved_at", [T0 + 1, 2**70])
def test_a_checkpoint_from_the_future_was_saved_now(world: World, saved_at: int) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.see(world.fact("j", saved_at=saved_at))
    assert world.job("j").job.checkpoint_at == T0


@pytest.mark.parametrize(
    ("expected", "kept"),
    [
        pytest.param({"metrics": {"loss": math.nan, "step": 1.0}}, {"step": 1.0}, id="not a number"),
        pytest.param({"metrics": {"loss": math.inf, "step": 1.0}}, {"step": 1.0}, id="infinity"),
        pytest.param({"metrics": {"loss": 10**400, "step": 1.0}}, {"step": 1.0}, id="an integer beyond every float"),
        pytest.param({"metrics": {"\ud800": 1.0}}, {"?": 1.0}, id="a name that is not Unicode"),
        pytest.param({"done": 2**64, "total": -(2**64)}, {}, id="progress that no database holds"),
    ],
)
def test_every_content_of_a_progress_file_can_be_stored(
    world: World, expected: dict[str, object], kept: dict[str, float]
) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.see(world.fact("j", **expected))
    assert (world.job("j").metrics, world.job("j").done, world.job("j").total) == (kept, None, None)


def test_a_fact_of_an_earlier_attempt_is_ignored(world: World) -> None:
    world.submit("j", retries=1)
    world.run("j", "d0")
    late = world.gone("j", 0, done=9, saved_at=T0 - 1, metrics={"loss": 9.0})
    world.see(world.gone("j", 1))
    assert world.job("j").exit_status == 1
    world.run("j", "d1")
    before = world.store.version()
    world.see(late)
    assert world.state("j") == "running -> running" and world.store.version() == before
    assert (world.job("j").done, world.job("j").exit_status) == (None, None)


def test_facts_of_unknown_jobs_are_ignored(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    before = world.store.version()
    world.see(replace(world.gone("j", 0), job="ghost"), replace(world.gone("j", 0), rank=7))
    assert world.store.version() == before


# --- the end of an attempt ------------------------------------------------------------------------------------------
def end_of(world: World, how: str, *, retries: int) -> None:
    """Play one row below: the requests before, then the end of the process."""
    world.submit("j", retries=retries, secrets={"TOKEN": "x"})
    world.run("j", "d0")
    asked, _, ended = how.partition(", ")
    match asked:
        case "paused":
            world.pause("j")
        case "stopped for failed":
            world.stop("j", JobTarget.FAILED)
        case "cancelled" | "held":
            world.change("j", {"cancelled": "cancel", "held": "hold"}[asked])
            world.stop("j", JobTarget(asked))
        case "cancel wished" | "hold wished":
            world.change("j", asked.split()[0])
    status, *flags = ended.split(" ")
    world.see(
        world.gone(
            "j", None if status == "lost" else int(status), asked="asked" in flags, completed="completed" in flags
        )
    )


# R55
@pytest.mark.parametrize(
    ("how", "retries", "expected", "left"),
    [
        pytest.param("left alone, 0", 0, "succeeded -> running", 0, id="it ran to its end"),
        pytest.param("left alone, 1", 0, "failed -> running", 0, id="it failed with no retry"),
        pytest.param("left alone, 1", 2, "queued -> running", 1, id="it failed and is tried again"),
        pytest.param("left alone, -9", 1, "queued -> running", 0, id="it was killed from outside"),
        pytest.param("left alone, lost", 2, "queued -> running", 2, id="a lost attempt uses no retry"),
        pytest.param("left alone, 75", 2, "paused -> running", 2, id="it checkpointed of itself"),
        pytest.param("paused, 75 asked", 2, "paused -> running", 2, id="it checkpointed on request, no retry used"),
        pytest.param("paused, 0 asked", 0, "paused -> running", 0, id="it exited 0 after the request, unfinished"),
        pytest.param("paused, 0 asked completed", 0, "succeeded -> paused", 0, id="it finished after the request"),
        pytest.param("paused, 0", 0, "succeeded -> paused", 0, id="it finished just before the request"),
        pytest.param("paused, -9 asked", 0, "paused -> running", 0, id="it was killed after the grace"),
        pytest.param("paused, lost asked", 0, "paused -> running", 0, id="it was lost while it left"),
        pytest.param("paused, 3 asked", 1, "queued -> running", 0, id="it failed while it left and is tried again"),
        pytest.param("paused, 3 asked", 0, "failed -> paused", 0, id="it failed while it left"),
        pytest.param("held, 75 asked", 0, "held -> held", 0, id="held, and it checkpointed"),
        pytest.param("held, 3 asked", 1, "held -> held", 1, id="held, and it ended badly"),
        pytest.param("cancelled, -15 asked", 1, "cancelled -> cancelled", 1, id="cancelled"),
        pytest.param("stopped for failed, 75 asked", 3, "failed -> failed", 3, id="its time was over"),
        pytest.param("cancel wished, 0", 0, "succeeded -> cancelled", 0, id="it finished before the cancel came"),
        pytest.param("cancel wished, 1", 0, "failed -> cancelled", 0, id="it failed before the cancel came"),
        pytest.param("cancel wished, 1", 3, "cancelled -> cancelled", 3, id="a cancelled job is not tried again"),
        pytest.param("cancel wished, lost", 3, "cancelled -> cancelled", 3, id="a cancelled and lost job has ended"),
        pytest.param("hold wished, lost", 3, "held -> held", 3, id="a held and lost job stays held"),
        pytest.param("hold wished, 75", 3, "held -> held", 3, id="it checkpointed of itself, and a person holds it"),
    ],
)
def test_results_of_an_attempt(world: World, how: str, retries: int, expected: str, left: int) -> None:
    end_of(world, how, retries=retries)
    record = world.job("j")
    assert (world.state("j"), record.retries_left) == (expected, left)
    assert world.held() == {}
    over = record.job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    assert (record.ended_at is not None, world.store.secrets("j") == {}) == (over, over)
    if not over:
        waits = (record.job.started_at, record.job.pausing_since_at, record.job.borrower)
        assert waits == (None, None, False)
        made_room = how.startswith("paused") and record.job.state is JobState.PAUSED
        assert record.job.paused_for == ("patty's job" if made_room else None)


# R57
def test_a_device_stays_allocated_until_the_last_process_has_ended(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    before = world.store.version()
    world.see(world.fact("j", ended_at=T0, exit_status=0))
    assert (world.state("j"), world.held()) == ("running -> running", {"d0": 1000})
    assert world.store.ranks("j")[0].exit_status == 0
    world.see(world.gone("j", 0))
    assert (world.state("j"), world.held()) == ("succeeded -> running", {})
    assert len(world.store.changes(before).released) == 1


# R55
def test_a_recorded_exit_is_not_changed_by_later_facts(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.see(world.fact("j", ended_at=T0, exit_status=0))
    world.pause("j")
    world.see(world.gone("j", -9, asked=True))
    assert world.state("j") == "succeeded -> paused" and world.job("j").exit_status == 0


def test_a_refused_order_fails_with_the_reason(world: World) -> None:
    world.submit("j")
    world.start("j", "d0")
    world.see(world.fact("j", handle=None, started_at=None, refused="account ann \ud800 is not there"))
    assert (world.state("j"), world.held()) == ("failed -> running", {})
    [newest] = [row for row in world.store.audit()[0] if row.kind == "job.end"]
    assert "account ann ? is not there" in newest.payload


def test_an_order_that_was_refused_uses_a_retry(world: World) -> None:
    world.submit("j", retries=1)
    world.start("j", "d0")
    world.see(world.fact("j", handle=None, started_at=None, refused="no such account"))
    assert (world.state("j"), world.job("j").retries_left) == ("queued -> running", 0)


def test_a_refused_start_of_a_job_that_is_being_stopped_is_no_failure(world: World) -> None:
    world.submit("j")
    world.start("j", "d0")
    world.change("j", "cancel")
    world.stop("j", JobTarget.CANCELLED)
    world.see(world.fact("j", handle=None, started_at=None, refused="it was stopped first"))
    assert world.state("j") == "cancelled -> cancelled"


def test_seen_and_ended_in_one_fact(world: World) -> None:
    world.submit("j")
    world.start("j", "d0")
    world.see(world.gone("j", 0))
    assert world.state("j") == "succeeded -> running"
    assert world.audited()[-2:] == ["job.running j", "job.end j"]


def test_an_attempt_that_is_paused_has_an_end_of_its_own_and_the_job_has_one(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    world.see(world.gone("j", 75, asked=True))
    assert [row for row in world.audited() if ".end" in row] == ["attempt.end j"]
    world.start("j", "d0")
    world.see(world.gone("j", 0, attempt=2))
    assert [row for row in world.audited() if ".end" in row] == ["attempt.end j", "job.end j"]


def test_a_lost_rank_keeps_why_and_the_audit_has_it(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.see(world.gone("j", None, why_lost="node n is lost"))
    world.see(world.fact("j", attempt=1, why_lost="another"))
    assert world.state("j") == "queued -> running"
    assert [row.why_lost for row in world.store.ranks("j")] == ["node n is lost"]


def test_a_job_that_is_stopped_before_its_first_fact_still_has_its_start(world: World) -> None:
    world.submit("j")
    world.start("j", "d0")
    world.pause("j")
    world.see(world.fact("j", started_at=T0 + 2))
    assert (world.state("j"), world.job("j").job.started_at) == ("pausing -> paused", T0 + 2)


# --- several ranks --------------------------------------------------------------------------------------------------
def test_an_attempt_ends_when_all_its_ranks_have_ended(world: World) -> None:
    world.submit("j", ranks=2)
    world.run("j", "d0", "d1")
    world.see(world.gone("j", 0, rank=0))
    assert (world.state("j"), world.held()) == ("running -> running", {"d0": 1000, "d1": 1000})
    world.see(world.gone("j", 0, rank=1))
    assert (world.state("j"), world.held()) == ("succeeded -> running", {})


# R56
@pytest.mark.parametrize(
    ("retries", "expected"),
    [pytest.param(0, "failed -> failed", id="no retry"), pytest.param(1, "queued -> running", id="with a retry")],
)
def test_one_failed_rank_fails_the_attempt_and_stops_the_others(world: World, retries: int, expected: str) -> None:
    world.submit("j", ranks=2, retries=retries)
    world.run("j", "d0", "d1")
    world.see(world.gone("j", 3, rank=1))
    assert world.state("j") == "running -> failed"
    world.stop("j", JobTarget.FAILED)
    world.see(world.gone("j", -15, rank=0, asked=True))
    assert (world.state("j"), world.job("j").exit_status) == (expected, 3)


# R56
def test_a_rank_that_failed_while_its_job_was_held_stops_the_others_after_a_release(world: World) -> None:
    world.submit("j", ranks=2)
    world.run("j", "d0", "d1")
    world.change("j", "hold")
    world.see(world.gone("j", 3, rank=1))
    assert world.state("j") == "running -> held"
    world.change("j", "release")
    reason = world.job("j").reason
    assert world.state("j") == "running -> failed" and isinstance(reason, CommandFailed) and reason.rank == 1


def test_a_rank_that_was_never_started_fails_the_attempt(world: World) -> None:
    world.submit("j", ranks=2)
    world.start("j", "d0", "d1")
    world.see(world.fact("j", rank=0), world.fact("j", rank=1, handle=None, started_at=None, refused="no such account"))
    assert world.state("j") == "starting -> failed", "it never ran as a whole"


# R56
def test_a_gang_pauses_as_a_whole(world: World) -> None:
    world.submit("j", ranks=2)
    world.run("j", "d0", "d1")
    world.pause("j")
    world.see(world.gone("j", 0, rank=0, asked=True, completed=True), world.gone("j", 75, rank=1, asked=True))
    assert world.state("j") == "paused -> running"


@pytest.mark.parametrize("first", ["rank 0", "the last rank"])
@pytest.mark.parametrize(
    ("status", "expected"),
    [pytest.param(0, "succeeded -> running", id="well"), pytest.param(3, "failed -> failed", id="badly")],
)
def test_the_cost_of_the_end_of_a_large_gang_is_linear(
    monkeypatch: pytest.MonkeyPatch, first: str, status: int, expected: str
) -> None:
    world, ranks = World(MemoryStore()), 300
    order = range(ranks) if first == "rank 0" else range(ranks - 1, -1, -1)
    devices = [replace(device, id=f"e{number}", index=number) for number, device in enumerate(DEVICES * (ranks // 4))]
    world.record(SetInventory(nodes=(NODE,), devices=(*DEVICES, *devices)))
    world.policy = replace(
        POLICY,
        projects=tuple(replace(row, amounts={"train": Amounts(training_milli=400_000)}) for row in POLICY.projects),
    )
    world.submit("j", ranks=ranks)
    world.start("j", *(device.id for device in devices))
    looks = Counter[str]()
    monkeypatch.setattr(observe, "_was_begun", _counted(observe._was_begun, looks))
    get = UnitOfWork.get
    monkeypatch.setattr(
        UnitOfWork, "get", lambda work, table, key: (looks.update([table.name]), get(work, table, key))[1]
    )
    world.see(*(world.fact("j", rank=rank) for rank in order))
    assert world.state("j") == "running -> running"
    world.see(*(world.gone("j", status, rank=rank) for rank in order))
    assert world.state("j") == expected
    assert looks["ranks"] < 10 * ranks and looks["begun"] < 10 * ranks, looks


def _counted(was_begun: Callable[[RankRecord], bool], looks: Counter[str]) -> Callable[[RankRecord], bool]:
    def counting(row: RankRecord) -> bool:
        looks["begun"] += 1
        return was_begun(row)

    return counting


def test_of_ranks_that_end_together_the_first_failure_stops_the_others(world: World) -> None:
    world.submit("j", ranks=3)
    world.run("j", "d0", "d1", "d2")
    world.see(world.gone("j", 0, rank=2), world.gone("j", 3, rank=1), world.fact("j", rank=0, done=1))
    assert world.state("j") == "running -> failed"
    world.see(world.gone("j", 3, rank=1), world.gone("j", -15, rank=0, asked=True))
    assert (world.state("j"), world.job("j").exit_status) == ("failed -> failed", 3)
    assert world.audited().count("job.rank_failed j") == 1


def test_progress_is_that_of_rank_0(world: World) -> None:
    world.submit("j", ranks=2)
    world.run("j", "d0", "d1")
    world.see(world.fact("j", rank=0, done=5), world.fact("j", rank=1, done=4, saved_at=T0 - 8))
    assert (world.job("j").done, world.job("j").job.checkpoint_at) == (5, T0 - 8)


# --- devices --------------------------------------------------------------------------------------------------------
def test_a_device_fact_changes_what_it_names_and_no_more(world: World) -> None:
    before = world.see(DeviceFact(device="d0", health="unhealthy"))
    assert before == world.see(DeviceFact(device="d0", health="unhealthy"), DeviceFact(device="ghost"))
    world.see(DeviceFact(device="d0", foreign_milli=250))
    [d0] = world.store.changes(before).devices
    assert (d0.health, d0.foreign_milli, d0.uuid) == (Health.UNHEALTHY, 250, None)


def test_several_facts_are_one_version(world: World) -> None:
    world.submit("j")
    world.start("j", "d0")
    before = world.store.version()
    after = world.see(world.gone("j", 0), DeviceFact(device="d0", uuid="GPU-0"), DeviceFact(device="d1", uuid="GPU-1"))
    assert after == before + 1


# --- many facts -----------------------------------------------------------------------------------------------------
def test_many_facts_are_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them the lease is renewed, and the requests of people are recorded."""
    applied = list[int]()
    real = observe.observe_facts

    def counted(work: UnitOfWork, facts: Sequence[Fact]) -> list[RankFact]:
        applied.append(len(facts))
        return real(work, facts)

    monkeypatch.setattr(transactions, "MAX_FACTS", 2)
    monkeypatch.setattr(transactions, "observe_facts", counted)
    for number in range(3):
        world.submit(f"j{number}")
        world.start(f"j{number}", f"d{number}")
    facts = [world.fact(f"j{number}", handle="7", started_at=T0) for number in range(3)]
    world.see(*facts)
    assert applied == [2, 1]
    assert {world.state(f"j{number}") for number in range(3)} == {"running -> running"}
    version = world.store.version()
    assert world.see(*facts) == version, "facts of all transactions are known afterwards"
    assert applied == [2, 1, 0]


def test_facts_after_the_end_of_the_lease_are_not_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another leader began between two transactions."""
    real = observe.observe_facts

    def then_lost(work: UnitOfWork, facts: Sequence[Fact]) -> list[RankFact]:
        seen = real(work, facts)
        work.head = replace(work.head, holder="second", fencing=work.head.fencing + 1)
        return seen

    for number in range(2):
        world.submit(f"j{number}")
        world.start(f"j{number}", f"d{number}")
    facts = [world.fact(f"j{number}", handle="7", started_at=T0) for number in range(2)]
    monkeypatch.setattr(transactions, "MAX_FACTS", 1)
    monkeypatch.setattr(transactions, "observe_facts", then_lost)
    assert isinstance(world.store.observe(facts, lease=world.lease, now=world.now), Stale)
    assert [world.state(f"j{number}") for number in range(2)] == ["running -> running", "starting -> running"]
