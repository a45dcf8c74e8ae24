"""A large plan is written in chunks: each is legal by itself, and a killed controller's successor decides again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.controllers import scheduling as controller_module
from jupyter_gpu_quota.core.canonical import digest
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.plan import Action, Pause, Plan, Reserve, Start, Unreserve
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.store.records.calls import Committed, Stale, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ChangeJob
from jupyter_gpu_quota.store.records.plan_chunks import PlanChunk, chunks_of
from tests.controllers.setups.scheduling import World
from tests.store.worlds import KINDS, WITHIN, opened, placements
from tests.store.worlds import World as StoreWorld

RECLAIMED = reason_from(ReasonCode.RECLAIMED)


def start(job: str, *devices: str, milli: int = 1000) -> Start:
    where = placements(*devices, milli=milli)
    return Start(workload=job, attempt=1, placements=where, borrower=False, reason=WITHIN)


def pause(job: str, preemptor: str) -> Pause:
    return Pause(workload=job, preemptor=preemptor, grace_s=1, reason=RECLAIMED)


def reserve(job: str) -> Reserve:
    return Reserve(workload=job, placements=(), reason=WITHIN)


def spelled(chunks: Iterator[PlanChunk]) -> list[str]:
    """The workloads of each piece, in its order."""
    return [" ".join(action.workload for action in chunk.plan.actions) for chunk in chunks]


@pytest.mark.parametrize(
    ("actions", "max_rows", "expected"),
    [
        pytest.param([], 1, [], id="nothing to do is no piece"),
        pytest.param([start("a"), start("b"), start("c")], 100, ["a b c"], id="a small plan is one piece"),
        pytest.param([start("a"), start("b"), start("c")], 4, ["a b", "c"], id="starts are written two at a time"),
        pytest.param(
            [start("a"), pause("v1", "c"), pause("v2", "c"), reserve("c"), start("b")],
            1,
            ["a", "v1 v2 c", "b"],
            id="a claim's pauses stay with its reservation",
        ),
        pytest.param(
            [pause("v", "c"), pause("m", "c"), reserve("m"), reserve("c"), pause("w", "d"), reserve("d")],
            1,
            ["v m m c", "w d"],
            id="work that is moved is paused and keeps its place in one piece",
        ),
        pytest.param(
            [Unreserve(workload="c", reason=WITHIN), start("a"), reserve("c"), start("b")],
            1,
            ["c a c", "b"],
            id="a reservation is dropped and made again in one chunk, with the actions between",
        ),
    ],
)
def test_plans_are_split_into_chunks(actions: list[Action], max_rows: int, expected: list[str]) -> None:
    assert spelled(chunks_of(Plan(seen_version=1, now=2, actions=tuple(actions)), max_rows)) == expected


names = st.sampled_from("abcdefgh")
some_actions: st.SearchStrategy[list[Action]] = st.lists(
    st.one_of(names.map(start), names.map(reserve), st.builds(pause, names, names)), max_size=20
)


def named(chunk: PlanChunk) -> set[str]:
    claims = {action.preemptor for action in chunk.plan.actions if isinstance(action, Pause)}
    return claims | {action.workload for action in chunk.plan.actions}


@given(some_actions, st.integers(1, 12))
def test_any_plan_is_written_in_its_order_and_no_workload_in_two_pieces(actions: list[Action], most: int) -> None:
    plan = Plan(seen_version=7, now=9, actions=tuple(actions))
    chunks = list(chunks_of(plan, most))
    assert [action for chunk in chunks for action in chunk.plan.actions] == actions
    assert sum(len(named(chunk)) for chunk in chunks) == len({name for chunk in chunks for name in named(chunk)})
    assert {(chunk.plan_digest, chunk.of) for chunk in chunks} <= {(digest(plan), len(actions))}
    for chunk in chunks:
        assert plan.actions[chunk.first :][: len(chunk.plan.actions)] == chunk.plan.actions
        alone = list(chunks_of(chunk.plan, 1))
        assert len(alone) == 1 or 2 * len(chunk.plan.actions) <= most


# --- in a store -----------------------------------------------------------------------------------------------------
@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with opened(request.param, tmp_path) as store:
        yield StoreWorld(store)


def commit(world: StoreWorld, chunk: PlanChunk) -> Committed | Stale:
    return world.store.commit(chunk, policy=world.policy, snapshot_digest="seen", lease=world.lease, now=world.now)


def test_the_audit_of_each_chunk_names_the_plan_and_the_position_of_the_chunk(world: StoreWorld) -> None:
    for job in ("a", "b", "c"):
        world.submit(job)
    plan = world.plan(start("a", "d0"), start("b", "d1"), start("c", "d2"))
    assert all(isinstance(commit(world, chunk), Committed) for chunk in chunks_of(plan, 8))
    rows = [json.loads(row.payload) for row in reversed(world.store.audit()[0]) if row.kind == "plan"]
    assert [(row["plan"], row["first"], row["actions"], row["of"]) for row in rows] == [
        (digest(plan), 0, 2, 3),
        (digest(plan), 2, 1, 3),
    ]
    assert world.store.audit_verify() == len(world.store.audit()[0])


def test_a_later_chunk_counts_the_allocations_of_an_earlier_one(world: StoreWorld) -> None:
    world.submit("a")
    world.submit("b")
    first, second = chunks_of(world.plan(start("a", "d0", milli=600), start("b", "d0", milli=500)), 1)
    assert isinstance(commit(world, first), Committed)
    refused = commit(world, second)
    assert isinstance(refused, Stale) and "1100 of 1000 milli-GPU" in refused.why
    assert (world.state("a"), world.state("b")) == ("starting -> running", "queued -> running")


def test_a_job_cancelled_between_two_pieces_is_not_started(world: StoreWorld) -> None:
    world.submit("a")
    world.submit("b")
    first, second = chunks_of(world.plan(start("a", "d0"), start("b", "d1")), 1)
    assert isinstance(commit(world, first), Committed)
    world.change("b", "cancel")
    assert isinstance(commit(world, second), Stale)
    assert world.held() == {"d0": 1000}


# --- in the loop ----------------------------------------------------------------------------------------------------
class Dying:
    """A store whose ``death``-th commit from now fails, as if the process were killed before it."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, death: int) -> None:
        self.left, self.commit = death, world.store.commit
        monkeypatch.setattr(world.store, "commit", self.once)
        monkeypatch.setattr(controller_module, "chunks_of", lambda plan: chunks_of(plan, 1))

    def once(self, *given: object, **named: object) -> object:
        self.left -= 1
        if not self.left:
            raise StoreUnavailable("killed")
        return self.commit(*given, **named)  # type: ignore[arg-type]


def killed(world: World) -> None:
    with pytest.raises(StoreUnavailable):
        world.turn(5)
    world.controller = world.another("second")
    world.now += 4000


@pytest.mark.parametrize("death", [1, 2, 3, 4])
def test_a_successor_continues_after_a_controller_that_was_killed_between_two_chunks(
    monkeypatch: pytest.MonkeyPatch, death: int
) -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3", "b4")
    Dying(world, monkeypatch, death)
    killed(world)
    assert [world.state(job) for job in ("b1", "b2", "b3", "b4")].count(JobState.STARTING) == death - 1
    world.turn(3)
    assert world.executor.running() == {"b1", "b2", "b3", "b4"}
    assert sorted(order.job for order in world.executor.starts) == ["b1", "b2", "b3", "b4"]


@pytest.mark.parametrize("death", [1, 2, 3])
def test_claims_of_a_partly_written_plan_all_start_and_pause_no_job_twice(
    monkeypatch: pytest.MonkeyPatch, death: int
) -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(2)
    world.submit("patty", "p1", "p2")
    Dying(world, monkeypatch, death)
    killed(world)
    world.turn(30)
    assert {"p1", "p2"} <= world.executor.running() and len(world.executor.running()) == 4
    assert sorted(world.controller.mirror.jobs[job].pauses for job in ("b1", "b2", "b3", "b4")) == [0, 0, 1, 1]


@pytest.mark.parametrize("death", [1, 2])
def test_a_plan_is_retried_after_a_database_failure(monkeypatch: pytest.MonkeyPatch, death: int) -> None:
    world = World()
    world.submit("bob", "b1", "b2")
    Dying(world, monkeypatch, death)
    with pytest.raises(StoreUnavailable):
        world.turn(1)
    world.turn(2)
    assert world.executor.running() == {"b1", "b2"}


def test_a_plan_that_took_longer_than_the_lease_lasts_is_put_into_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("bob", "b1", "b2")
    decide = controller_module.decide

    def slowly(*given: object) -> Plan:
        world.now += 4_000
        return decide(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(controller_module, "decide", slowly)
    world.controller.run_once(world.now)
    assert (world.state("b1"), world.state("b2")) == (JobState.STARTING, JobState.STARTING)


def test_the_next_decision_sees_a_write_between_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("bob", "b1", "b2", "b3")
    commit = world.store.commit
    asked = [ChangeJob(job="b2", actor="bob", change="cancel")]

    def cancelled_meanwhile(*given: object, **named: object) -> object:
        outcome = commit(*given, **named)  # type: ignore[arg-type]
        world.store.record([asked.pop()], now=world.now) if asked else None
        return outcome

    monkeypatch.setattr(world.store, "commit", cancelled_meanwhile)
    monkeypatch.setattr(controller_module, "chunks_of", lambda plan: chunks_of(plan, 1))
    world.turn(3)
    assert world.executor.running() == {"b1", "b3"} and world.state("b2") is JobState.CANCELLED


def test_work_that_arrives_during_a_commit_is_decided_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("bob", "b1", "b2")
    commit, coming = world.store.commit, ["b3"]

    def meanwhile(*given: object, **named: object) -> object:
        outcome = commit(*given, **named)  # type: ignore[arg-type]
        world.submit("bob", *[coming.pop() for _ in coming[:]])
        return outcome

    monkeypatch.setattr(world.store, "commit", meanwhile)
    monkeypatch.setattr(controller_module, "chunks_of", lambda plan: chunks_of(plan, 1))
    world.controller.run_once(world.now)
    world.controller.run_once(world.now)
    assert world.state("b3") is JobState.STARTING


def test_a_clock_that_is_set_back_does_not_stretch_the_lease() -> None:
    world = World()
    world.turn(1)
    world.now -= 3_600_000
    world.turn(1)
    lease = world.store.lease()
    assert lease is not None and lease.expires_at <= world.now + 3_000
